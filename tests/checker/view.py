"""The history as the checks look at it: decoded once, and sorted by what a record is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from tests.checker.history import Event, History, Place, Record, Violation
from tests.checker.wire import Unreadable, decode

INPUTS = ("commands", "tasks")
KINDS = (*INPUTS, "state", "events", "stream")
#: what the records of a topic are
_TYPES = {"commands": "Command", "tasks": "Task", "events": "Event", "stream": "Stream"}
#: the agent that delivers effects
OUTBOX = "outbox"
#: key of the records with the input offsets, and of those of the gateway's probe
APPLIED, PROBE = b"@applied", b"@ready"

#: events that are the result of a step
RESULTS = frozenset({"step.completed", "run.completed"})
#: after these the step that was next never happens: a compensation has a number of its own
SKIPS = frozenset({"run.cancelling", "run.failing"})
OVER = frozenset({"completed", "failed", "cancelled"})

Findings = Iterator[Violation]


@dataclass(frozen=True, slots=True)
class Headers:
    """What the transaction that wrote a record says of it."""

    txn: str
    #: topic/partition/offset of the input that it answers; `timer`: of none
    source: str
    run: str | None
    seq: str | None

    @property
    def decision(self) -> tuple[str, str | None, str | None]:
        return self.txn, self.run, self.seq


@dataclass(frozen=True, slots=True)
class Seen:
    """One committed record of an agent, decoded; of a tombstone there are no fields."""

    record: Record
    #: name of its schema
    type: str
    headers: Headers | None
    fields: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def place(self) -> Place:
        return self.record.topic, self.record.partition

    @property
    def step(self) -> tuple[str, int, int]:
        """(run, epoch, seq) of an event or of a checkpoint."""
        return self["run_id"], self["epoch"], self["seq"]

    @property
    def answers(self) -> str | None:
        """The input that it is the answer to."""
        source = self.headers.source if self.headers is not None else "timer"
        return None if source == "timer" else source


def headers_of(record: Record) -> Headers | None:
    """Those of the transaction that wrote it; None: nobody's. A record that was moved, to another
    partition or to the dead letters, has those of its first transaction in front of them."""
    names = [name for name, _ in record.headers]
    if "sf-txn" not in names:
        return None
    own = dict(record.headers[len(names) - 1 - names[::-1].index("sf-txn") :])
    told = {name: value.decode() for name, value in own.items() if name.startswith("sf-")}
    return Headers(
        told["sf-txn"], told.get("sf-src", "timer"), told.get("sf-run"), told.get("sf-seq")
    )


class View:
    """A history, decoded."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.dead_topic = f"{history.app}.dead"
        #: inputs that are nothing of ours
        self.poison: list[Record] = []
        self.unreadable: list[Violation] = []
        self.by_name = {record.name: record for record in history.records}
        #: records of transactions, whatever became of them
        self.written = [(r, told) for r in history.records if (told := headers_of(r)) is not None]
        self._headers = {id(record): told for record, told in self.written}
        self._seen: dict[tuple[str, str], list[Seen]] = defaultdict(list)
        self._runs: dict[str, dict[str, list[Seen]]] = {}
        for record in history.records:
            if record.committed and record.topic != self.dead_topic:
                self._look(record)
        self.agents = sorted({agent for agent, _ in self._seen})

    def _look(self, record: Record) -> None:
        agent, _, kind = record.topic.removeprefix(f"{self.history.app}.").rpartition(".")
        if kind not in KINDS or record.key == PROBE:
            return
        told = self._headers.get(id(record))
        wanted = _TYPES.get(kind) or _type_of(record.key)
        if kind == "state" and record.value is None:
            self._seen[agent, kind].append(Seen(record, wanted, told, {}))
            return
        try:
            fields = decode(record.value, wanted)
        except Unreadable as error:
            if kind in INPUTS:
                self.poison.append(record)
            else:
                self.unreadable.append(Violation("wire", f"{record.name}: {error}"))
            return
        self._seen[agent, kind].append(Seen(record, wanted, told, fields))

    def of(self, agent: str, kind: str) -> Sequence[Seen]:
        return self._seen[agent, kind]

    def events(self, agent: str) -> Sequence[Seen]:
        return self._seen[agent, "events"]

    def results(self, agent: str) -> list[Seen]:
        return [event for event in self.events(agent) if event["type"] in RESULTS]

    def runs(self, agent: str) -> dict[str, list[Seen]]:
        """Events by run, in the order of the log."""
        if agent not in self._runs:
            found: dict[str, list[Seen]] = defaultdict(list)
            for event in self.events(agent):
                found[event["run_id"]].append(event)
            self._runs[agent] = dict(found)
        return self._runs[agent]

    def checkpoints(self, agent: str) -> list[Seen]:
        return [each for each in self.state(agent, "Checkpoint") if each.fields]

    def state(self, agent: str, kind: str) -> list[Seen]:
        """The records of one type in the state topic, tombstones too."""
        return [each for each in self.of(agent, "state") if each.type == kind]

    def of_run(self, run_id: str) -> list[Event]:
        """The history of a run, whatever its agent."""
        return [
            event.fields
            for agent in self.agents
            if agent != OUTBOX
            for event in self.runs(agent).get(run_id, ())
        ]

    def topic(self, agent: str, kind: str) -> str:
        return f"{self.history.app}.{agent}.{kind}"

    def group(self, agent: str) -> str:
        """The consumer group of an agent's workers."""
        return f"{self.history.app}.{agent}"

    @cached_property
    def dead(self) -> list[Record]:
        return [r for r in self.history.records if r.committed and r.topic == self.dead_topic]

    @cached_property
    def passed(self) -> dict[Place, int]:
        """Where the groups stand: the next offset to read of each input."""
        return {
            (sample.topic, sample.partition): sample.offset for sample in self.history.samples or ()
        }


def _type_of(key: bytes | None) -> str:
    """What a record of the state topic is."""
    key = key or b""
    if key == APPLIED:
        return "Applied"
    return "Entry" if b"|" in key else "Checkpoint"


def holes(numbers: Iterable[int], *, first: int) -> list[int]:
    """What is missing between `first` and the last of them."""
    have = sorted({first - 1, *numbers})
    return [n for low, high in pairwise(have) for n in range(low + 1, high)]
