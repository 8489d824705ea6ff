"""The values of the core: a run, what happens to it, and what it writes.

Times are epoch milliseconds, UTC. Payloads and results are strict JSON bytes (schemas.payload).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

Status = Literal[
    "pending", "running", "waiting", "paused", "attention", "completed", "failed", "cancelled"
]
TERMINAL: Final[frozenset[Status]] = frozenset({"completed", "failed", "cancelled"})

EventType = Literal[
    "run.accepted",
    "run.started",
    "step.completed",
    "step.retrying",
    "run.completed",
    "run.failed",
    "run.attention",
    "start.ignored",
]

#: longest failure message that is stored, in characters
MESSAGE_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why something did not work; bounded, for people and for the dead letter."""

    code: str
    message: str
    kind: str = ""
    step: str | None = None
    attempt: int = 0

    def __post_init__(self) -> None:
        clean = self.message.encode("utf-8", "backslashreplace").decode()
        if len(clean) > MESSAGE_MAX:
            clean = clean[: MESSAGE_MAX - 1] + "…"
        object.__setattr__(self, "message", clean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of an agent, as its latest checkpoint tells it."""

    run_id: str
    agent: str
    #: version of the agent that the run is pinned to
    version: int
    status: Status
    #: committed steps so far; the step to run next has this number
    seq: int
    #: the step to run next; of a terminal run, its last one
    step: str
    #: attempts of that step that are over
    attempt: int
    payload: bytes
    created_ms: int
    updated_ms: int
    #: tells a repeated start from another start with the same run_id
    input_digest: bytes
    due_ms: int | None = None
    result: bytes | None = None
    failure: Failure | None = None
    traceparent: str | None = None

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A start command that a step's commit sends to another agent (the outbox, for one)."""

    agent: str
    run_id: str
    payload: bytes


# What happens to a run ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Begin a run. Serves as the task of its first step."""

    run_id: str
    agent: str
    version: int
    step: str
    payload: bytes
    input_digest: bytes
    traceparent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Keep a started run for later: another one of its lane goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Ask again for the step in work, so that its old offset can be committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The step's body returned: `step` names the next one, None ends the run."""

    step: str | None
    #: input of the next step, or the result of the run
    payload: bytes
    effects: tuple[Effect, ...] = ()
    started_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The step's body failed. `retry_in_ms` None: no further attempt can help or is left."""

    failure: Failure
    retry_in_ms: int | None
    started_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A person has to look: nothing is guessed, nothing is run."""

    failure: Failure


Input = Start | Queue | Forward | Returned | Raised | Quarantine


# What a run writes, besides its checkpoint ---------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    run_id: str
    seq: int
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One entry of the history; the fields are those of schemas/avro/Event.avsc."""

    type: EventType
    run_id: str
    agent: str
    version: int
    status: Status
    seq: int
    at_ms: int
    step: str | None = None
    next_step: str | None = None
    attempt: int = 0
    started_ms: int | None = None
    due_ms: int | None = None
    effects: tuple[str, ...] = ()
    result: bytes | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRecord:
    """A run out of attempts: holds what it takes to start its last step again."""

    run_id: str
    step: str
    payload: bytes
    failure: Failure
    attempts: int


Record = TaskRecord | EventRecord | Effect | DeadRecord


@dataclass(frozen=True, slots=True)
class Decision:
    """What one input does to one run. One that is not legal has `refused` and moves nothing."""

    run: Run | None
    records: tuple[Record, ...] = ()
    refused: str | None = None


def jsonable(value: object) -> dict[str, Any]:
    """The fields of one of these values, as the codec takes them."""
    fields: dict[str, Any] = {}
    for name in value.__slots__:  # type: ignore[attr-defined]
        item = getattr(value, name)
        if isinstance(item, Failure):
            item = jsonable(item)
        elif isinstance(item, tuple):
            item = list(item)
        fields[name] = item
    return fields
