"""The agent that is measured: steps that do nothing, with 1 kB of state."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot import Agent, Context, Done, Next


@dataclass(frozen=True, slots=True)
class State:
    """What a run carries from step to step."""

    #: steps to go, this one included
    left: int
    pad: str


agent = Agent("bench")


@agent.step(start=True)
async def work(ctx: Context, state: State) -> Next | Done:  # noqa: ARG001  (a step takes both)
    """Go on until no step is left."""
    if state.left == 1:
        return Done()
    return Next(work, State(state.left - 1, state.pad))
