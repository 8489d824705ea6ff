"""Commands to runs: writes a command to the run's partition, and waits for its owner's answer.

Nothing is decided here. Each command has an id, and the owner answers each with one event that
carries this id. The same id again changes nothing and is answered again, so a caller that gets no
answer repeats the command with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surefoot.schemas.codec.records import AvroEvent
from surefoot.schemas.payload import digest
from surefoot.state.errors import BadArgument, Unavailable
from surefoot.state.errors.catalogue import number_of
from surefoot.state.machine import again
from surefoot.state.machine.actions import call_name, call_of, found_by, inherited_actions, outcome
from surefoot.state.machine.commands import (
    ANSWERS,
    BODIES,
    COMMANDS,
    CommandFields,
    Name,
    row_of,
    write,
)
from surefoot.state.machine.model import Action, Entry, Operation, jsonable
from surefoot.state.machine.operations import RetryRun, Rewind
from surefoot.state.names.ids import check_run_id
from surefoot.state.ports.clock import Clock
from surefoot.state.reading.ports import Commands, RunBrowser, RunReader, RunView
from surefoot.state.reading.query import PageCursor, RunQuery
from surefoot.state.reading.runs import RunJson, run_json
from surefoot.state.reading.versions import Version, Versions

#: HTTP status for each refusal of a run's owner
REFUSALS: Mapping[str, int] = {
    "unknown_run": 404,
    "unknown_question": 404,
    "no_such_version": 404,
    "not_allowed": 403,
    "too_late": 409,
    "already_decided": 409,
    "not_possible": 409,
    "stale_epoch": 409,
    "expired": 409,
    "compensated": 409,
    "nothing_in_doubt": 409,
    "bad_payload": 422,
    "bad_choice": 422,
    "unknown_step": 422,
    "mailbox_full": 429,
    "no_such_action": 404,
}

#: number of commands in transit at the same time
_AT_A_TIME = 50


class RetryFailed(BaseModel):
    """Selects the failed runs to retry."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prefix: Annotated[str, Field(max_length=256)] = ""
    #: the `next` of the previous page
    before: Annotated[str, Field(max_length=300)] | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    by: Name | None = None

    def place(self) -> PageCursor | None:
        """Return the position of `before`.

        Raises: BadArgument — `before` is not a position.
        """
        return None if self.before is None else PageCursor.parse(self.before)


def retry_failed(said: Any) -> RetryFailed:
    """Read a request to retry failed runs from JSON values.

    Raises: BadArgument — with what is wrong, by the names of the JSON's fields.
    """
    try:
        asked = RetryFailed.model_validate(said)
    except ValidationError as error:
        raise BadArgument("SF4150", _told(error)) from None
    asked.place()
    return asked


def command(word: str, said: Any, *, run_id: str, new_id: str) -> Operation:
    """Read a command of BODIES from JSON values; `new_id` is for one without an id.

    Raises: BadArgument — with what is wrong, by the names of the JSON's fields.
    """
    try:
        body = BODIES[word].model_validate(said)
    except ValidationError as error:
        raise BadArgument("SF4150", _told(error)) from None
    return COMMANDS[word].input(id=body.id or new_id, by=body.by, **body.fields(run_id))


def _told(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, item['loc'])) or 'the body'}: {item['msg']}" for item in error.errors()
    )


class KeptAction(NamedTuple):
    """A ctx.once that does not simply run again after a rewind, or in a copy."""

    #: call and step; or that of children and pooled steps, which are not known one by one
    what: str
    #: whether its outcome is unknown: its probe decides, or a person
    in_doubt: bool

    def __str__(self) -> str:
        return f"{self.what}, in doubt" if self.in_doubt else self.what


class CommandReplyJson(TypedDict):
    """The answer to a command; only a part of it before there is one."""

    id: str
    #: None: not answered yet
    accepted: bool | None
    hint: NotRequired[str]
    #: of a refusal
    code: NotRequired[str | None]
    number: NotRequired[str | None]
    message: NotRequired[str | None]
    event: NotRequired[str | None]
    run: NotRequired[RunJson | None]
    kept: NotRequired[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReply:
    """The outcome of a command."""

    id: str
    #: None: no answer in time; the command may still be carried out
    accepted: bool | None
    #: type of the event that answers it; None: no answer, or none was needed
    event: str | None = None
    #: of a refusal
    code: str | None = None
    message: str | None = None
    #: the run's state after the command; None: no such run, or it cannot be read now
    run: RunView | None = None
    #: for a rewind or a fork: actions of ctx.once that will not simply run again
    kept: tuple[KeptAction, ...] = ()

    @property
    def status(self) -> int:
        """The HTTP status of the outcome."""
        if self.accepted is None:
            return 202
        return 200 if self.accepted else REFUSALS.get(self.code or "", 409)

    def json(self) -> CommandReplyJson:
        told: CommandReplyJson = {"id": self.id, "accepted": self.accepted}
        if self.accepted is None:
            told["hint"] = "no answer yet; look at the run, or repeat the command with the same id"
            return told
        if not self.accepted:
            number = number_of(self.code or "")
            told |= {"code": self.code, "number": number, "message": self.message}
        told["event"] = self.event
        told["run"] = run_json(self.run) if self.run is not None else None
        if self.kept:
            told["kept"] = [str(each) for each in self.kept]
        return told


class RetriedRunJson(TypedDict):
    """One run that was to be retried: the id of its command, and the answer."""

    run_id: str
    id: str
    accepted: bool | None
    #: of a refusal
    code: NotRequired[str]
    message: NotRequired[str | None]


class RetriedJson(TypedDict):
    matches: int
    retried: int
    refused: int
    unanswered: int
    runs: list[RetriedRunJson]
    next: str | None


def _retried_run_json(run_id: str, reply: CommandReply) -> RetriedRunJson:
    told: RetriedRunJson = {"run_id": run_id, "id": reply.id, "accepted": reply.accepted}
    if reply.code:
        told |= {"code": reply.code, "message": reply.message}
    return told


@dataclass(frozen=True, slots=True)
class Retried:
    """The outcome of retrying some of the failed runs."""

    #: how many failed runs match
    matches: int
    #: by run_id
    replies: Mapping[str, CommandReply]
    #: position after which the rest begins; None: there are no more
    next: PageCursor | None

    def json(self) -> RetriedJson:
        """Return it as JSON, without what the runs hold: runs of the outbox hold credentials."""
        said = [reply.accepted for reply in self.replies.values()]
        return {
            "matches": self.matches,
            "retried": said.count(True),
            "refused": said.count(False),
            "unanswered": said.count(None),
            "runs": [_retried_run_json(run_id, reply) for run_id, reply in self.replies.items()],
            "next": None if self.next is None else str(self.next),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Sends commands and waits for their answers.

    `send_s` bounds Kafka's acknowledgement, `answer_s` the answer of the run's owner.
    """

    commands: Commands
    reader: RunReader
    clock: Clock
    send_s: float
    answer_s: float

    async def ask(
        self,
        agent: str,
        run_id: str,
        input_: Operation,
    ) -> CommandReply:
        """Send a command and wait for the answer of the run's owner.

        Raises: Unavailable — it may or may not have been sent: repeat it with the same id;
            RecordTooLarge — it was not sent.
        Under cancellation: as for Unavailable.
        """
        async with self.reader.answers(agent, run_id) as events:
            await self.commands.send(
                agent,
                run_id,
                row_of(input_).word,
                deadline_s=self.send_s,
                stored=isinstance(input_, Rewind),
                **write(input_),
            )
            try:
                async with asyncio.timeout(self.answer_s):
                    event = await _answer(events, input_.id)
            except TimeoutError:
                event = None
        if event is None:
            return CommandReply(id=input_.id, accepted=None)
        run = await self._latest(agent, run_id)
        refused = event["type"] == "command.refused"
        return CommandReply(
            id=input_.id,
            accepted=not refused,
            event=event["type"],
            code=event["name"] if refused else None,
            message=_reason(event) if refused else None,
            run=run,
        )

    async def _latest(self, agent: str, run_id: str) -> RunView | None:
        try:
            return await self.reader.latest(agent, run_id)
        except Unavailable:
            return None

    async def retry_failed(self, runs: RunBrowser, agent: str, asked: RetryFailed) -> Retried:
        """Retry failed runs, most recently failed first.

        Ends early when an owner does not answer in time; `next` continues after the last run asked.

        Raises: Unavailable — some runs may have been retried; the others are still failed.
        """
        query = RunQuery(
            status="failed", prefix=asked.prefix, before=asked.place(), limit=asked.limit
        )
        page = await runs.page(agent, query)
        replies: dict[str, CommandReply] = {}

        async def retry(run_id: str) -> None:
            again = RetryRun(id=self.clock.unique(), by=asked.by)
            replies[run_id] = await self.ask(agent, run_id, again)

        place = None
        for at in range(0, len(page.runs), _AT_A_TIME):
            some = page.runs[at : at + _AT_A_TIME]
            try:
                async with asyncio.TaskGroup() as group:
                    for run in some:
                        group.create_task(retry(run.run_id))
            except* Unavailable as errors:
                raise errors.exceptions[0] from None
            place = PageCursor(some[-1].updated_ms, some[-1].run_id)
            if any(replies[run.run_id].accepted is None for run in some):
                break
        whole = len(replies) == len(page.runs)
        return Retried(page.matches, replies, page.next if whole else place)

    async def rewind(
        self,
        versions: Versions,
        agent: str,
        run_id: str,
        seq: int,
        *,
        command_id: str,
        emit: bool,
        repeat: Collection[str] = (),
        by: str | None = None,
    ) -> CommandReply:
        """Rewind a run to its version `seq`, as recorded in its history.

        Actions of ctx.once since then do not run again, except those named in `repeat`.

        Raises: as `ask`; StateError — part of that version has expired.
        """
        run = await self.reader.latest(agent, run_id)
        lines = await versions.lines(agent, [run_id], lambda number, _step: number == seq)
        if run is None or run_id not in lines:
            return _refusal(command_id, "unknown_run", f"agent {agent} has no run {run_id}")
        line = lines[run_id]
        if command_id in line.rewinds:
            return CommandReply(id=command_id, accepted=True, event="command.repeated", run=run)
        version = line.versions.get(seq)
        if version is None:
            return _refusal(command_id, "no_such_version", no_version(run, seq), run)
        entries = await versions.calls(agent, run_id)
        done, others = found_by(entries, run, seq), [*_of_others(entries, run, version)]
        if (unknown := _not_done(repeat, done, others, seq)) is not None:
            return _refusal(command_id, "no_such_action", unknown, run)
        messages = await versions.messages(agent, run_id, thread_of(version))
        reply = await self.ask(
            agent,
            run_id,
            rewind_to(
                version,
                messages,
                command_id=command_id,
                by=by,
                epoch=run.epoch,
                emit=emit,
                repeat=repeat,
                created_ms=run.created_ms,
                now_ms=self.clock.now_ms(),
            ),
        )
        return replace(reply, kept=_kept(done, others, repeat))

    async def fork(
        self,
        versions: Versions,
        agent: str,
        run_id: str,
        seq: int,
        *,
        new_id: str,
        repeat: Collection[str] = (),
    ) -> CommandReply:
        """Start a copy of the run from its version `seq`.

        `new_id` is both the copy's run_id and the command's id: the same name again is the same
        run. For the copy, actions of ctx.once since that version are in doubt, except those named
        in `repeat`, which it simply runs.

        Raises: as `ask`; StateError — part of that version has expired; BadArgument — `new_id` is
            not a valid run_id.
        """
        check_run_id(new_id)
        run = await self.reader.latest(agent, run_id)
        lines = await versions.lines(agent, [run_id], lambda number, _step: number == seq)
        if run is None or run_id not in lines:
            return _refusal(new_id, "unknown_run", f"agent {agent} has no run {run_id}")
        version = lines[run_id].versions.get(seq)
        if version is None:
            return _refusal(new_id, "no_such_version", no_version(run, seq), run)
        if version.wait is not None:
            message = (
                f"version {seq} waits for {version.wait.kind}, and a run cannot begin with a wait; "
                "fork an earlier version, or the one after it"
            )
            return _refusal(new_id, "not_possible", message, run)
        there = await self.reader.latest(agent, new_id)
        if there is not None:
            if there.input_digest == digest(version.payload):
                return CommandReply(id=new_id, accepted=True, event="command.repeated", run=there)
            return _refusal(new_id, "not_possible", f"there is already another run {new_id}", there)
        entries = await versions.calls(agent, run_id)
        done, others = found_by(entries, run, seq), [*_of_others(entries, run, version)]
        if (unknown := _not_done(repeat, done, others, seq)) is not None:
            return _refusal(new_id, "no_such_action", unknown, run)
        messages = await versions.messages(agent, run_id, thread_of(version))
        actions = [*inherited_actions(done, repeat), *others]
        reply = await self._start(agent, new_id, start_fields(version, messages, actions, repeat))
        return replace(reply, kept=_kept(done, others, repeat))

    async def _start(self, agent: str, run_id: str, fields: CommandFields) -> CommandReply:
        async with self.reader.answers(agent, run_id) as events:
            await self.commands.send(
                agent, run_id, "start", deadline_s=self.send_s, stored=True, **fields
            )
            try:
                async with asyncio.timeout(self.answer_s):
                    event = await anext(events, None)
            except TimeoutError:
                event = None
        if event is None:
            return CommandReply(id=run_id, accepted=None)
        run = await self._latest(agent, run_id)
        if event["type"] == "start.ignored":
            return _refusal(run_id, "not_possible", _reason(event), run)
        return CommandReply(id=run_id, accepted=True, event=event["type"], run=run)


async def _answer(events: AsyncIterator[AvroEvent], identity: str) -> AvroEvent | None:
    """Return the event that answers the command, or None if the stream ends without one."""
    async for event in events:
        if event["id"] == identity and event["type"] in ANSWERS:
            return event
    return None


def _reason(event: AvroEvent) -> str | None:
    return event["failure"]["message"] if event["failure"] is not None else None


def _refusal(
    identity: str, code: str, message: str | None, run: RunView | None = None
) -> CommandReply:
    return CommandReply(id=identity, accepted=False, code=code, message=message, run=run)


def _of_others(entries: Iterable[Entry], run: RunView, version: Version) -> Iterator[Action]:
    """Yield the unknown actions of the run's children and pooled steps since that version."""
    return again.inherited_doubt(entries, run.run_id, run.forks - version.forks)


def _not_done(
    repeat: Collection[str], done: Sequence[Entry], others: Sequence[Action], seq: int
) -> str | None:
    """Return why an action cannot be repeated: none of that name has run. Otherwise None.

    The names of actions of children and pooled steps are unknown here, so with those any name may
    be right.
    """
    there = {call_name(entry) for entry in done}
    unknown = [name for name in repeat if name not in there]
    if not unknown or others:
        return None
    known = f"it has done {', '.join(sorted(there))}" if there else "it has done nothing"
    return (
        f"the run has done no action {', '.join(map(repr, unknown))} since version {seq}; {known}"
    )


def _kept(
    done: Sequence[Entry], others: Sequence[Action], repeat: Collection[str]
) -> tuple[KeptAction, ...]:
    """Describe, for people, the actions that will not simply run again."""
    own = [
        KeptAction(f"{call_of(entry)} of step {entry.name!r}", in_doubt=not outcome(entry))
        for entry in done
        if call_name(entry) not in repeat
    ]
    whole = [KeptAction("actions of children and pooled steps", in_doubt=True)] if others else []
    return (*own, *whole)


def no_version(run: RunView, seq: int) -> str:
    """Return why a run has no version `seq` to go back to."""
    if 0 <= seq < run.seq:
        return (
            f"version {seq} of {run.run_id} is part of its compensation, or its events have expired"
        )
    return f"{run.run_id} has versions 0 to {run.seq}, except the one that ended it; got {seq}"


def rewind_to(
    version: Version,
    messages: tuple[bytes, ...],
    *,
    command_id: str,
    by: str | None,
    epoch: int,
    emit: bool,
    repeat: Collection[str],
    created_ms: int,
    now_ms: int,
) -> Rewind:
    """Build the command that rewinds a run, now in `epoch`, to that version.

    A wait begins anew with its full time; a sleep ends when it would have ended. Actions named in
    `repeat` may run again.
    """
    wait, due_ms = version.wait, version.due_ms
    if wait is not None and due_ms is not None:
        due_ms = now_ms + due_ms - wait.since_ms
    return Rewind(
        id=command_id,
        by=by,
        epoch=epoch,
        emit=emit,
        repeat=tuple(sorted(repeat)),
        seq=version.seq,
        step=version.step,
        payload=version.payload,
        carry=version.carry,
        memory=version.memory,
        messages=messages,
        wait=None if wait is None else replace(wait, since_ms=now_ms),
        due_ms=due_ms,
        created_ms=created_ms,
        forks=version.forks,
    )


def start_fields(
    version: Version,
    messages: tuple[bytes, ...],
    actions: Iterable[Action],
    repeat: Collection[str],
) -> CommandFields:
    """Return the fields of the command that starts a copy of a run from that version.

    `actions` are those of the original run; those named in `repeat` may run again.
    """
    return {
        "step": version.step,
        "payload": version.payload,
        "carry": version.carry,
        "memory": None if version.memory is None else jsonable(version.memory),
        "messages": list(messages),
        "actions": [jsonable(action) for action in actions],
        "repeat": sorted(repeat),
    }


def thread_of(version: Version) -> int:
    """Return the number of messages in the run's thread."""
    return version.memory.thread if version.memory is not None else 0
