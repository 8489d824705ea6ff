"""What an operator asks of a run: one command on the run's partition, and its owner's answer.

Nothing is decided here. Each command has an id, and the owner answers each with one event that has
this id; the same id again changes nothing and is answered again. So whoever gets no answer asks
again with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surefoot.schemas.payload import digest
from surefoot.state.errors import BadArgument, Unavailable
from surefoot.state.errors.catalogue import number_of
from surefoot.state.machine import again
from surefoot.state.machine.actions import call_of, found_by, handed_on, name_of, outcome
from surefoot.state.machine.commands import ANSWERS, BODIES, COMMANDS, Name, row_of, write
from surefoot.state.machine.model import Action, Entry, Operation, jsonable
from surefoot.state.machine.operations import RetryRun, Rewind
from surefoot.state.names.ids import check_run_id
from surefoot.state.ports.clock import Clock
from surefoot.state.reading.ports import Commands, RunBrowser, RunReader, RunView
from surefoot.state.reading.query import PageCursor, RunQuery
from surefoot.state.reading.runs import run_json
from surefoot.state.reading.versions import Version, Versions

#: HTTP status of what a run's owner refuses
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

#: of many commands: how many are on their way at a time
_AT_A_TIME = 50


class RetryFailed(BaseModel):
    """Which of the runs that have failed are tried again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prefix: Annotated[str, Field(max_length=256)] = ""
    #: the `next` of those that were asked before
    before: Annotated[str, Field(max_length=300)] | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    by: Name | None = None

    def place(self) -> PageCursor | None:
        """Raises BadArgument."""
        return None if self.before is None else PageCursor.parse(self.before)


def retry_failed(said: Any) -> RetryFailed:
    """What these JSON values ask for.

    Raises: BadArgument — what is wrong, by the names of the JSON's fields.
    """
    try:
        asked = RetryFailed.model_validate(said)
    except ValidationError as error:
        raise BadArgument("SF4150", _told(error)) from None
    asked.place()
    return asked


def command(word: str, said: Any, *, run_id: str, new_id: str) -> Operation:
    """What these JSON values ask of that run by a command of BODIES; `new_id` is for one that has
    no id.

    Raises: BadArgument — what is wrong, by the names of the JSON's fields.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReply:
    """What came of a command."""

    id: str
    #: None: nobody has answered in time; the command is on its way all the same
    accepted: bool | None
    #: type of the event that answers it; None: there was none, or none was needed
    event: str | None = None
    #: of a refusal
    code: str | None = None
    message: str | None = None
    #: the run as it is now; None: there is none, or it cannot be read just now
    run: RunView | None = None
    #: of a rewind or a fork: what has been done with ctx.once and is not simply done again
    kept: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """The HTTP status that says as much."""
        if self.accepted is None:
            return 202
        return 200 if self.accepted else REFUSALS.get(self.code or "", 409)

    def json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"id": self.id, "accepted": self.accepted}
        if self.accepted is None:
            return told | {"hint": "no answer yet: look at the run, or repeat it with the same id"}
        if not self.accepted:
            number = number_of(self.code or "")
            told |= {"code": self.code, "number": number, "message": self.message}
        run = run_json(self.run) if self.run is not None else None
        kept = {"kept": list(self.kept)} if self.kept else {}
        return told | {"event": self.event, "run": run} | kept


@dataclass(frozen=True, slots=True)
class Retried:
    """What came of some of the runs that had failed."""

    #: how many had, and fit
    matches: int
    #: by run_id
    replies: Mapping[str, CommandReply]
    #: behind which the others stand; None: there are no others
    next: PageCursor | None

    def json(self) -> dict[str, Any]:
        """Nothing of what the runs hold: those of the outbox hold the credentials of effects."""
        said = [reply.accepted for reply in self.replies.values()]
        return {
            "matches": self.matches,
            "retried": said.count(True),
            "refused": said.count(False),
            "unanswered": said.count(None),
            "runs": [
                {"run_id": run_id, "id": reply.id, "accepted": reply.accepted}
                | ({"code": reply.code, "message": reply.message} if reply.code else {})
                for run_id, reply in self.replies.items()
            ],
            "next": None if self.next is None else str(self.next),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Sends commands and waits for their answers. `send_s` and `answer_s` are how long Kafka and
    the run's owner may take."""

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
        """Have a command answered by the owner of its run.

        Raises: Unavailable — it may or may not have been sent: ask again with the same id;
        RecordTooLarge — it was not sent.
        Under cancellation: like Unavailable.
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
            message=event["failure"]["message"] if refused else None,
            run=run,
        )

    async def _latest(self, agent: str, run_id: str) -> RunView | None:
        try:
            return await self.reader.latest(agent, run_id)
        except Unavailable:
            return None

    async def retry_failed(self, runs: RunBrowser, agent: str, asked: RetryFailed) -> Retried:
        """Have runs that have failed try again, those first that failed last. Ends early when an
        owner does not answer in time; `next` goes on behind the last that was asked.

        Raises: Unavailable — some may have been asked: those that have not are still failed.
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
        """Send a run back to its version `seq`, as its history tells it. What it has done with
        ctx.once since then is not done again, but for the actions that `repeat` names.

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
        """Start another run from version `seq` of this one. Its name is the id of the command: the
        same name again is the same run. What this one has done with ctx.once since then is in doubt
        for the new one, but for the actions that `repeat` names: it simply does those.

        Raises: as `ask`; StateError — part of that version has expired; BadArgument — the name
        cannot be a run's.
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
                f"version {seq} waits for {version.wait.kind}, and a run cannot begin with that; "
                "fork an earlier version, or the one after it"
            )
            return _refusal(new_id, "not_possible", message, run)
        there = await self.reader.latest(agent, new_id)
        if there is not None:
            if there.input_digest == digest(version.payload):
                return CommandReply(id=new_id, accepted=True, event="command.repeated", run=there)
            return _refusal(new_id, "not_possible", f"there is another run {new_id} already", there)
        entries = await versions.calls(agent, run_id)
        done, others = found_by(entries, run, seq), [*_of_others(entries, run, version)]
        if (unknown := _not_done(repeat, done, others, seq)) is not None:
            return _refusal(new_id, "no_such_action", unknown, run)
        messages = await versions.messages(agent, run_id, thread_of(version))
        actions = [*handed_on(done, repeat), *others]
        reply = await self._start(agent, new_id, start_fields(version, messages, actions, repeat))
        return replace(reply, kept=_kept(done, others, repeat))

    async def _start(self, agent: str, run_id: str, fields: Mapping[str, Any]) -> CommandReply:
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
            return _refusal(run_id, "not_possible", f"there is another run {run_id} already", run)
        return CommandReply(id=run_id, accepted=True, event=event["type"], run=run)


async def _answer(events: AsyncIterator[dict[str, Any]], identity: str) -> dict[str, Any] | None:
    """The event that answers that command; None when there will be none for us."""
    async for event in events:
        if event["id"] == identity and event["type"] in ANSWERS:
            return event
    return None


def _refusal(identity: str, code: str, message: str, run: RunView | None = None) -> CommandReply:
    return CommandReply(id=identity, accepted=False, code=code, message=message, run=run)


def _of_others(entries: Iterable[Entry], run: RunView, version: Version) -> Iterator[Action]:
    """What the run's children and pooled steps since that version have done: whatever that is."""
    return again.handed_on(entries, run.run_id, run.forks - version.forks)


def _not_done(
    repeat: Collection[str], done: Sequence[Entry], others: Sequence[Action], seq: int
) -> str | None:
    """Why an action cannot be repeated: nothing of that name has been done. Of what children and
    pooled steps have done only they know the names."""
    there = {name_of(entry) for entry in done}
    unknown = [name for name in repeat if name not in there]
    if not unknown or others:
        return None
    known = f"it has done {', '.join(sorted(there))}" if there else "it has done nothing"
    return (
        f"the run has done no action {', '.join(map(repr, unknown))} since version {seq}; {known}"
    )


def _kept(
    done: Sequence[Entry], others: Sequence[Action], repeat: Collection[str]
) -> tuple[str, ...]:
    """The actions that are not simply done again, for people."""
    own = [
        f"{call_of(entry)} of step {entry.name!r}" + ("" if outcome(entry) else ", in doubt")
        for entry in done
        if name_of(entry) not in repeat
    ]
    return (*own, *(["what children and pooled steps have done, in doubt"] if others else []))


def no_version(run: RunView, seq: int) -> str:
    """Why a run has no version `seq` to go back to."""
    if 0 <= seq < run.seq:
        return (
            f"version {seq} of {run.run_id} is part of its compensation, or the events that tell "
            "it have expired"
        )
    return f"{run.run_id} has versions 0 to {run.seq}, less the one that ended it; got {seq}"


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
    """What sends a run, now in `epoch`, back to that version. A wait begins anew, with as much time
    as it had; a sleep ends when it would have. Actions that `repeat` names may be done again."""
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
) -> dict[str, Any]:
    """Fields of the command that starts another run from that version, and tells it what the run
    that it is a copy of has done. Actions that `repeat` names may be done again."""
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
    """How many messages the run's thread had."""
    return version.memory.thread if version.memory is not None else 0
