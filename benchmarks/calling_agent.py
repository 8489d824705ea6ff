"""The agent of agents.py, with a recorded call in each step."""

from __future__ import annotations

from benchmarks.agents import State
from surefoot import Agent, Context, Done, Next

agent = Agent("bench")


async def nothing(left: int) -> int:
    """As good as free, so that what is measured is the recording."""
    return left


@agent.step(start=True)
async def work(ctx: Context, state: State) -> Next | Done:
    """Go on until no step is left."""
    await ctx.call("nothing", nothing, state.left)
    if state.left == 1:
        return Done()
    return Next(work, State(state.left - 1, state.pad))
