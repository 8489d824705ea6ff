"""An agent with something to operate on in every way; what a run does is in its payload."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from surefoot import (
    Agent,
    Approval,
    Approve,
    Context,
    Done,
    Next,
    Parallel,
    Sleep,
    TerminalError,
    Wait,
)

ops = Agent("ops")


@ops.step
async def begin(ctx: Context, payload: dict[str, Any]) -> Any:
    match payload["do"]:
        case "count":
            return Next(count, {"n": 1, "to": payload["to"]})
        case "wait":
            return Wait("go", then=end, timeout=payload.get("timeout"))
        case "ask":
            return Approve({"pay": 7}, then=decided, by=payload.get("by", ()))
        case "sleep":
            return Sleep("1h", then=end, payload="woken")
        case "fork":
            return Parallel([(begin, {"do": "hang"})] * payload["children"], join=end)
        case "fail":
            return Next(fail, payload["flag"])
        case "doubt":
            return Next(charge, payload["flag"])
    return Next(hang, None)


@ops.step
async def count(ctx: Context, payload: dict[str, int]) -> Next | Done:
    """Says a line to the thread in each step."""
    n, to = payload["n"], payload["to"]
    ctx.thread.append(f"line {n}")
    ctx.outbox.http("PUT", f"http://127.0.0.1:1/{n}")
    if n < to:
        return Next(count, {"n": n + 1, "to": to})
    return Done([str(line) for line in ctx.thread.messages])


@ops.step
async def hang(ctx: Context, payload: None) -> Done:
    await asyncio.Event().wait()
    return Done()


@ops.step
def fail(ctx: Context, flag: str) -> Done:
    """Fails until the file is there."""
    if not Path(flag).exists():
        raise TerminalError("the flag is not there")
    return Done("mended")


@ops.step
async def charge(ctx: Context, flag: str) -> Done:
    """Nobody knows whether the first charge happened."""

    def pay() -> str:
        with Path(flag).open("a") as book:
            book.write("paid\n")
        if len(Path(flag).read_text().splitlines()) == 1:
            raise ConnectionError("no answer")
        return "receipt 2"

    return Done(await ctx.once("charge", pay))


@ops.step
async def decided(ctx: Context, approval: Approval, what: dict[str, int]) -> Done:
    return Done({"approved": approval.approved, "by": approval.by, "note": approval.note, **what})


@ops.step
async def end(ctx: Context, payload: Any) -> Done:
    return Done(payload)
