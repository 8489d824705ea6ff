"""The agents that the killed processes run. What a step does shows in a journal outside Kafka."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from pathlib import Path

from surefoot import Agent, Context, Done, Ended, Flow, Next, Parallel, Sleep, Wait
from tests.support.eventually import until

#: environment variables by which a test reaches into its child processes
JOURNAL, GATE, SINK, DIE = "CHAOS_JOURNAL", "CHAOS_GATE", "CHAOS_SINK", "CHAOS_DIE"

#: effects of one step of `bulky`
BURST = 12

chain = Agent("chain")
adder = Agent("adder")
bulky = Agent("bulky")
stubborn = Agent("stubborn")
gated = Agent("gated")
slow = Agent("slow")
survivor = Agent("survivor")
undone = Agent("undone")
queued = Agent("queued", flow=Flow(key=lambda job: job["key"], concurrency=1))


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


@queued.step
async def wait_its_turn(ctx: Context, job: dict[str, int]) -> Next:
    began(ctx)
    return Next(have_it, job)


@queued.step
async def have_it(ctx: Context, job: dict[str, int]) -> Done:
    began(ctx)
    return Done(job["n"])


@adder.step
async def add(ctx: Context, number: int) -> Done:
    """One step."""
    began(ctx)
    return Done(number)


@bulky.step
async def prepare(ctx: Context, number: int) -> Next:
    return Next(burst, number)


@bulky.step
async def burst(ctx: Context, number: int) -> Done:
    """So many bytes of effects that they are handed to the broker in several requests."""
    began(ctx)
    for n in range(BURST):
        ctx.outbox.http("POST", f"{os.environ[SINK]}/{n}", json={"n": n, "bulk": "x" * 60_000})
    return Done(number)


@stubborn.step
async def block(ctx: Context, blocks: int) -> Done:
    """The first time, nothing else in this process goes on, not even its other threads, until the
    test opens the gate, which is a pipe."""
    began(ctx)
    if blocks and not noted(f"blocked {ctx.run_id}"):
        note(f"blocked {ctx.run_id}")
        gate = os.environ[GATE].encode()
        ctypes.PyDLL(None).open(gate, os.O_RDONLY)  # keeps the interpreter's lock
        note(f"unblocked {ctx.run_id}")
    return Done(blocks)


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


# Control flow --------------------------------------------------------------------------------


def die_here(point: str) -> None:
    """SIGKILL this process, if the test wants that here and it has not happened yet."""
    if os.environ.get(DIE) == point and not noted(f"died {point}"):
        note(f"died {point}")
        os.kill(os.getpid(), signal.SIGKILL)


def noted(text: str) -> bool:
    path = Path(os.environ[JOURNAL])
    return path.exists() and text in path.read_text().splitlines()


async def ask(question: int) -> int:
    note(f"asked {question}")
    die_here("call")
    return question * 10


async def pay(what: str) -> str:
    die_here("before-act")
    note(f"paid {what}")
    die_here("after-act")
    return f"receipt for {what}"


async def paid_already(what: str) -> str | None:
    return f"receipt for {what}" if noted(f"paid {what}") else None


@survivor.step
async def begin(ctx: Context, payload: int) -> Next:
    answers = await asyncio.gather(*(ctx.call("ask", ask, number) for number in range(3)))
    receipt = await ctx.once("pay", pay, ctx.run_id, probe=paid_already)
    ctx.outbox.http("POST", f"{os.environ[SINK]}/survivor", json=receipt)
    ctx.thread.append(receipt)
    die_here("before-return")
    return Next(doze, sum(answers))


@survivor.step
async def doze(ctx: Context, total: int) -> Sleep:
    return Sleep("100ms", then=wait, payload=total)


@survivor.step
async def wait(ctx: Context, total: int) -> Wait:
    return Wait("go", then=fan, timeout="1h", carry=total)


@survivor.step
async def fan(ctx: Context, go: int, total: int) -> Parallel:
    return Parallel([(leaf, number) for number in range(3)], join=gather, carry=total + go)


@survivor.step
async def leaf(ctx: Context, number: int) -> Done:
    return Done(await ctx.call("ask", ask, 100 + number))


@survivor.step
async def gather(ctx: Context, results: list[int], total: int) -> Done:
    return Done([total, *results, *ctx.thread.messages])


@undone.step
async def spread(ctx: Context, payload: int) -> Parallel:
    return Parallel([(linger, number) for number in range(3)], join=never)


@undone.step
async def linger(ctx: Context, number: int) -> Next:
    return Next(linger, number, after="1h")


@undone.step
async def never(ctx: Context, results: list[int]) -> Done:
    return Done()


@undone.on_cancel
async def undo(ctx: Context, ended: Ended) -> Done:
    await ctx.once("pay", pay, ctx.run_id, probe=paid_already)
    ctx.outbox.http("POST", f"{os.environ[SINK]}/undone", json=ended.step)
    return Done()
