"""An agent whose steps wait, as a step does that calls a model; each says in a file that it begins.

`BENCH_BEGUN` names the file: a line for each body that begins, `RUN_ID SEQ EPOCH_S`.
"""

from __future__ import annotations

import asyncio
import os
import time

from benchmarks.agents import State
from surefoot import Agent, Context, Done, Next

BEGUN = "BENCH_BEGUN"
WAIT_S = 0.2

agent = Agent("bench")


@agent.step(start=True)
async def work(ctx: Context, state: State) -> Next | Done:
    """Go on until no step is left."""
    _note(f"{ctx.run_id} {ctx.seq} {time.time():.3f}\n")
    await asyncio.sleep(WAIT_S)
    if state.left == 1:
        return Done()
    return Next(work, State(state.left - 1, state.pad))


def _note(line: str) -> None:
    handle = os.open(os.environ[BEGUN], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)
