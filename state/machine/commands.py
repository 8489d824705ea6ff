"""The commands that a run takes, in one table from which all other places are built.

Those are the machine's table and its diagram, the records on the wire, the routes of the HTTP API
and their description, the commands of the command line, and the buttons of the dashboard. To add a
command, add a row here, and its input and decision in state/machine/operations.py. `read` and
`write` concern the fields of its input besides `id` and `by`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypedDict, cast

from pydantic import BaseModel, ConfigDict, Field

from surefoot.schemas.codec.codec import UndecodableError
from surefoot.schemas.codec.records import (
    AvroAction,
    AvroFailure,
    AvroMemory,
    AvroParent,
    AvroWait,
)
from surefoot.schemas.payload import BadPayload, parse_json, strict_json
from surefoot.state.errors import BadArgument
from surefoot.state.machine import operations as do
from surefoot.state.machine.again import number_in
from surefoot.state.machine.model import (
    ALIVE,
    ON,
    TERMINAL,
    Action,
    Entries,
    EventType,
    Failure,
    Memory,
    Operation,
    Parent,
    Run,
    Status,
    WaitState,
    jsonable,
)
from surefoot.state.names.roles import Role

#: longest id of a command, in characters
COMMAND_ID_MAX = 128

Statuses = frozenset[Status | None]
_ENDS: Final[Statuses] = frozenset(TERMINAL)
_FAILED: Final[Statuses] = frozenset({"failed"})
_ATTENTION: Final[Statuses] = frozenset({"attention"})
_PAUSED: Final[Statuses] = frozenset({"paused"})
_CANCELLED: Final[Statuses] = frozenset({"cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCommand:
    """A command as read from its record: the fields of schemas/avro/Command.avsc."""

    run_id: str
    kind: str
    payload: bytes
    sent_ms: int
    step: str | None
    traceparent: str | None
    tracestate: str | None
    baggage: str | None
    id: str | None
    name: str | None
    by: str | None
    parent: Parent | None
    carry: bytes | None
    memory: Memory | None
    messages: tuple[bytes, ...]
    failure: Failure | None
    seq: int | None
    epoch: int | None
    emit: int
    wait: WaitState | None
    due_ms: int | None
    created_ms: int | None
    input_digest: bytes | None
    repeat: tuple[str, ...]
    actions: tuple[Action, ...]

    def needed(self, name: str) -> Any:
        """Return the value of a field.

        Raises: UndecodableError — the field is missing.
        """
        value = getattr(self, name)
        if value is None:
            raise UndecodableError(f"a {self.kind} command needs {name!r}")
        return value

    def parsed(self) -> Any:
        """Return the decoded payload.

        Raises: UndecodableError — the payload is not strict JSON.
        """
        try:
            return parse_json(self.payload)
        except BadPayload as error:
            raise UndecodableError(str(error)) from error


#: fields of a command's input besides `id` and `by`, by name; its row knows which
InputFields = dict[str, Any]

# What a command says over HTTP ----------------------------------------------------------------

#: safe to show in every place that shows ids; compared exactly
CommandId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:~=+-]{0,127}$")]
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Note = Annotated[str, Field(max_length=4096)]


class _Body(BaseModel):
    """What may be said with every command."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: CommandId = ""
    by: Name | None = None

    def fields(self, _run_id: str) -> InputFields:
        """Return the fields of the command's input, besides `id` and `by`.

        Raises: BadArgument — fields do not fit together.
        """
        return {}


class _Signal(_Body):
    name: Name
    payload: Any = None

    def fields(self, run_id: str) -> InputFields:
        return {"run_id": run_id, "name": self.name, "payload": strict_json(self.payload)}


class _Approve(_Body):
    question: Name
    approved: bool
    note: Note | None = None

    def fields(self, _run_id: str) -> InputFields:
        return {"question": self.question, "approved": self.approved, "note": self.note}


class _Resolve(_Body):
    choice: Literal["happened", "did_not", "give_up"]
    result: Any = None

    def fields(self, _run_id: str) -> InputFields:
        if self.choice != "happened" and self.result is not None:
            raise BadArgument("SF4150", '"result" goes with "choice": "happened" only')
        return {"choice": self.choice, "result": strict_json(self.result)}


# What a command says on the wire --------------------------------------------------------------


class CommandFields(TypedDict, total=False):
    """Fields of schemas/avro/Command.avsc besides those that every command has."""

    step: str | None
    payload: bytes
    id: str | None
    name: str | None
    by: str | None
    parent: AvroParent | None
    carry: bytes | None
    memory: AvroMemory | None
    messages: list[bytes]
    failure: AvroFailure | None
    seq: int | None
    epoch: int | None
    emit: int
    wait: AvroWait | None
    due_ms: int | None
    created_ms: int | None
    input_digest: bytes | None
    repeat: list[str]
    actions: list[AvroAction]
    traceparent: str | None
    tracestate: str | None
    baggage: str | None


def _signal(wire: WireCommand) -> InputFields:
    wire.parsed()
    return {"run_id": wire.run_id, "name": wire.needed("name"), "payload": wire.payload}


def _answer(wire: WireCommand) -> InputFields:
    said = wire.parsed()
    if not isinstance(said, dict) or not isinstance(said.get("approved"), bool):
        raise UndecodableError('an answer needs {"approved": true or false}')
    note = said.get("note")
    return {
        "question": wire.needed("name"),
        "approved": said["approved"],
        "note": None if note is None else str(note),
    }


def _answer_out(input_: do.AnswerQuestion) -> CommandFields:
    said = {"approved": input_.approved, "note": input_.note}
    return {"name": input_.question, "payload": strict_json(said)}


def _resolved(wire: WireCommand) -> InputFields:
    wire.parsed()
    return {"choice": wire.needed("name"), "result": wire.payload}


def _rewind(wire: WireCommand) -> InputFields:
    wire.parsed()
    return {
        "epoch": wire.needed("epoch"),
        "emit": bool(wire.emit),
        "seq": wire.needed("seq"),
        "step": wire.needed("step"),
        "payload": wire.payload,
        "carry": wire.carry,
        "memory": wire.memory,
        "messages": wire.messages,
        "wait": wire.wait,
        "due_ms": wire.due_ms,
        "created_ms": wire.created_ms,
        "input_digest": wire.input_digest,
        "repeat": wire.repeat,
        "forks": number_in(wire.name),
    }


def _rewind_out(input_: do.Rewind) -> CommandFields:
    fields = jsonable(input_)
    fields |= {"name": str(input_.forks), "emit": int(input_.emit)}
    del fields["forks"]
    return cast("CommandFields", fields)


# The table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """How the dashboard offers a command, for one run or for many."""

    label: str
    #: the consequences, shown before it is confirmed, in lines; {runs} names the runs
    will: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """One row of the table. Its callables take the command's own input."""

    #: its name on the wire, in the path of the HTTP API, on the command line, in refusals
    word: str
    input: type[Operation]
    #: status (None: no such run) -> statuses that can follow; in any other status it is refused
    legal: Mapping[Status | None, Statuses]
    decide: Callable[..., Run | None]
    #: whether it asks for the present state; called without a run only where that is legal
    already: Callable[..., bool] = lambda *_: False
    #: who may send it to this run, by the name in `by`; empty: anybody
    who: Callable[..., Sequence[str]] = lambda *_: ()
    #: the role that its sender needs, where the gateway knows its senders
    role: Role = "operator"
    #: types of the events that answer it
    answers: tuple[EventType, ...]
    #: help on the command line
    help: str
    #: body over HTTP; None: nobody writes the command, it is built from a version of the run
    body: type[_Body] | None = _Body
    read: Callable[[WireCommand], InputFields] = lambda _: {}
    write: Callable[[Any], CommandFields] = jsonable
    button: Button | None = None

    @property
    def plain(self) -> bool:
        """Whether it has no fields besides `id` and `by`."""
        return self.body is _Body


def _so_in(*statuses: Status) -> Callable[[Run, Entries, Operation], bool]:
    return lambda run, _entries, _input: run.status in statuses


_TABLE: Final = (
    RunCommand(
        word="signal",
        input=do.DeliverSignal,
        legal={
            None: frozenset({None}),
            **{status: frozenset({status}) for status in ALIVE},
            "waiting": ON,
        },
        decide=do.signal,
        already=do.is_delivered,
        answers=("signal.received",),
        help="Send a signal to a run. It is kept if its run or its wait has not begun yet.",
        body=_Signal,
        read=_signal,
        write=lambda input_: {"name": input_.name, "payload": input_.payload},
    ),
    RunCommand(
        word="approve",
        input=do.AnswerQuestion,
        legal={"waiting": ON | _FAILED},
        decide=do.answer,
        already=do.is_decided,
        who=do.answerers,
        role="approver",
        answers=("approval.decided",),
        help="Answer a run's question. The first answer holds.",
        body=_Approve,
        read=_answer,
        write=_answer_out,
    ),
    RunCommand(
        word="pause",
        input=do.Pause,
        legal={"running": _PAUSED, "waiting": _PAUSED},
        decide=do.pause,
        already=_so_in("paused"),
        answers=("run.paused",),
        help="Pause a run: the running step ends, and none starts until the run is resumed.",
        button=Button(
            label="Pause",
            will=(
                "{runs} will stop before the next step. A step that is running ends first, and "
                "its result is kept.\n"
                "Signals and results of children that arrive meanwhile are kept."
            ),
        ),
    ),
    RunCommand(
        word="resume",
        input=do.Resume,
        legal={"paused": ON | _ENDS | _ATTENTION},
        decide=do.resume,
        already=_so_in("running", "waiting"),
        answers=("run.resumed",),
        help="Resume a paused run.",
        button=Button(
            label="Resume",
            will=(
                "{runs} will continue with the next step. A run that is not paused stays as it is."
            ),
        ),
    ),
    RunCommand(
        word="cancel",
        input=do.Cancel,
        # A run that has not begun has nothing to compensate.
        legal={**dict.fromkeys(ALIVE, _CANCELLED | {"running"}), "pending": _CANCELLED},
        decide=do.cancel,
        already=do.is_cancelled,
        answers=("run.cancelled", "run.cancelling"),
        help="Cancel a run and its children, also in the middle of a step; then run its "
        "compensation.",
        button=Button(
            label="Cancel",
            will=(
                "{runs} will be stopped for good, with its running step and its children; what "
                "the running step has asked for is not sent. Then the agent does what it declares "
                "for a cancelled run.\n"
                "This cannot be undone. Effects that were sent already stay sent."
            ),
        ),
    ),
    RunCommand(
        word="retry",
        input=do.RetryRun,
        legal={"attention": ON | _ENDS | _ATTENTION, "failed": ON},
        decide=do.retry,
        already=_so_in("running"),
        answers=("run.retried",),
        help="Retry what failed or needed attention, with a new count of attempts.",
        button=Button(
            label="Retry",
            will=(
                "{runs} will retry the step that failed, with a new count of attempts. Calls "
                "that were recorded are not made again, nor are earlier steps.\n"
                "Other runs stay as they are."
            ),
        ),
    ),
    RunCommand(
        word="resolve",
        input=do.ResolveCall,
        legal={"attention": ON | _FAILED},
        decide=do.resolve,
        already=do.is_resolved,
        answers=("run.resolved",),
        help="Record the outcome of a call whose result is unknown.",
        body=_Resolve,
        read=_resolved,
        write=lambda input_: {"name": input_.choice, "payload": input_.result},
    ),
    RunCommand(
        word="rewind",
        input=do.Rewind,
        legal=dict.fromkeys((*ALIVE, *sorted(TERMINAL)), ON),
        decide=do.rewind,
        answers=("run.rewound",),
        help="""\
Rewind a run to its state after one of its steps, and continue from there.

A ctx.once that ran since then does not run again: the same call, with the same arguments, gets
the recorded outcome. A call in doubt stays in doubt. Each ctx.call is made again. Children and
pooled steps since then start again as new runs; each of their ctx.once asks its probe first, or
waits for a person.
""",
        body=None,
        read=_rewind,
        write=_rewind_out,
    ),
)

#: by word
COMMANDS: Final[Mapping[str, RunCommand]] = {row.word: row for row in _TABLE}
#: bodies of the commands that people write; those without fields come first
BODIES: Final[Mapping[str, type[_Body]]] = {
    row.word: row.body
    for row in sorted(_TABLE, key=lambda row: not row.plain)
    if row.body is not None
}
_BY_INPUT: Final[Mapping[type[Operation], RunCommand]] = {row.input: row for row in _TABLE}
#: types of events that answer a command; a later event may carry a signal's id, too
ANSWERS: Final[frozenset[EventType]] = frozenset(
    {"command.repeated", "command.refused", *(event for row in _TABLE for event in row.answers)}
)


def row_of(input_: Operation) -> RunCommand:
    """Return the row of the command with this input."""
    return _BY_INPUT[type(input_)]


def read(wire: WireCommand) -> Operation:
    """Return the input that a command's record carries.

    Raises: UndecodableError — the kind is unknown, or fields are missing.
    """
    identity = wire.needed("id")
    if not 0 < len(identity) <= COMMAND_ID_MAX:
        raise UndecodableError(f"a command's id must have 1 to {COMMAND_ID_MAX} characters")
    row = COMMANDS.get(wire.kind)
    if row is None:
        raise UndecodableError(f"no such command: {wire.kind!r}")
    return row.input(id=identity, by=wire.by, **row.read(wire))


def write(input_: Operation) -> CommandFields:
    """Return this input as fields of schemas/avro/Command.avsc, besides `run_id` and `kind`."""
    return {"id": input_.id, "by": input_.by, **row_of(input_).write(input_)}
