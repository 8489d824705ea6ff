"""The log backend on one SQLite file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from surefoot.infra.embedded.archive import EmbeddedArchiveLog
from surefoot.infra.embedded.broker import SqliteBroker
from surefoot.infra.embedded.file import Access
from surefoot.infra.embedded.log import EmbeddedGroup, EmbeddedLog
from surefoot.infra.embedded.readers import (
    EmbeddedGroups,
    EmbeddedLookups,
    EmbeddedOffsets,
    EmbeddedStandings,
    EmbeddedTail,
)
from surefoot.infra.embedded.retention import Upkeep
from surefoot.infra.embedded.source import EmbeddedSourceLog
from surefoot.infra.kafka_client.topics import problems, wrong_configs
from surefoot.infra.log.ports import Capabilities, Found
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import ConfigError, RecordRefused, RecordTooLarge, Unavailable
from surefoot.state.names.topics import AgentTopics, TopicSpec
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord, Position, ProducerRecord

EMBEDDED = Capabilities(many_processes=False, topic_triggers=False)
_ANY_REPLICATION = -1


class EmbeddedBackend:
    """Implements Backend. Open it with `opened()`."""

    def __init__(self, settings: Settings, broker: SqliteBroker) -> None:
        self._settings = settings
        self._broker = broker
        self._members: dict[str, EmbeddedGroup] = {}

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, settings: Settings, clock: Clock, *, owner: bool, access: Access
    ) -> AsyncIterator[EmbeddedBackend]:
        """Open the file. `owner` is for the process that runs agents; it keeps the file small.

        Raises: ConfigError — the file cannot be used, or another process runs agents on it.
        """
        path = settings.embedded_path
        assert path is not None
        broker = SqliteBroker(path, clock, owner=owner, access=access)
        upkeep = asyncio.create_task(Upkeep(broker, clock).run()) if owner else None
        try:
            yield cls(settings, broker)
        finally:
            if upkeep is not None:
                upkeep.cancel()
            await broker.close()

    @property
    def capabilities(self) -> Capabilities:
        return EMBEDDED

    @property
    def name(self) -> str:
        return f"embedded log {self._broker.path}, one process; not Kafka"

    @property
    def views_file(self) -> Path:
        return self._broker.path.with_suffix(".views.db")

    @asynccontextmanager
    async def topics(self) -> AsyncIterator[EmbeddedTopics]:
        yield EmbeddedTopics(self._broker)

    def log(self, topics: AgentTopics, slot: int) -> EmbeddedLog:
        partitions = self._settings.partitions
        group = self._members.setdefault(topics.group, EmbeddedGroup(partitions))
        return EmbeddedLog(broker=self._broker, group=group, topics=topics, slot=slot)

    def source(self, topics: AgentTopics, topic: str, group: str, slot: int) -> EmbeddedSourceLog:
        del topics, slot
        return EmbeddedSourceLog(self._broker, topic, group, self._settings.partitions)

    def tail(
        self,
        topic: str,
        apply: Callable[[ConsumerRecord], None],
        *,
        from_end: bool,
        partitions: Iterable[int] | None = None,
    ) -> EmbeddedTail:
        chosen = range(self._settings.partitions) if partitions is None else list(partitions)
        return EmbeddedTail(self._broker, topic, apply, from_end=from_end, partitions=chosen)

    def lookups(self, topic: str) -> EmbeddedLookups:
        return EmbeddedLookups(self._broker, topic)

    def offsets(self) -> EmbeddedOffsets:
        return EmbeddedOffsets(self._broker)

    def groups(self) -> EmbeddedGroups:
        return EmbeddedGroups(self._broker)

    def standings(self) -> EmbeddedStandings:
        return EmbeddedStandings(self._broker, self._settings)

    def cluster(self) -> None:
        return None

    def appender(self) -> EmbeddedAppender:
        return EmbeddedAppender(self._broker)

    def archive_log(self, topics: AgentTopics) -> EmbeddedArchiveLog:
        return EmbeddedArchiveLog(self._broker, topics, self._settings.partitions)

    def readiness(self) -> EmbeddedReadiness:
        return EmbeddedReadiness(self._broker, self._settings)

    def show(self, record: ConsumerRecord) -> ConsumerRecord:
        return record


class EmbeddedTopics:
    """Implements TopicAdmin.

    Nobody else can alter a topic of the file, so `apply` itself raises configs where the settings
    ask for more than the topic has."""

    def __init__(self, broker: SqliteBroker) -> None:
        self._broker = broker

    async def apply(self, specs: Sequence[TopicSpec]) -> list[str]:
        made = self._broker.create(specs)
        found = self._found(specs)
        wrong = {spec.name: wrong_configs(spec, found[spec.name]) for spec in specs}
        self._broker.alter({name: configs for name, configs in wrong.items() if configs})
        await self.verify(specs)
        return made

    async def served(self, specs: Sequence[TopicSpec]) -> None:
        """Do nothing: topics can be used as soon as they are created."""

    async def verify(self, specs: Sequence[TopicSpec]) -> None:
        found = self._found(specs)
        wrong = [
            line
            for spec in specs
            for line in problems(
                spec, found.get(spec.name), _ANY_REPLICATION, "`surefoot topics apply`"
            )
        ]
        if wrong:
            raise ConfigError("SF3005", "\n".join(wrong))

    async def partitions(self, names: Sequence[str]) -> dict[str, int]:
        return {name: spec.partitions for name, spec in self._broker.describe(names).items()}

    def _found(self, specs: Sequence[TopicSpec]) -> dict[str, Found]:
        found = self._broker.describe([spec.name for spec in specs])
        return {name: Found(spec.partitions, 1, spec.config) for name, spec in found.items()}

    async def names(self) -> list[str]:
        return self._broker.names()


class EmbeddedAppender:
    """Implements Appender."""

    def __init__(self, broker: SqliteBroker) -> None:
        self._broker = broker

    async def append(self, out: ProducerRecord, what: str, *, deadline_s: float) -> Position:
        try:
            async with asyncio.timeout(deadline_s):
                (offset,) = await self._broker.append([out])
        except TimeoutError:
            raise Unavailable(
                "SF3105", f"the embedded log took no record in {deadline_s:g} s"
            ) from None
        except RecordTooLarge as error:
            raise RecordTooLarge(
                f"{what} takes {error.size} bytes, {error.limit} are allowed",
                size=error.size,
                limit=error.limit,
            ) from None
        except RecordRefused as error:
            raise Unavailable("SF3105", f"the embedded log did not take {what}: {error}") from error
        return Position(out.partition, offset)

    async def stop(self) -> None:
        """Do nothing: holds no open resources."""


class EmbeddedReadiness:
    """Implements Probe: checks that the agent's topics exist and that the file is writable."""

    def __init__(self, broker: SqliteBroker, settings: Settings) -> None:
        self._broker = broker
        self._settings = settings

    async def check(self, agent: str) -> None:
        topic = AgentTopics(self._settings.app, agent).state
        if not self._broker.describe([topic]):
            raise Unavailable("SF3004", f"agent {agent}: there is no topic {topic}")
        await self._broker.take(f"{self._settings.app}.{agent}.ready")

    async def stop(self) -> None:
        """Do nothing: holds no open resources."""
