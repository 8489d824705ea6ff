"""An agent whose runs take many steps, for `surefoot worker tests/chaos/processes/walker.py`."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from surefoot import Agent, Context, Done, Next

SINK = "CHAOS_SINK"
#: every so many steps there is an effect
EFFECT_EVERY = 5

walker = Agent("walker")


@walker.step
async def walk(ctx: Context, walk_: dict[str, Any]) -> Next | Done:
    """One of `steps` steps of `pause_s` seconds."""
    await asyncio.sleep(walk_["pause_s"])
    if ctx.seq % EFFECT_EVERY == 0:
        ctx.outbox.http("POST", f"{os.environ[SINK]}/{ctx.run_id}/{ctx.seq}", json=ctx.seq)
    if ctx.seq + 1 < walk_["steps"]:
        return Next(walk, walk_)
    return Done(walk_["steps"])
