"""The agents that the killed processes run. What a step does shows in a journal outside Kafka."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from surefoot import Agent, Context, Done, Next
from tests.waiting import until

#: environment variables by which a test reaches into its child processes
JOURNAL, GATE, SINK = "CHAOS_JOURNAL", "CHAOS_GATE", "CHAOS_SINK"

chain = Agent("chain")
adder = Agent("adder")
gated = Agent("gated")
slow = Agent("slow")


def note(text: str) -> None:
    """Append a line to the journal; it stands whatever becomes of this process."""
    handle = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{text}\n".encode())
    os.close(handle)


def began(ctx: Context) -> None:
    note(f"{ctx.agent} {ctx.run_id} {ctx.seq} {ctx.attempt}")


@chain.step
async def count(ctx: Context, number: int) -> Next | Done:
    """Three steps, each with an effect; which process asked for it shows in its body."""
    began(ctx)
    url = f"{os.environ[SINK]}/{ctx.run_id}/{ctx.seq}"
    ctx.outbox.http("POST", url, json={"run": ctx.run_id, "number": number, "pid": os.getpid()})
    return Next(count, number + 1) if number < 2 else Done(number)


@adder.step
async def add(ctx: Context, number: int) -> Done:
    """One step."""
    began(ctx)
    return Done(number)


@gated.step
async def enter(ctx: Context, number: int) -> Next:
    return Next(hold, number)


@gated.step
async def hold(ctx: Context, number: int) -> Done:
    """Runs until the test opens the gate."""
    began(ctx)
    await until(Path(os.environ[GATE]).exists, timeout_s=600.0, what="the gate to open")
    return Done(number)


@slow.step
async def work(ctx: Context, number: int) -> Done:
    """Takes a while."""
    began(ctx)
    await asyncio.sleep(1.0)
    note(f"over {ctx.run_id}")
    return Done(number)
