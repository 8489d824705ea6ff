"""Sends schedules their declaration, and commands from people.

Every worker sends the declarations when it starts. The schedule's run adopts what differs, and a
repeated start is one start. If two versions of the code run side by side, the one started last
wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

from surefoot.producers.commands.operations import CommandReply, Operator
from surefoot.schemas.payload import JsonObject, dump, strict_json
from surefoot.state.declare.agent import Agent
from surefoot.state.machine.model import Run, State
from surefoot.state.machine.operations import DeliverSignal, RetryRun
from surefoot.state.names.agents import schedules_agent_name
from surefoot.state.ports.clock import Clock
from surefoot.state.reading.ports import Commands
from surefoot.state.scheduling.book import ASK, Spec, book_of

SPEC: TypeAdapter[Spec] = TypeAdapter(Spec)

#: number of commands in transit at the same time
_AT_ONCE = 64


async def update_schedules(
    agent: Agent, known: Mapping[str, State], commands: Commands, clock: Clock, *, send_s: float
) -> list[str]:
    """Start new schedules, update changed ones, and end removed ones.

    Args: known: the agent's schedules by name; send_s: bound of the log's acknowledgement of a
        command, seconds.
    Returns: what was done, in words.
    Raises: Unavailable — call it again.
    Under cancellation: as for Unavailable.
    """
    done: list[str] = []
    limit = asyncio.Semaphore(_AT_ONCE)

    async def send(told: str, sending: Coroutine[Any, Any, Any]) -> None:
        async with limit:
            await sending
        done.append(told)

    async with asyncio.TaskGroup() as group:
        for told, sending in _wanted(agent, known, commands, clock, send_s):
            group.create_task(send(told, sending))
    return sorted(done)


def _wanted(
    agent: Agent, known: Mapping[str, State], commands: Commands, clock: Clock, send_s: float
) -> Iterator[tuple[str, Coroutine[Any, Any, Any]]]:
    keeper = schedules_agent_name(agent.name)

    def tell(name: str, said: JsonObject) -> Coroutine[Any, Any, Any]:
        return commands.send(
            keeper,
            name,
            "signal",
            id=clock.unique(),
            name=ASK,
            payload=strict_json(said),
            deadline_s=send_s,
        )

    for name, schedule in agent.schedules.items():
        if name not in known:
            payload = dump(SPEC, schedule.spec)
            yield f"started {name}", commands.start(keeper, name, payload, deadline_s=send_s)
            continue
        book = book_of(known[name])
        if book is not None and (book.removed or book.spec != schedule.spec):
            spec = SPEC.dump_python(schedule.spec, mode="json")
            yield f"changed {name}", tell(name, {"do": "declare", "spec": spec})
    for name, state in known.items():
        book = book_of(state)
        if name not in agent.schedules and book is not None and not book.removed:
            yield f"removed {name}", tell(name, {"do": "remove"})


Do = Literal["pause", "resume", "trigger"]
DOES: tuple[Do, ...] = get_args(Do)


async def steer(
    operator: Operator, run: Run, do: Do, *, command_id: str, by: str | None = None
) -> CommandReply:
    """Pause a schedule, resume it, or have it start a run now. `run` is the schedule's own run.

    A failed schedule is resumed by a retry.

    Raises: as `Operator.ask`.
    """
    if do == "resume" and run.status in ("failed", "attention"):
        return await operator.ask(run.agent, run.run_id, RetryRun(id=command_id, by=by))
    said = {"do": do} | ({"id": command_id} if do == "trigger" else {})
    return await signal_schedule(operator, run, said, command_id=command_id, by=by)


async def signal_schedule(
    operator: Operator, run: Run, said: Mapping[str, Any], *, command_id: str, by: str | None
) -> CommandReply:
    """Send a schedule one of `state.scheduling.book.ASKS`. Raises as `Operator.ask`."""
    signal = DeliverSignal(
        id=command_id, by=by, run_id=run.run_id, name=ASK, payload=strict_json(dict(said))
    )
    return await operator.ask(run.agent, run.run_id, signal)
