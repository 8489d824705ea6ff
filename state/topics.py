"""Names and required settings of the topics. One place, so that nobody spells a topic by hand."""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 86_400_000

#: the built-in agent that delivers effects
OUTBOX = "outbox"

#: key of the record in a state partition that says up to where its inputs have been applied
APPLIED_KEY = b"@applied"


@dataclass(frozen=True, slots=True)
class AgentTopics:
    """The topics of one agent, and the consumer group of its workers."""

    app: str
    agent: str

    def _name(self, kind: str) -> str:
        return f"{self.app}.{self.agent}.{kind}"

    @property
    def commands(self) -> str:
        return self._name("commands")

    @property
    def tasks(self) -> str:
        return self._name("tasks")

    @property
    def state(self) -> str:
        return self._name("state")

    @property
    def events(self) -> str:
        return self._name("events")

    @property
    def stream(self) -> str:
        return self._name("stream")

    @property
    def group(self) -> str:
        return f"{self.app}.{self.agent}"

    def transactional_id(self, partition: int) -> str:
        """A function of (app, agent, partition) and nothing else: this is the fence."""
        return f"{self.app}.{self.agent}.{partition}"


def dead_topic(app: str) -> str:
    return f"{app}.dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """What a topic must look like before anything subscribes to it."""

    name: str
    partitions: int
    #: topic configs that matter; values as the broker spells them
    config: dict[str, str]


def agent_specs(app: str, agent: str, partitions: int, record_max_bytes: int) -> list[TopicSpec]:
    """The topics of one agent, co-partitioned."""
    topics = AgentTopics(app, agent)
    size = {"max.message.bytes": str(record_max_bytes), "message.timestamp.type": "CreateTime"}

    def deleted_after(days: float) -> dict[str, str]:
        return {"cleanup.policy": "delete", "retention.ms": str(int(days * DAY_MS)), **size}

    configs = {
        topics.commands: deleted_after(7),
        topics.tasks: deleted_after(7),
        topics.state: {"cleanup.policy": "compact", **size},
        topics.events: deleted_after(30),
        topics.stream: deleted_after(1 / 24),
    }
    return [
        TopicSpec(name=name, partitions=partitions, config=config)
        for name, config in configs.items()
    ]


def dead_spec(app: str, record_max_bytes: int) -> TopicSpec:
    """Shared by all agents. Takes any record of theirs plus the headers that say why it is here."""
    return TopicSpec(
        name=dead_topic(app),
        partitions=1,
        config={
            "cleanup.policy": "delete",
            "retention.ms": str(30 * DAY_MS),
            "max.message.bytes": str(2 * record_max_bytes + 65_536),
            "message.timestamp.type": "CreateTime",
        },
    )
