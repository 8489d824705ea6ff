"""Names and required settings of all topics; no other module spells out a topic."""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 86_400_000
MIB = 1_048_576

#: the built-in agent that delivers effects
OUTBOX = "outbox"

#: name of the only table of an agent's views
VIEWS_TABLE = "standing"

#: key of the record in a state partition that has the applied offsets of its inputs
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

    @property
    def views(self) -> str:
        """The views' Faust app: also its consumer group, and the prefix of its topics."""
        return self._name("views")

    @property
    def views_changelog(self) -> str:
        """The name that Faust gives it."""
        return f"{self.views}-{VIEWS_TABLE}-changelog"

    @property
    def archive_group(self) -> str:
        """The consumer group that archives the events. No pool can have this name."""
        return f"{self.app}.{self.agent}._archive"

    def trigger_group(self, topic: str) -> str:
        """Return the consumer group that starts this agent's runs from a topic. No pool can have
        this name."""
        return f"{self.app}.{self.agent}._triggers.{topic}"

    def hook_group(self, subscription: str) -> str:
        """Return the consumer group that makes a subscription's webhooks of this agent's events. No
        pool can have this name."""
        return f"{self.app}.{self.agent}._hooks.{subscription}"


def transactional_ids(instance: str) -> tuple[str, str]:
    """Return the transactional ids of a group's member, by its group.instance.id: a process that
    starts under the same name fences the former one's transactions."""
    return f"{instance}.a", f"{instance}.b"


def fence_id(group: str, partition: int) -> str:
    """Return the id under which a group's owner of one partition writes: a function of these two
    and of nothing else, so that it is the fence."""
    return f"{group}.{partition}"


def takes_other_commands(topic: str, group: str) -> bool:
    """Return whether a topic has the commands of an agent other than the one whose workers are this
    group, and than the outbox: only single runs write to it."""
    agent, _, kind = topic.rpartition(".")
    app = group.rpartition(".")[0]
    return kind == "commands" and agent not in {group, AgentTopics(app, OUTBOX).group}


def dead_topic(app: str) -> str:
    return f"{app}.dead"


def deliveries_topic(app: str) -> str:
    return f"{app}.deliveries"


def access_topic(app: str) -> str:
    return f"{app}.access"


def audit_topic(app: str) -> str:
    return f"{app}.audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """Required settings of a topic, checked before anything subscribes to it."""

    name: str
    partitions: int
    #: required topic configs; values as the broker spells them
    config: dict[str, str]


def agent_specs(app: str, agent: str, partitions: int, record_max_bytes: int) -> list[TopicSpec]:
    """Return the topics of one agent, co-partitioned."""
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


def views_spec(app: str, agent: str, partitions: int) -> TopicSpec:
    """Return the topic that an agent's views are restored from; partitioned like its events."""
    return TopicSpec(
        name=AgentTopics(app, agent).views_changelog,
        partitions=partitions,
        config={"cleanup.policy": "compact"},
    )


def dead_spec(app: str, record_max_bytes: int) -> TopicSpec:
    """Return the dead-letter topic that all agents share. It takes any of their records, plus the
    headers with the reason."""
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


def deliveries_spec(app: str, partitions: int, record_max_bytes: int) -> TopicSpec:
    """Return the topic of deliveries to the webhook sources of all agents. They are kept for a
    week, up to a size per partition, since anybody can send."""
    return TopicSpec(
        name=deliveries_topic(app),
        partitions=partitions,
        config={
            "cleanup.policy": "delete",
            "retention.ms": str(7 * DAY_MS),
            "retention.bytes": str(64 * MIB),
            # only whole segments are deleted
            "segment.bytes": str(16 * MIB),
            "max.message.bytes": str(record_max_bytes),
            "message.timestamp.type": "CreateTime",
        },
    )


def access_specs(app: str, partitions: int, record_max_bytes: int) -> list[TopicSpec]:
    """Return the topics of accounts and of the audit trail, which is kept for a year."""
    size = {"max.message.bytes": str(record_max_bytes), "message.timestamp.type": "CreateTime"}
    audit = {"cleanup.policy": "compact,delete", "retention.ms": str(365 * DAY_MS)}
    return [
        TopicSpec(
            name=access_topic(app),
            partitions=partitions,
            config={"cleanup.policy": "compact", **size},
        ),
        TopicSpec(name=audit_topic(app), partitions=partitions, config=audit | size),
    ]
