"""What the engine's safety rules are for: with one taken out, the checker finds what it prevents.

The same faults do no harm with the rule in its place. See
tests/chaos/faults/disabled_rules.py for the rules, and
tests/checker for what is found, by name: it reads the topics with another client, and the broker's
files, and knows nothing of the engine.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.group import LeaveGroupRequest

from surefoot import Agent
from tests.chaos.faults.networked import Networked
from tests.chaos.processes.agents import chain
from tests.chaos.processes.lives import lives
from tests.checker import check
from tests.checker.kafka import read_history
from tests.support.cluster import Cluster, cluster

#: nobody listens there
NOWHERE = "http://127.0.0.1:9"
#: what is held up is soon sent again, and no stall of the machine ends a session or a transaction
PATIENT = {
    "heartbeat_interval_ms": 200,
    "producer_request_timeout_ms": 3_000,
    "transaction_timeout_ms": 60_000,
    "session_timeout_ms": 70_000,
    "rebalance_timeout_ms": 80_000,
}


async def broken(networked: Networked, kafka: Cluster) -> set[str]:
    """What the independent checker finds broken."""
    history = await asyncio.to_thread(
        read_history, networked.direct, kafka.settings.app, data=networked.data, at_rest=False
    )
    return {violation.invariant for violation in check(history, {})}


async def put_out(kafka: Cluster, agent: Agent) -> None:
    """Have the group put out its only member, which is frozen and does not hear of it."""
    group = kafka.topics(agent).group
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.settings.bootstrap_servers)
    await admin.start()
    try:
        (told,) = await admin.describe_consumer_groups([group])
        ((_, _, _, _, _, members, *_),) = told.groups
        coordinator = await admin.find_coordinator(group)
        for member_id, *_ in members:
            await admin._client.send(coordinator, LeaveGroupRequest(group, member_id))
    finally:
        await admin.close()


# A taker reads offsets that are stable, and then the state up to the high watermark (R1) --------


async def take_over_an_open_transaction(
    kafka: Cluster, folder: Path, *, without: str | None
) -> None:
    """A worker is frozen with everything of its second step sent but the end, and wakes up when its
    successor has taken over and done that step again. The first step's offsets name it."""
    async with lives(kafka.settings, folder, NOWHERE) as children:
        await kafka.start(chain, "r1")
        old = await children.begin("chain", at="offsets-sent", skip=1, signal="STOP", patient=True)
        await old.frozen()
        await put_out(kafka, chain)
        await children.begin("chain", slot=1, without=without, patient=True)
        await children.until_began("chain", 2 + 2)
        old.process.send_signal(signal.SIGCONT)
        await old.says("assignment", 2)  # its commit is over, and it is a member again
        old.process.kill()
        await old.ended()
        await kafka.start(chain, "r2")
        await kafka.until_status(chain, ("r1", "r2"), "completed")


async def test_a_taker_that_reads_what_may_change_does_again_what_was_done(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, chain, partitions=1, **PATIENT) as kafka:
        await take_over_an_open_transaction(kafka, tmp_path, without="R1")
        assert await broken(networked, kafka) >= {"I2", "I3"}


async def test_a_taker_that_reads_what_is_final_goes_on_from_there(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, chain, partitions=1, **PATIENT) as kafka:
        await take_over_an_open_transaction(kafka, tmp_path, without=None)
        assert await broken(networked, kafka) == set()


# Offsets carry the generation of the member that commits them (R4) ------------------------------


async def commit_of_a_former_member(kafka: Cluster, folder: Path, *, without: str | None) -> None:
    """A worker is frozen before it commits, and wakes up when its successor has ended the run."""
    async with lives(kafka.settings, folder, NOWHERE) as children:
        await kafka.start(chain, "r1")
        old = await children.begin(
            "chain", at="before-begin", signal="STOP", patient=True, without=without
        )
        await old.frozen()
        await put_out(kafka, chain)
        await children.begin("chain", slot=1, patient=True)
        await kafka.until_status(chain, "r1", "completed")
        old.process.send_signal(signal.SIGCONT)
        await old.says("assignment", 2)  # its commit is over, and it is a member again
        old.process.kill()
        await old.ended()


async def test_a_former_member_that_does_not_say_who_it_is_does_again_what_was_done(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, chain, partitions=1, **PATIENT) as kafka:
        await commit_of_a_former_member(kafka, tmp_path, without="R4")
        assert await broken(networked, kafka) >= {"I2", "I3"}


async def test_a_former_member_is_refused(networked: Networked, app: str, tmp_path: Path) -> None:
    async with cluster(networked.direct, app, chain, partitions=1, **PATIENT) as kafka:
        await commit_of_a_former_member(kafka, tmp_path, without=None)
        assert await broken(networked, kafka) == set()


# Everything is read committed (R3) --------------------------------------------------------------


async def takeover_of_an_aborted_step(
    networked: Networked, kafka: Cluster, folder: Path, *, without: str | None
) -> None:
    """A worker dies with the records of a step written and not committed."""
    async with lives(kafka.settings, folder, NOWHERE) as children:
        await kafka.start(chain, "r1")
        first = await children.begin("chain", at="all-sent", skip=1)
        assert await first.ended() == -signal.SIGKILL
        assert ["bitten", "all-sent"] in children.journal()
        await children.begin("chain", without=without)
        await kafka.until_status(chain, "r1", "completed")


async def test_a_step_that_follows_an_aborted_one_has_no_predecessor(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, chain, partitions=1, **PATIENT) as kafka:
        await takeover_of_an_aborted_step(networked, kafka, tmp_path, without="R3")
        assert await broken(networked, kafka) >= {"I2", "I6"}


async def test_a_step_that_was_aborted_is_done_again(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, chain, partitions=1, **PATIENT) as kafka:
        await takeover_of_an_aborted_step(networked, kafka, tmp_path, without=None)
        assert await broken(networked, kafka) == set()
