"""What there is to judge: the log record by record, and the journals of those who stood around it.

Times are epoch ms. Those of records and of the journals are of one clock that never jumps; those
inside of values are of the processes' own. A journal that nobody kept is empty, and what it could
have told is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

#: topic and partition
Place = tuple[str, int]
#: a decoded event, by the fields of schemas/avro/Event.avsc
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as it was appended, whatever became of its transaction."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    #: (producer id, epoch); None: not part of a transaction, or not known
    producer: tuple[int, int] | None = None
    #: None: its transaction was still open at the end; True when it was in none
    committed: bool | None

    @property
    def name(self) -> str:
        """topic/partition/offset, as the sf-src header has it."""
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The end of a producer's transaction, in one partition."""

    topic: str
    partition: int
    offset: int
    producer: tuple[int, int]
    commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A look at a group's committed offset (next to read) and at the last stable offset."""

    at_ms: int
    group: str
    topic: str
    partition: int
    offset: int
    stable_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A command that was sent from outside, and what its sender was told."""

    #: of the command; a start has none, and is told by its run
    id: str | None
    agent: str
    run_id: str
    kind: str
    outcome: Literal["ok", "fail", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What a process was told of its transaction."""

    process: str
    #: the sf-txn of its records
    txn: str
    outcome: Literal["committed", "refused", "fenced", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that has reached the target of effects."""

    at_ms: int
    #: its idempotency key
    key: str
    method: str
    url: str
    body: bytes
    #: whether it was acted upon: not a repeat that the target recognised, not one that it refused
    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something that an author's code did in the outside world."""

    at_ms: int
    run_id: str
    seq: int
    epoch: int
    #: name of the call and its number, as the slot of its entry has it; of a body, its step
    slot: str
    kind: Literal["call", "once", "probe", "step"]
    process: str
    attempt: int
    #: when the body that did it began
    began_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything that is known of one system, from its first record."""

    app: str
    partitions: int
    #: all, also those of aborted transactions; by offset within a partition
    records: Sequence[Record]
    markers: Sequence[Marker] = ()
    #: in the order in which they were taken; None: nobody has looked
    samples: Sequence[Sample] | None = None
    asked: Sequence[Asked] = ()
    commits: Sequence[Commit] = ()
    requests: Sequence[Request] = ()
    acts: Sequence[Act] = ()
    #: no faults any more, and time enough to come to an end
    at_rest: bool
    #: first offset that there is; 0 where none is given
    log_start: Mapping[Place, int] = field(default_factory=dict)
    #: offsets that compaction has left, of the partitions that were compacted
    kept: Mapping[Place, frozenset[int]] = field(default_factory=dict)
    #: the processes' clocks agree, so that what one has planned can be compared with what another
    #: has done
    one_clock: bool = True
    #: a process may have gone on for a while after somebody else had taken over
    zombies: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What must have come of a run."""

    #: its final result, as JSON is read
    result: Any
    #: idempotency keys of all effects that it and its children must have asked for
    effects: frozenset[str] = frozenset()


#: by run: what its program says must come of it, given its committed events (they tell which
#: signal came and which wait ended by its time); None: it may end as it likes
Programs = Mapping[str, Callable[[Sequence[Event]], Promise | None]]


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """A promise that was broken."""

    invariant: str
    #: names records by topic/partition/offset
    what: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what}"
