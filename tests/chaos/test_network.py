"""A network that loses answers, cuts connections and delivers twice. Nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from surefoot.state.names.topics import transactional_ids
from tests.chaos.faults.networked import Networked
from tests.chaos.faults.proxy import Action, Api
from tests.chaos.processes.agents import chain
from tests.chaos.processes.lives import lives
from tests.support.cluster import cluster
from tests.support.effect_target import sink

SHORT = {
    "heartbeat_interval_ms": 200,
    "producer_request_timeout_ms": 500,
    "transaction_timeout_ms": 2_000,
    "session_timeout_ms": 6_000,
    "rebalance_timeout_ms": 8_000,
}
RUNS = [f"r{n}" for n in range(6)]
EFFECTS = {f"chain:{run_id}:{seq}:0" for run_id in RUNS for seq in range(3)}


@pytest.mark.parametrize(
    ("action", "answers", "apis"),
    [
        ("drop", True, (Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.INIT_PRODUCER_ID)),
        ("drop", False, (Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.PRODUCE)),
        ("cut", False, (Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.PRODUCE)),
        ("reset", False, (Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.INIT_PRODUCER_ID, Api.PRODUCE)),
        (
            "duplicate",
            False,
            (Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.INIT_PRODUCER_ID, Api.PRODUCE),
        ),
    ],
    ids=["answer lost", "request lost", "cut before the last byte", "reset after it", "twice"],
)
async def test_every_run_ends_and_every_effect_is_acted_on_once(
    networked: Networked,
    app: str,
    tmp_path: Path,
    action: Action,
    answers: bool,
    apis: tuple[Api, ...],
) -> None:
    async with (
        sink() as target,
        cluster(networked.direct, app, chain, partitions=1, **SHORT) as kafka,
        networked.network() as net,
        lives(networked.behind(kafka.settings), tmp_path, target.url) as children,
    ):
        for run_id in RUNS[:3]:
            await kafka.start(chain, run_id)
        member = f"{kafka.topics(chain).group}.{kafka.settings.instance}.0"
        first, _ = transactional_ids(member)
        faults = [net.arm(action, api, first, answers=answers) for api in apis]
        life = await children.begin("chain", "outbox")
        await asyncio.gather(*(fault.bitten() for fault in faults))
        for run_id in RUNS[3:]:
            await kafka.start(chain, run_id)
        await kafka.until_status(chain, RUNS, "completed")
        await kafka.until_status("outbox", EFFECTS, "completed")
        assert set(await kafka.effects()) == EFFECTS
        target.check(await kafka.effects())
        await kafka.check_history(chain)
        await kafka.check_history("outbox")
        assert life.process.returncode is None


async def test_an_answer_to_a_question_for_offsets_that_never_comes_is_asked_for_again(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with (
        sink() as target,
        cluster(networked.direct, app, chain, partitions=1, **SHORT) as kafka,
        networked.network() as net,
        lives(networked.behind(kafka.settings), tmp_path, target.url) as children,
    ):
        await kafka.start(chain, "r1")
        member = f"{kafka.topics(chain).group}.{kafka.settings.instance}.0"
        first, _ = transactional_ids(member)
        lost = net.arm("drop", Api.OFFSET_FETCH, first, answers=True, times=2)
        await children.begin("chain")
        await lost.fired(2)
        await kafka.until_status(chain, "r1", "completed")
        await kafka.check_history(chain)
