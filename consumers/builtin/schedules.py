"""The schedules of an agent: a built-in agent, `AGENT.schedules`, whose run is one schedule.

The run sleeps until the next tick, or until a signal, and starts the target's run in the commit
that decides the tick. Takeover, timers and dead letters are those of every run: the owner of the
partition at that time decides the tick, and nobody else can commit it.

state.scheduling.book decides what it does next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog
from pydantic import ValidationError

from surefoot.schemas.payload import dump
from surefoot.state.declare.agent import Agent, Schedule
from surefoot.state.declare.retry import Retry
from surefoot.state.machine.model import CommandRecord, Parent
from surefoot.state.machine.wait_rules import ENDED
from surefoot.state.names.agents import schedules_agent_name
from surefoot.state.ports.clock import Clock
from surefoot.state.scheduling.book import (
    ASK,
    ASKS,
    Book,
    Due,
    RunEnded,
    ScheduleCommand,
    Spec,
    apply_command,
    decide_ticks,
    instant,
    left_out,
    ready,
    started,
    tick_of,
    tick_run_id,
    wake_ms,
)
from surefoot.state.steps.context import Context
from surefoot.state.steps.results import Signal, Wait, any_of
from surefoot.state.telemetry import metrics

log = structlog.get_logger(__name__)

#: retries of a schedule's function that raises; after them the schedule fails
RETRY = Retry(attempts=15, initial_s=0.5, max_s=300.0)
#: most runs that one step starts; the next step starts the others
STEP_STARTS_MAX = 100
#: pause of a worker that does not know the schedule, before it looks again, in ms
UNKNOWN_MS = 5_000


def schedules_agent(target: Agent, clock: Clock) -> Agent:
    """Return the agent that keeps the schedules of `target`."""
    agent = Agent(target.name)
    agent.name = schedules_agent_name(target.name)

    async def begin(ctx: Context, spec: Spec) -> Wait:
        """Begin the book. There are no ticks before the declaration."""
        return await go_on(ctx, Book(name=ctx.run_id, spec=spec, until_ms=clock.now_ms()))

    async def tick(ctx: Context, book: Book) -> Wait:
        return await go_on(ctx, book)

    async def hear(ctx: Context, said: list[Signal], book: Book) -> Wait:
        return await go_on(ctx, book, said)

    async def go_on(ctx: Context, before: Book, said: Sequence[Signal] = ()) -> Wait:
        asks = [ask for each in (*ctx.inbox(ENDED), *said) if (ask := _ask(each)) is not None]
        now_ms = clock.now_ms()
        book = before
        for ask in asks:
            if not isinstance(ask, RunEnded):
                book = decide_ticks(book, now_ms)
            book = apply_command(book, ask, now_ms)
        book = decide_ticks(book, now_ms)
        if book.skipped > before.skipped:
            skipped = book.skipped - before.skipped
            log.warning("ticks_skipped", agent=target.name, schedule=book.name, ticks=skipped)
        if _cancels(before, book):
            _cancel(ctx, target, book)
        declared = target.schedules.get(book.name)
        while (due := ready(book)) is not None and declared is not None:
            if due.kind == "tick":
                late_s = (clock.now_ms() - due.at_ms) / 1000
                metrics.TICK_LATENESS.observe(late_s, target.name)
            book = await _start(ctx, target, declared, book, due)
            if len(ctx.commands) >= STEP_STARTS_MAX:
                break
        at_ms = wake_ms(book, now_ms)
        if at_ms is not None and declared is None:
            at_ms = max(at_ms, now_ms + UNKNOWN_MS)
        until = None if at_ms is None else instant(at_ms)
        # The end of a run matters only to the next one: if none waits, it is kept for later.
        news = any_of(ASK, ENDED) if book.queue else any_of(ASK)
        return Wait(news, then=hear, timeout=until, on_timeout=tick, carry=book)

    for fn in (begin, tick, hear):
        agent.step(start=fn is begin, retry=RETRY)(fn)
    return agent


def _ask(signal: Signal) -> ScheduleCommand | None:
    try:
        ask: ScheduleCommand = ASKS[signal.name].validate_python(signal.payload)
    except ValidationError as error:
        log.warning("schedule_signal_unusable", id=signal.id, name=signal.name, error=str(error))
        return None
    return ask


async def _start(ctx: Context, target: Agent, declared: Schedule, book: Book, due: Due) -> Book:
    payload: Any = await ctx.engine.invoke(declared.fn, (tick_of(book, due),))
    if payload is None:
        return left_out(book)
    after = started(book, due)
    parent = None
    if after.under_way is not book.under_way:
        parent = Parent(agent=ctx.agent, run_id=ctx.run_id, fork=0, branch=after.runs)
    ctx.commands.append(
        CommandRecord(
            agent=target.name,
            run_id=tick_run_id(book.name, due),
            kind="start",
            payload=dump(target.start_step.adapter, payload),
            parent=parent,
        )
    )
    return after


def _cancels(before: Book, book: Book) -> bool:
    was = before.under_way is not None and before.under_way.cancelled
    return book.under_way is not None and book.under_way.cancelled and not was


def _cancel(ctx: Context, target: Agent, book: Book) -> None:
    """Cancel the run in progress. Its end is reported like any other."""
    assert book.under_way is not None
    ctx.commands.append(
        CommandRecord(
            agent=target.name,
            run_id=book.under_way.run_id,
            kind="cancel",
            id=f"overlap~{book.under_way.number}",
        )
    )
