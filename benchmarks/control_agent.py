"""The agent whose waits, forks and sleeps are measured."""

from __future__ import annotations

from surefoot import Agent, Context, Done, Parallel, Sleep, Wait

agent = Agent("bench")


@agent.step(start=True)
async def ask(ctx: Context, count: int) -> Wait:  # noqa: ARG001  (a step takes both)
    """Wait for the next signal."""
    return Wait("go", then=ask)


@agent.step
async def fork(ctx: Context, branches: int) -> Parallel:  # noqa: ARG001
    """So many branches that do nothing."""
    return Parallel([(branch, number) for number in range(branches)], join=join)


@agent.step
async def branch(ctx: Context, number: int) -> Done:  # noqa: ARG001
    return Done(number)


@agent.step
async def join(ctx: Context, numbers: list[int]) -> Done:  # noqa: ARG001
    if numbers != list(range(len(numbers))):
        raise AssertionError("a branch is missing, or out of its place")
    return Done(len(numbers))


@agent.step
async def doze(ctx: Context, nothing: None) -> Sleep:  # noqa: ARG001
    return Sleep("30d", then=doze, payload=nothing)
