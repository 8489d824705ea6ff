"""The connection to the group coordinator goes silent: nothing is refused, nothing is answered."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from tests.chaos.faults.networked import Networked
from tests.chaos.faults.proxy import Api
from tests.chaos.processes.agents import chain
from tests.chaos.processes.lives import lives
from tests.support.cluster import cluster
from tests.support.eventually import until

SHORT = {
    "heartbeat_interval_ms": 200,
    "producer_request_timeout_ms": 500,
    "transaction_timeout_ms": 1_000,
    "session_timeout_ms": 2_000,
    "rebalance_timeout_ms": 4_000,
}
#: more requests than are ever made
ALL = 1_000_000


async def test_a_member_whose_heartbeats_get_no_answer_works_again_when_they_do(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    """Its client must neither stop for good nor go on as if it were a member: its partitions go to
    the other, and when the network is back it has its share again."""
    (tmp_path / "behind").mkdir()
    async with (
        cluster(networked.direct, app, chain, partitions=2, **SHORT) as kafka,
        networked.network() as net,
        lives(kafka.settings, tmp_path, "http://127.0.0.1:9") as beside,
        lives(
            networked.behind(kafka.settings), tmp_path / "behind", "http://127.0.0.1:9"
        ) as children,
    ):
        silenced = await children.begin("chain")
        await silenced.says("worker_ready", partitions=[0, 1])
        other = await beside.begin("chain", slot=1)
        await silenced.says("worker_ready", 2)
        await other.says("worker_ready")
        member = f"{kafka.topics(chain).group}.{kafka.settings.instance}.0"
        faults = [
            net.arm("drop", api, member, times=ALL)
            for api in (Api.HEARTBEAT, Api.JOIN_GROUP, Api.OFFSET_FETCH)
        ]
        await until(lambda: any(fault.fired_s for fault in faults), what="it to be silenced")
        # Its session is over, and the other one serves both.
        await until(
            lambda: other.log("worker_ready")[-1]["partitions"] == [0, 1],
            what="the other one to serve both",
        )
        away = [kafka.run_on(partition, "away") for partition in range(2)]
        for run_id in away:
            await kafka.start(chain, run_id)
        await kafka.until_status(chain, away, "completed")
        await silenced.says("fenced")  # from here on it begins nothing
        begun = len(children.began("chain"))

        for fault in faults:
            fault.times = 0
        async with asyncio.timeout(300):
            for number in count():
                back = [kafka.run_on(partition, f"back{number}") for partition in range(2)]
                for run_id in back:
                    await kafka.start(chain, run_id)
                await kafka.until_status(chain, back, "completed")
                if len(children.began("chain")) > begun:
                    break
        assert silenced.process.returncode is None
        await kafka.check_history(chain)
