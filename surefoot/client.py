"""Runs from any program that can reach a gateway: start them, wait for them, steer them.

    async with Client.connect("http://127.0.0.1:8787") as client:
        run = await client.start("orders", {"item": "tea", "count": 2})
        print(await run.result(Receipt, timeout_s=60))

It speaks HTTP to the gateway and nothing to Kafka, so that it needs no broker's address, no open
ports and no version of the agent's code. Whatever is asked has an id that is made once: the gateway
may go away and come back in the middle, and nothing is done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeVar, overload
from urllib.parse import quote

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from surefoot.infra.http.client import GatewayHttp
from surefoot.schemas.payload import load, parse_json, strict_json
from surefoot.state.errors import BadArgument, NotFound, RunFailed
from surefoot.state.machine.model import TERMINAL, Status
from surefoot.state.names.ids import check_run_id, run_id_for
from surefoot.state.reading.runs import ends_run

__all__ = ["Client", "Event", "Gap", "Handle", "RunInfo"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run as of its latest commit. Values of JSON; integers are exact."""

    run_id: str
    agent: str
    version: int
    status: Status
    #: committed steps
    seq: int
    step: str
    attempt: int
    epoch: int
    created_ms: int
    updated_ms: int
    due_ms: int | None = None
    #: {"code", "message", ...}
    failure: Mapping[str, Any] | None = None
    #: what follows is left out in a list
    payload: Any = None
    result: Any = None
    #: what it waits for: "kind", and of an approval the "question" and what is to be approved
    wait: Mapping[str, Any] | None = None
    carry: Any = None
    memory: Mapping[str, Any] | None = None
    parent: Mapping[str, Any] | None = None
    ending: Status | None = None

    @property
    def over(self) -> bool:
        """It may be sent back or tried again later."""
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of a run's history."""

    #: where it stands, and `events(after=...)` goes on behind it: a number in the history of one
    #: run, a position in the events of many
    id: int | str
    agent: str
    run_id: str
    type: str
    #: of the run, with this event
    status: Status
    seq: int
    at_ms: int
    step: str | None = None
    next_step: str | None = None
    attempt: int = 0
    result: Any = None
    failure: Mapping[str, Any] | None = None
    by: str | None = None
    #: of a signal or an approval: what was sent
    payload: Any = None
    #: everything that the event says
    told: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def ends_run(self) -> bool:
        return ends_run(self.told)


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that are not kept any more, between those before and those after it."""

    agent: str
    partition: int
    #: offsets of the events topic: the first that is gone, and the first that is there again
    start: int
    end: int


class Client:
    """Talks to one gateway. Lives on one event loop; close it, or use it in `async with`."""

    def __init__(self, gateway: GatewayHttp) -> None:
        self._gateway = gateway

    @classmethod
    def connect(
        cls, url: str, *, headers: Mapping[str, str] | None = None, patience_s: float = 30.0
    ) -> Self:
        """A client of the gateway at `url`. Nothing is sent yet.

        Args:    headers: for a proxy in front of the gateway, such as Authorization;
                 patience_s: for how long a gateway that does not answer is asked again
        Raises:  ConfigError — `url` is not the address of a gateway
        """
        return cls(GatewayHttp(url, headers=headers, patience_s=patience_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Streams end, and what was asked and not answered is unknown. Safe to call twice."""
        await self._gateway.close()

    async def start(self, agent: str, payload: Any, run_id: str | None = None) -> Handle:
        """Start a run; returns once it will not be lost. The same run_id is the same run, whatever
        its payload; without one a new id is made. An id of somebody else's that cannot be a run_id
        is made into one, always the same one, and an agent with a flow may put the key of its lane
        before it: the handle tells what the run is called.

        Args:    payload: JSON values, a dataclass or a pydantic model: what the first step takes
        Raises:  Refused — the payload does not fit the first step (bad_request) or is too large
                 (too_large); NotFound — no such agent; Unavailable — it may or may not have been
                 started: start it again with the same run_id; ValueError — payload or run_id
                 cannot be sent
        Under cancellation: like Unavailable.
        """
        asked = self._gateway.new_id() if run_id is None else check_run_id(run_id_for(run_id))
        body = {"run_id": asked, "payload": _plain(payload)}
        answer = await self._gateway.ask("POST", f"/runs/{_part(agent)}", body=body)
        return self.run(agent, answer.value["run_id"])

    def run(self, agent: str, run_id: str) -> Handle:
        """A run by its name, whether it is there or not. Raises ValueError for no name of a run."""
        return Handle(self._gateway, agent, check_run_id(run_id))

    async def list(
        self, agent: str, *, status: Status | None = None, limit: int = 50
    ) -> Sequence[RunInfo]:
        """Most recently updated first; payloads, results and waits are left out.

        Raises: NotFound — no such agent; Refused — a limit over 500; Unavailable
        """
        wanted = {"limit": str(limit)} | ({} if status is None else {"status": status})
        answer = await self._gateway.ask("GET", f"/runs/{_part(agent)}", params=wanted)
        return [_made(RunInfo, run) for run in answer.value["runs"]]

    async def count(self, agent: str) -> Mapping[str, Any]:
        """{"runs", "statuses", "versions"}: how many runs there are, by status and by version.

        Raises: NotFound — no such agent; Unavailable
        """
        answer = await self._gateway.ask("GET", f"/agents/{_part(agent)}")
        return answer.value  # type: ignore[no-any-return]

    async def events(
        self,
        agent: str | None = None,
        *,
        types: Iterable[str] = (),
        statuses: Iterable[Status] = (),
        steps: Iterable[str] = (),
        after: str | None = None,
        earliest: bool = False,
    ) -> AsyncGenerator[Event | Gap, None]:
        """The events of all runs, or of those of one agent, live and without an end: each once,
        those of one run in order, also when the gateway is started again meanwhile. To leave,
        close it: `async with aclosing(client.events()) as events`.

        Args:    types, statuses, steps: only events of these, of runs that are then so, that end
                 one of these steps or go on with one; empty: all;
                 after: the id of an event, to go on behind it; without one: from now on, or with
                 `earliest` from the oldest event that is kept
        Raises:  NotFound — no such agent; Refused — no such type or status, or `after` is no id of
                 an event; Unavailable — nothing was heard for too long: go on with the last id
        """
        asked = [("type", each) for each in types] + [("status", each) for each in statuses]
        asked += [("step", each) for each in steps] + [("from", "earliest")] * earliest
        path = "/events" if agent is None else f"/events/{_part(agent)}"
        while True:
            async with aclosing(self._gateway.follow(path, after, asked)) as told:
                async for frame in told:
                    values = parse_json(frame.data)
                    if frame.event == "slow":  # the last of this stream: too much was waiting
                        after = values["resume"]
                        break
                    if frame.event == "gap":
                        yield Gap(
                            values["agent"], values["partition"], values["from"], values["to"]
                        )
                    elif frame.event != "begin":
                        yield _made(Event, values | {"id": frame.id, "told": values})


class Handle:
    """One run. What moves it returns the run as it is then (None: it is not there yet).

    Each command has an id, made once a call and kept over all repetitions; give `command_id` to
    repeat a call that ended with Unavailable. All raise Refused with the code of the run's owner,
    NotFound for an agent, run or question that there is not, Unavailable when there was no answer.
    Under cancellation: like Unavailable.
    """

    def __init__(self, gateway: GatewayHttp, agent: str, run_id: str) -> None:
        self._gateway = gateway
        self.agent = agent
        self.run_id = run_id
        self._path = f"/runs/{_part(agent)}/{_part(run_id)}"

    def __repr__(self) -> str:
        return f"<run {self.run_id} of {self.agent}>"

    # Looking --------------------------------------------------------------------------------

    async def show(self) -> RunInfo:
        """Raises: NotFound — also for a run that was started a moment ago; Unavailable"""
        return _made(RunInfo, (await self._gateway.ask("GET", self._path)).value)

    async def why(self) -> Mapping[str, Any]:
        """{"status", "because", "do", "backlog"}: why it does not move. Raises as `show`."""
        answer = await self._gateway.ask("GET", f"{self._path}/why")
        return answer.value  # type: ignore[no-any-return]

    async def events(self, after: int | str | None = None) -> AsyncGenerator[Event, None]:
        """The history behind the event `after`, then live, until the run is over: each event once
        and in order, also when the gateway is started again meanwhile. A run that is not there yet
        is waited for. To leave early, close it: `async with aclosing(run.events()) as events`.

        Raises: NotFound — no such agent; Unavailable — nothing was heard for too long: go on with
        the id of the last event
        """
        start = None if after is None else str(after)
        async with aclosing(self._gateway.follow(f"{self._path}/events", start)) as told:
            async for frame in told:
                if frame.id is not None:  # partial output has none
                    values = parse_json(frame.data)
                    yield _made(Event, values | {"id": int(frame.id), "told": values})

    @overload
    async def result(self, *, timeout_s: float | None = None) -> Any: ...
    @overload
    async def result(self, of: type[T], *, timeout_s: float | None = None) -> T: ...
    @overload
    async def result(self, of: TypeAdapter[T], *, timeout_s: float | None = None) -> T: ...
    async def result(self, of: Any = Any, *, timeout_s: float | None = None) -> Any:
        """Wait until the run is over, and return what came of it as a value of that type.

        Args:    of: a type, or a TypeAdapter of anything else (`TypeAdapter(Yes | No)`)
        Raises:  RunFailed — it was failed or cancelled; TimeoutError; NotFound — no such agent;
                 Unavailable — nothing was heard of the gateway for too long; ValueError — the
                 result is not of that type
        Under cancellation: nothing happens to the run.
        """
        async with asyncio.timeout(timeout_s):
            run = await self._ended()
        if run.status != "completed":
            failure = run.failure or {}
            code, message = failure.get("code", ""), failure.get("message", "")
            raise RunFailed(self.run_id, run.status, code, message)
        adapter = of if isinstance(of, TypeAdapter) else TypeAdapter(of)
        return load(adapter, strict_json(run.result))

    async def _ended(self) -> RunInfo:
        """The run, once it is over. The stream says when to look, and only looking counts: a
        run may be sent back after its end."""
        after: int | str | None = None
        while True:
            async with aclosing(self.events(after)) as events:
                async for event in events:
                    after = event.id
            run = await self.show()
            if run.over:
                return run

    # Steering -------------------------------------------------------------------------------

    async def signal(
        self,
        name: str,
        payload: Any = None,
        *,
        by: str | None = None,
        command_id: str | None = None,
    ) -> RunInfo | None:
        """One that comes before its run, or before its wait, is kept."""
        said = {"name": name, "payload": _plain(payload), "by": by}
        return await self._ask("signal", said, command_id)

    async def approve(
        self,
        approved: bool,
        *,
        question: str | None = None,
        note: str | None = None,
        by: str | None = None,
        command_id: str | None = None,
    ) -> RunInfo | None:
        """Answer a question; the first answer holds. Without `question`: what the run asks now,
        which is what you have seen only if you have just looked."""
        asked = question or await self._question()
        said = {"question": asked, "approved": approved, "note": note, "by": by}
        return await self._ask("approve", said, command_id)

    async def _question(self) -> str:
        run = await self.show()
        question = (run.wait or {}).get("question")
        if question is None:
            raise NotFound("unknown_question", f"{self.run_id} asks nothing; it is {run.status}")
        return str(question)

    async def pause(
        self, *, by: str | None = None, command_id: str | None = None
    ) -> RunInfo | None:
        """What is running ends, and nothing is run after it until it is resumed."""
        return await self._ask("pause", {"by": by}, command_id)

    async def resume(
        self, *, by: str | None = None, command_id: str | None = None
    ) -> RunInfo | None:
        return await self._ask("resume", {"by": by}, command_id)

    async def cancel(
        self, *, by: str | None = None, command_id: str | None = None
    ) -> RunInfo | None:
        """Also in the middle of a step, and its children with it; its compensation is run."""
        return await self._ask("cancel", {"by": by}, command_id)

    async def retry(
        self, *, by: str | None = None, command_id: str | None = None
    ) -> RunInfo | None:
        """Try again what failed or needed attention; its attempts are counted anew."""
        return await self._ask("retry", {"by": by}, command_id)

    async def resolve(
        self,
        choice: Literal["happened", "did_not", "give_up"],
        result: Any = None,
        *,
        by: str | None = None,
        command_id: str | None = None,
    ) -> RunInfo | None:
        """Tell what became of a call of which nobody knows whether it happened; `result` is what
        came of one that did."""
        said = {"choice": choice, "result": _plain(result), "by": by}
        return await self._ask("resolve", said, command_id)

    async def _ask(
        self, verb: str, said: Mapping[str, Any], command_id: str | None
    ) -> RunInfo | None:
        body = {name: value for name, value in said.items() if value is not None}
        body["id"] = self._gateway.new_id() if command_id is None else command_id
        answer = await self._gateway.ask("POST", f"{self._path}/{verb}", body=body)
        run = answer.value["run"]
        return None if run is None else _made(RunInfo, run)


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    """A newer gateway may tell more."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names})


def _plain(value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise BadArgument("SF2001", f"it cannot be sent as JSON: {error}") from None


def _part(text: str) -> str:
    return quote(text, safe="")
