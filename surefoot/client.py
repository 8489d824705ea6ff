"""A client for programs that can reach a gateway: start runs, wait for them, control them.

    async with Client.connect("http://127.0.0.1:8787") as client:
        run = await client.start("orders", {"item": "tea", "count": 2})
        print(await run.result(Receipt, timeout_s=60))

The client speaks HTTP to the gateway and never connects to Kafka, so it needs no broker address, no
open ports and no copy of the agent's code. Each request has an id that is kept over all its
retries: the gateway may restart in the middle, and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeVar, overload
from urllib.parse import quote

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from surefoot.infra.http.client import GatewayHttp, with_token
from surefoot.schemas.payload import load, parse_json, strict_json
from surefoot.state.errors import BadArgument, NotFound, RunFailed
from surefoot.state.machine.model import TERMINAL, Status
from surefoot.state.names.ids import check_run_id, run_id_for
from surefoot.state.reading.runs import ends_run

__all__ = ["Client", "Event", "Gap", "Handle", "RunInfo"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run as of its latest commit. Payloads and results are JSON values; integers are exact."""

    run_id: str
    agent: str
    version: int
    status: Status
    #: number of committed steps
    seq: int
    step: str
    attempt: int
    epoch: int
    created_ms: int
    updated_ms: int
    due_ms: int | None = None
    #: {"code", "message", ...}
    failure: Mapping[str, Any] | None = None
    #: this field and the following are left out in a list
    payload: Any = None
    result: Any = None
    #: what it waits for: "kind", and for an approval "question" and what is to be approved
    wait: Mapping[str, Any] | None = None
    carry: Any = None
    memory: Mapping[str, Any] | None = None
    parent: Mapping[str, Any] | None = None
    ending: Status | None = None

    @property
    def over(self) -> bool:
        """Whether the run has ended. A later rewind or retry can reopen it."""
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of a run's history."""

    #: its position, for `events(after=...)`: a number in the history of one run, a position in all
    #: partitions in the events of many
    id: int | str
    agent: str
    run_id: str
    type: str
    #: the run's status after this event
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
    #: all fields of the event, as the gateway sent them
    told: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def ends_run(self) -> bool:
        return ends_run(self.told)


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap in the event stream: events that are no longer kept."""

    agent: str
    partition: int
    #: offsets of the events topic: the first missing event, and the first one kept again
    start: int
    end: int


class Client:
    """A client of one gateway, for one event loop. Close it, or use it with `async with`."""

    def __init__(self, gateway: GatewayHttp) -> None:
        self._gateway = gateway

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        patience_s: float = 30.0,
    ) -> Self:
        """Return a client of the gateway at `url`. Sends nothing yet.

        Args:    token: signs in to the gateway; None: SUREFOOT_TOKEN, or the text of the file
                 SUREFOOT_TOKEN_FILE, or the one that `surefoot login` keeps for this address,
                 unless `headers` have an Authorization;
                 headers: for a proxy in front of the gateway;
                 patience_s: how long to retry requests that the gateway does not answer, seconds
        Raises:  ConfigError — `url` is not the address of a gateway, or the token is unusable
        """
        sent = with_token(url, headers or {}, token, os.environ)
        return cls(GatewayHttp(url, headers=sent, patience_s=patience_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client. Safe to call twice.

        Streams end. The outcome of requests without an answer is unknown.
        """
        await self._gateway.close()

    async def start(self, agent: str, payload: Any, run_id: str | None = None) -> Handle:
        """Start a run; returns once the start is durable.

        The same run_id is the same run, whatever its payload. Without a run_id, a new one is made.
        An external id that is not a valid run_id is converted to one, always the same. An agent
        with flow control may prefix the key of its lane: read the final run_id from the handle.

        Args:    payload: the first step's input: JSON values, a dataclass or a pydantic model
        Raises:  Refused — the payload does not fit the first step (bad_request) or is too large
                 (too_large); NotFound — no such agent; Unavailable — it may or may not have been
                 started: start it again with the same run_id; ValueError — payload or run_id
                 cannot be sent
        Under cancellation: as for Unavailable.
        """
        asked = self._gateway.new_id() if run_id is None else check_run_id(run_id_for(run_id))
        body = {"run_id": asked, "payload": _plain(payload)}
        answer = await self._gateway.ask("POST", f"/runs/{_part(agent)}", body=body)
        return self.run(agent, answer.value["run_id"])

    def run(self, agent: str, run_id: str) -> Handle:
        """Return a handle of the run, whether it exists or not.

        Raises: ValueError — `run_id` is not a valid run_id.
        """
        return Handle(self._gateway, agent, check_run_id(run_id))

    async def list(
        self, agent: str, *, status: Status | None = None, limit: int = 50
    ) -> Sequence[RunInfo]:
        """List the agent's runs, most recently updated first, without payloads, results and waits.

        Raises: NotFound — no such agent; Refused — a limit over 500; Unavailable
        """
        wanted = {"limit": str(limit)} | ({} if status is None else {"status": status})
        answer = await self._gateway.ask("GET", f"/runs/{_part(agent)}", params=wanted)
        return [_made(RunInfo, run) for run in answer.value["runs"]]

    async def count(self, agent: str) -> Mapping[str, Any]:
        """Count the agent's runs: {"runs", "statuses", "versions"}, in all, by status, by version.

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
        """Yield the events of all runs, or of one agent's runs, live and without end.

        Each event comes once, those of one run in order, even if the gateway restarts meanwhile. To
        leave, close the generator: `async with aclosing(client.events()) as events`.

        Args:    types, statuses, steps: only events of these types, of runs with these statuses,
                 that end one of these steps or continue with one; empty: all;
                 after: id of the event to continue after; without it: from now on, or with
                 `earliest` from the oldest event kept
        Raises:  NotFound — no such agent; Refused — no such type or status, or `after` is not the
                 id of an event; Unavailable — no sign of the gateway for too long: continue with
                 the last id
        """
        asked = [("type", each) for each in types] + [("status", each) for each in statuses]
        asked += [("step", each) for each in steps] + [("from", "earliest")] * earliest
        path = "/events" if agent is None else f"/events/{_part(agent)}"
        while True:
            async with aclosing(self._gateway.follow(path, after, asked)) as told:
                async for frame in told:
                    values = parse_json(frame.data)
                    if frame.event == "slow":  # the stream ends: too many events waited
                        after = values["resume"]
                        break
                    if frame.event == "gap":
                        yield Gap(
                            values["agent"], values["partition"], values["from"], values["to"]
                        )
                    elif frame.event != "begin":
                        yield _made(Event, values | {"id": frame.id, "told": values})


class Handle:
    """One run. Commands return the run's state after the command (None: it does not exist yet).

    Each command has an id, made once per call and kept over all its retries. Pass a `command_id` of
    your own to be able to repeat a call that ended with Unavailable: the same id acts once.

    Raises: Refused — with the code of the run's owner; NotFound — no such agent, run or question;
        Unavailable — no answer in time.
    Under cancellation: as for Unavailable.
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
        """Return the run as of its latest commit.

        Raises: NotFound — also for a run started a moment ago; Unavailable
        """
        return _made(RunInfo, (await self._gateway.ask("GET", self._path)).value)

    async def why(self) -> Mapping[str, Any]:
        """Explain why the run does not advance: {"status", "because", "do", "backlog"}.

        Raises: NotFound, Unavailable — as for `show`
        """
        answer = await self._gateway.ask("GET", f"{self._path}/why")
        return answer.value  # type: ignore[no-any-return]

    async def events(self, after: int | str | None = None) -> AsyncGenerator[Event, None]:
        """Yield the run's events after the event `after`, then live ones, until the run is over.

        Each event comes once and in order, even if the gateway restarts meanwhile. If the run does
        not exist yet, the stream waits for it. To leave early, close the generator:
        `async with aclosing(run.events()) as events`.

        Raises: NotFound — no such agent; Unavailable — no sign of the gateway for too long:
            continue with the id of the last event
        """
        start = None if after is None else str(after)
        async with aclosing(self._gateway.follow(f"{self._path}/events", start)) as told:
            async for frame in told:
                if frame.id is not None:  # partial output has no id
                    values = parse_json(frame.data)
                    yield _made(Event, values | {"id": int(frame.id), "told": values})

    @overload
    async def result(self, *, timeout_s: float | None = None) -> Any: ...
    @overload
    async def result(self, of: type[T], *, timeout_s: float | None = None) -> T: ...
    @overload
    async def result(self, of: TypeAdapter[T], *, timeout_s: float | None = None) -> T: ...
    async def result(self, of: Any = Any, *, timeout_s: float | None = None) -> Any:
        """Wait until the run is over, and return its result as a value of type `of`.

        Args:    of: a type, or a TypeAdapter for anything else (`TypeAdapter(Yes | No)`)
        Raises:  RunFailed — the run failed or was cancelled; TimeoutError — it is not over yet;
                 NotFound — no such agent; Unavailable — no sign of the gateway for too long;
                 ValueError — the result is not of that type
        Under cancellation: the run is unaffected.
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
        """Return the run once it is over.

        The end of the stream only prompts a look at the run: it may have been rewound after its
        end.
        """
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
        """Send a signal. It is kept if its run, or the run's wait, has not begun yet."""
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
        """Answer a question. The first answer holds.

        Without `question`, this answers what the run asks at this moment, which may differ from
        what you last saw.
        """
        asked = question or await self._question()
        said = {"question": asked, "approved": approved, "note": note, "by": by}
        return await self._ask("approve", said, command_id)

    async def _question(self) -> str:
        run = await self.show()
        question = (run.wait or {}).get("question")
        if question is None:
            raise NotFound(
                "unknown_question", f"{self.run_id} has no open question; it is {run.status}"
            )
        return str(question)

    async def pause(
        self, *, by: str | None = None, command_id: str | None = None
    ) -> RunInfo | None:
        """Pause the run: the running step ends, and none starts until the run is resumed."""
        return await self._ask("pause", {"by": by}, command_id)

    async def resume(
        self, *, by: str | None = None, command_id: str | None = None
    ) -> RunInfo | None:
        return await self._ask("resume", {"by": by}, command_id)

    async def cancel(
        self, *, by: str | None = None, command_id: str | None = None
    ) -> RunInfo | None:
        """Cancel the run and its children, also in mid-step; then run its compensation."""
        return await self._ask("cancel", {"by": by}, command_id)

    async def retry(
        self, *, by: str | None = None, command_id: str | None = None
    ) -> RunInfo | None:
        """Retry what failed or needed attention, with a new count of attempts."""
        return await self._ask("retry", {"by": by}, command_id)

    async def resolve(
        self,
        choice: Literal["happened", "did_not", "give_up"],
        result: Any = None,
        *,
        by: str | None = None,
        command_id: str | None = None,
    ) -> RunInfo | None:
        """Record the outcome of a call whose result is unknown. `result` goes with "happened"."""
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
    """Build a value from JSON; fields that a newer gateway added are dropped."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names})


def _plain(value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise BadArgument("SF2001", f"the value cannot be sent as JSON: {error}") from None


def _part(text: str) -> str:
    return quote(text, safe="")
