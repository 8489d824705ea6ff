"""Topics of the embedded log: nobody but us can mend them."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.commands.readers import require_agent
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ProducerRecord


def settings(folder: Path, *, partitions: int = 2, record_max_bytes: int = 10_000) -> Settings:
    return load_settings(
        log=f"sqlite:///{folder / 'runs.db'}",
        partitions=partitions,
        record_max_bytes=record_max_bytes,
    )


async def apply(chosen: Settings) -> list[str]:
    async with (
        open_backend(chosen, SystemClock(), access="make") as backend,
        backend.topics() as topics,
    ):
        return await topics.apply(specs_for(["a"], chosen))


async def append(chosen: Settings, size: int) -> None:
    out = ProducerRecord(AgentTopics(chosen.app, "a").commands, 0, b"k", b"x" * size, ())
    async with open_backend(chosen, SystemClock()) as backend:
        await backend.appender().append(out, "a record", deadline_s=180.0)


async def test_a_limit_that_was_raised_holds_once_it_is_applied_and_is_never_lowered(
    tmp_path: Path,
) -> None:
    small, large = settings(tmp_path), settings(tmp_path, record_max_bytes=20_000)
    assert len(await apply(small)) == 12
    async with open_backend(large, SystemClock()) as backend, backend.topics() as topics:
        with pytest.raises(ConfigError, match="must be 20000; run `surefoot topics apply`"):
            await topics.verify(specs_for(["a"], large))
    assert await apply(large) == []
    await append(large, 15_000)
    assert await apply(small) == []
    await append(large, 15_000)


async def test_the_number_of_partitions_is_for_ever_and_another_one_reads_and_starts_nothing(
    tmp_path: Path,
) -> None:
    await apply(settings(tmp_path))
    for partitions in (1, 3):
        other = settings(tmp_path, partitions=partitions)
        with pytest.raises(ConfigError, match="set SUREFOOT_PARTITIONS=2"):
            await apply(other)
        async with open_backend(other, SystemClock()) as backend:
            with pytest.raises(ConfigError, match="set SUREFOOT_PARTITIONS=2"):
                await require_agent("a", other, backend)


async def test_an_agent_that_is_not_there_is_told_with_the_file_that_was_looked_at(
    tmp_path: Path,
) -> None:
    chosen = settings(tmp_path)
    async with open_backend(chosen, SystemClock(), access="make") as backend:
        with pytest.raises(ConfigError, match=r"no topic surefoot\.nobody\.state .*runs\.db"):
            await require_agent("nobody", chosen, backend)
