"""The graph of an agent: what its source tells of where steps lead, and what it does not."""

from __future__ import annotations

from surefoot import Agent, Approval, Approve, Call, Context, Done, Handoff, Next, Parallel, Wait
from surefoot.state.inspect.graph import Edge, graph_of

other = Agent("other")
drawn = Agent("drawn")


@drawn.step
async def begin(ctx: Context, n: int) -> Next | Wait | Approve | Done:
    if n == 0:
        return Next(begin, 1)
    if n == 1:
        return Wait("go", then=split, timeout="1h", on_timeout=give_up)
    if n == 2:
        return Approve(n, then=agreed)
    return Done()


@drawn.step
async def split(ctx: Context, said: int) -> Parallel:
    return Parallel([(part, 1), (other, 2), ("third", 3)], join=joined)


@drawn.step
async def part(ctx: Context, n: int) -> Done:
    return Done(n)


@drawn.step
async def joined(ctx: Context, results: list[int]) -> Call:
    return Call(other, 1, then=give_up)


@drawn.step
async def agreed(ctx: Context, answer: Approval, n: int) -> Handoff:
    return Handoff("other", n)


@drawn.step
async def give_up(ctx: Context, n: int | None) -> Next:
    target = begin if n else part
    return Next(target, 1)


def test_every_edge_that_the_source_names_is_told() -> None:
    graph = graph_of(drawn)
    assert set(graph.edges) == {
        Edge("begin", "next", "begin"),
        Edge("begin", "wait", "split"),
        Edge("begin", "timeout", "give_up"),
        Edge("begin", "approve", "agreed"),
        Edge("begin", "done", None),
        Edge("split", "branch", "part"),
        Edge("split", "branch", "other", agent=True),
        Edge("split", "branch", "third", agent=True),
        Edge("split", "join", "joined"),
        Edge("part", "done", None),
        Edge("joined", "call", "give_up"),
        Edge("joined", "call", "other", agent=True),
        Edge("agreed", "handoff", "other", agent=True),
    }


def test_a_step_whose_target_is_in_a_variable_may_go_elsewhere() -> None:
    assert graph_of(drawn).unknown == {"give_up"}
