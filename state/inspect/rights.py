"""The rights in Kafka that each kind of process needs: one table, and what it makes for agents.

Kafka keeps it short: Read and Write imply Describe, and a producer that may write to some topic
needs no IdempotentWrite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from surefoot.state.declare.agent import Agent

ProcessKind = Literal[
    "worker", "relay", "gateway", "trigger", "views", "archive", "topics", "tokens", "doctor"
]
ResourceKind = Literal["topic", "group", "transactional id", "cluster"]


@dataclass(frozen=True, slots=True)
class Right:
    """Operations on a resource; `prefixed`: on each whose name begins so."""

    kind: ResourceKind
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """A right of a kind of process. In its name, `{app}` is SUREFOOT_APP, `{agent}` every agent
    with its pools and the keeper of its schedules, `{topic}` a topic that a trigger reads, `{hook}`
    a subscription; a `*` at the end makes it a prefix."""

    kind: ResourceKind
    name: str
    operations: str

    def of(self, names: Mapping[str, str]) -> Right:
        name = self.name.format(**names)
        return Right(
            self.kind,
            name.removesuffix("*"),
            tuple(self.operations.split()),
            prefixed=name.endswith("*"),
        )


#: every process verifies the topics before it uses them
_VERIFIES = Need("topic", "{app}.*", "Describe DescribeConfigs")
#: who creates topics asks the brokers for their default, unless SUREFOOT_REPLICATION_FACTOR is set
_REPLICATION = Need("cluster", "kafka-cluster", "DescribeConfigs")

NEEDS: dict[ProcessKind, tuple[Need, ...]] = {
    "worker": (
        _VERIFIES,
        Need("topic", "{app}.{agent}.commands", "Read Write"),
        Need("topic", "{app}.{agent}.tasks", "Read Write"),
        Need("topic", "{app}.{agent}.state", "Read Write"),
        Need("topic", "{app}.{agent}.events", "Write"),
        Need("topic", "{app}.{agent}.stream", "Write"),
        Need("topic", "{app}.outbox.commands", "Write"),
        Need("topic", "{app}.dead", "Write"),
        Need("group", "{app}.{agent}", "Read"),
        Need("transactional id", "{app}.{agent}.*", "Write"),
    ),
    "relay": (
        _VERIFIES,
        Need("topic", "{app}.outbox.commands", "Read"),
        Need("topic", "{app}.outbox.tasks", "Read Write"),
        Need("topic", "{app}.outbox.state", "Read Write"),
        Need("topic", "{app}.outbox.events", "Write"),
        Need("topic", "{app}.dead", "Write"),
        Need("group", "{app}.outbox", "Read"),
        Need("transactional id", "{app}.outbox.*", "Write"),
    ),
    "gateway": (
        _VERIFIES,
        Need("topic", "{app}.{agent}.commands", "Read Write"),
        Need("topic", "{app}.{agent}.tasks", "Read"),
        Need("topic", "{app}.{agent}.state", "Read Write"),
        Need("topic", "{app}.{agent}.events", "Read"),
        Need("topic", "{app}.{agent}.stream", "Read"),
        Need("topic", "{app}.outbox.*", "Read"),
        Need("topic", "{app}.deliveries", "Read Write"),
        Need("topic", "{app}.dead", "Read"),
        Need("topic", "{app}.access", "Read"),
        Need("topic", "{app}.audit", "Write"),
        Need("group", "{app}.{agent}", "Describe"),
        Need("group", "{app}.outbox", "Describe"),
        Need("transactional id", "{app}.{agent}.ready.*", "Write"),
    ),
    "trigger": (
        _VERIFIES,
        Need("topic", "{app}.{agent}.commands", "Write"),
        Need("topic", "{app}.dead", "Write"),
        Need("topic", "{topic}", "Read"),
        Need("group", "{app}.{agent}._triggers.{topic}", "Read"),
        Need("transactional id", "{app}.{agent}._triggers.{topic}.*", "Write"),
        Need("topic", "{app}.{agent}.events", "Read"),
        Need("topic", "{app}.outbox.commands", "Write"),
        Need("group", "{app}.{agent}._hooks.{hook}", "Read"),
        Need("transactional id", "{app}.{agent}._hooks.{hook}.*", "Write"),
    ),
    "views": (
        _VERIFIES,
        Need("topic", "{app}.{agent}.events", "Read"),
        Need("topic", "{app}.{agent}.views-standing-changelog", "Create Read Write"),
        Need("topic", "{app}.access", "Read"),
        Need("topic", "{app}.audit", "Write"),
        Need("group", "{app}.{agent}.views", "Read"),
        _REPLICATION,
    ),
    "archive": (
        _VERIFIES,
        Need("topic", "{app}.{agent}.events", "Read"),
        Need("group", "{app}.{agent}._archive", "Read"),
    ),
    "topics": (
        Need("topic", "{app}.*", "Create Describe DescribeConfigs"),
        _REPLICATION,
    ),
    "tokens": (
        Need("topic", "{app}.*", "Create Describe DescribeConfigs"),
        Need("topic", "{app}.access", "Read Write"),
        Need("topic", "{app}.audit", "Read Write"),
        _REPLICATION,
    ),
    "doctor": (
        _VERIFIES,
        Need("topic", "{app}.{agent}.commands", "Read"),
        Need("topic", "{app}.{agent}.tasks", "Read"),
        Need("topic", "{app}.{agent}.state", "Read"),
        Need("topic", "{app}.{agent}.events", "Read"),
        Need("topic", "{app}.outbox.*", "Read"),
        Need("topic", "{app}.dead", "Read"),
        Need("topic", "{app}.audit", "Read"),
        Need("topic", "{topic}", "Read"),
        Need("group", "{app}.*", "Describe"),
        Need("transactional id", "{app}.*", "Describe"),
        Need("cluster", "kafka-cluster", "Describe"),
    ),
}

PROCESS_KINDS = tuple(NEEDS)


def rights_of(
    kind: ProcessKind, app: str, names: Sequence[str], agents: Sequence[Agent]
) -> list[Right]:
    """Return the rights that processes of this kind need, each once.

    Args: names: of the agents, their pools and the keepers of their schedules.
    """
    every = [
        need.of({"app": app, **found})
        for need in NEEDS[kind]
        for found in _names(need, names, agents)
    ]
    return list(dict.fromkeys(every))


def _names(
    need: Need, names: Sequence[str], agents: Sequence[Agent]
) -> Iterator[Mapping[str, str]]:
    """Yield what a need's name has to be completed with, once for each resource."""
    if "{topic}" in need.name:
        yield from (
            {"agent": agent.name, "topic": topic}
            for agent in agents
            for topic in agent.event_triggers
        )
    elif "{hook}" in need.name:
        yield from (
            {"agent": agent.name, "hook": hook} for agent in agents for hook in agent.subscriptions
        )
    elif "{agent}" in need.name:
        yield from ({"agent": name} for name in names)
    else:
        yield {}
