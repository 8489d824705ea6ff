"""The log backend on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from surefoot.infra.kafka.archive import KafkaArchiveLog
from surefoot.infra.kafka.cluster import KafkaCluster
from surefoot.infra.kafka.lag import KafkaStandings
from surefoot.infra.kafka.log import KafkaLog
from surefoot.infra.kafka.source import KafkaSourceLog
from surefoot.infra.kafka_client.appender import KafkaAppender, KafkaReadiness
from surefoot.infra.kafka_client.tail import KafkaGroups, KafkaLookups, KafkaOffsets, KafkaTail
from surefoot.infra.kafka_client.topics import Topics
from surefoot.infra.log.ports import Capabilities
from surefoot.infra.runtime.settings import Settings
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord

KAFKA = Capabilities(many_processes=True, topic_triggers=True)


class KafkaBackend:
    """Implements Backend. Holds no open resources itself."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    @property
    def capabilities(self) -> Capabilities:
        return KAFKA

    @property
    def name(self) -> str:
        return f"Kafka at {self._settings.bootstrap_servers}"

    @property
    def views_file(self) -> None:
        return None

    def topics(self) -> Topics:
        return Topics(self._settings)

    def log(self, topics: AgentTopics, slot: int) -> KafkaLog:
        return KafkaLog(
            topics=topics,
            partitions=self._settings.partitions,
            settings=self._settings,
            clock=self._clock,
            slot=slot,
        )

    def source(self, topics: AgentTopics, topic: str, group: str, slot: int) -> KafkaSourceLog:
        return KafkaSourceLog(
            topics=topics,
            topic=topic,
            settings=self._settings,
            clock=self._clock,
            slot=slot,
            group=group,
        )

    def tail(
        self,
        topic: str,
        apply: Callable[[ConsumerRecord], None],
        *,
        from_end: bool,
        partitions: Iterable[int] | None = None,
    ) -> KafkaTail:
        return KafkaTail(self._settings, topic, apply, from_end=from_end, partitions=partitions)

    def lookups(self, topic: str) -> KafkaLookups:
        return KafkaLookups(self._settings, topic)

    def offsets(self) -> KafkaOffsets:
        return KafkaOffsets(self._settings)

    def groups(self) -> KafkaGroups:
        return KafkaGroups(self._settings)

    def standings(self) -> KafkaStandings:
        return KafkaStandings(self._settings)

    def cluster(self) -> KafkaCluster:
        return KafkaCluster(self._settings)

    def appender(self) -> KafkaAppender:
        return KafkaAppender(self._settings)

    def archive_log(self, topics: AgentTopics) -> KafkaArchiveLog:
        return KafkaArchiveLog(topics=topics, settings=self._settings, clock=self._clock)

    def readiness(self) -> KafkaReadiness:
        return KafkaReadiness(self._settings)

    def show(self, record: ConsumerRecord) -> ConsumerRecord:
        return record
