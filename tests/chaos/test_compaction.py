"""The broker rolls and compacts the state topic under the engine."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.chaos.faults.networked import Networked
from tests.chaos.processes.agents import chain, gated
from tests.chaos.processes.lives import lives
from tests.support.cluster import Cluster, cluster
from tests.support.eventually import until

#: every append begins a segment, and whatever is not in the newest one is compacted
EAGER = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0.001", "min.compaction.lag.ms": "0"}


async def compact_eagerly(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in EAGER.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    await asyncio.to_thread(admin.incremental_alter_configs([resource])[resource].result)


async def superseded(kafka: Cluster, topic: str) -> int:
    """Records that compaction can still take out."""
    keys = [(record.partition, record.key) for record in await kafka.read(topic)]
    return len(keys) - len(set(keys))


async def test_a_takeover_from_compacted_state_forgets_and_repeats_nothing(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    over = [f"r{n}" for n in range(20)]
    async with (
        cluster(networked.direct, app, chain, gated, partitions=1) as kafka,
        lives(kafka.settings, tmp_path, "http://127.0.0.1:9") as children,
    ):
        life = await children.begin("chain", "gated")
        for run_id in over:
            await kafka.start(chain, run_id)
        await kafka.start(gated, "waiting")
        await children.until_began("gated")
        await kafka.until_status(chain, over, "completed")
        before = await superseded(kafka, kafka.topics(chain).state)
        assert before >= len(over)
        for agent in (chain, gated):
            await compact_eagerly(networked.direct, kafka.topics(agent).state)
        # The newest segment is never compacted: these begin others.
        for number in range(3):
            await kafka.start(chain, f"later{number}")
            await kafka.until_status(chain, f"later{number}", "completed")

        async def compacted() -> bool:
            return await superseded(kafka, kafka.topics(chain).state) < before / 2

        await until(compacted, what="the state to be compacted")
        life.process.kill()
        assert await life.ended() == -signal.SIGKILL
        began = [attempt for attempt in children.began("chain") if attempt[0] in over]

        await children.begin("chain", "gated")
        for run_id in over:  # asked for again: each is known
            await kafka.start(chain, run_id)
        await kafka.start(chain, "last")
        await kafka.until_status(chain, [*over, "last"], "completed")
        children.open_gate()
        await kafka.until_status(gated, "waiting", "completed")
        assert [attempt for attempt in children.began("chain") if attempt[0] in over] == began
        await kafka.check_history(chain)
        await kafka.check_history(gated)
