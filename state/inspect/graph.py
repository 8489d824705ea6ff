"""The graph of an agent's steps, for a person. Pure.

The targets of a step are in its body, so the graph has what the source shows without running it. A
target that comes from a variable is not seen; the step is then marked as having unknown targets.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from surefoot.state.declare.agent import Agent, Step
from surefoot.state.inspect import lint
from surefoot.state.steps.results import Approve, Call, Done, Handoff, Next, Parallel, Sleep, Wait

NodeKind = Literal[
    "next",
    "sleep",
    "wait",
    "approve",
    "timeout",
    "branch",
    "join",
    "call",
    "handoff",
    "done",
    "cancelled",
    "failed",
]

#: per class of result: its parameters that name a step, and the kind of edge they make
_EDGES: dict[Any, dict[str, NodeKind]] = {
    Next: {"step": "next"},
    Sleep: {"then": "sleep"},
    Wait: {"then": "wait", "on_timeout": "timeout"},
    Approve: {"then": "approve", "on_timeout": "timeout"},
    Parallel: {"join": "join"},
    Call: {"then": "call"},
}
_AGENTS: dict[Any, NodeKind] = {Call: "call", Handoff: "handoff"}


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """`target` is a step; an agent, if that runs next; None: the run is over."""

    source: str
    kind: NodeKind
    target: str | None
    #: the target is an agent
    agent: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    edges: tuple[Edge, ...]
    #: steps with targets that the source does not show
    unknown: frozenset[str]


def graph_of(agent: Agent) -> Graph:
    """Return the graph that the source of the agent's steps shows."""
    edges: dict[Edge, None] = {}
    unknown: set[str] = set()
    for step in agent.steps.values():
        found = list(_edges(agent, step))
        edges |= {edge: None for edge in found if edge is not None}
        if None in found or not found:
            unknown.add(step.name)
    return Graph(tuple(edges), frozenset(unknown))


def _edges(agent: Agent, step: Step) -> Iterator[Edge | None]:
    """Yield the edges from a step; None for a target that is unknown."""
    for _, kind, given in lint.returns(step, (*_EDGES, Handoff, Done)):
        if kind is Done:
            yield Edge(step.name, "done", None)
        for parameter, named in _EDGES.get(kind, {}).items():
            target = given.get(parameter)
            if target is not None and not _is_none(target):
                yield _to_step(agent, step, named, target)
        if kind in _AGENTS:
            yield _to_agent(step, _AGENTS[kind], given.get("agent"))
        if kind is Parallel:
            yield from _branches(agent, step, given.get("branches"))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _to_step(agent: Agent, step: Step, kind: NodeKind, target: ast.expr) -> Edge | None:
    fn = lint.resolve_name(target, step)
    named = agent.step_of(fn) if callable(fn) else None
    return None if named is None else Edge(step.name, kind, named.name)


def _to_agent(step: Step, kind: NodeKind, target: ast.expr | None) -> Edge | None:
    if isinstance(target, ast.Constant) and isinstance(target.value, str):
        return Edge(step.name, kind, target.value, agent=True)
    found = None if target is None else lint.resolve_name(target, step)
    if isinstance(found, Agent):
        return Edge(step.name, kind, found.name, agent=True)
    return None


def _branches(agent: Agent, step: Step, given: ast.expr | None) -> Iterator[Edge | None]:
    """Yield the edges to the first element of each pair, in a list or a comprehension."""
    match given:
        case ast.List(elts=pairs) | ast.Tuple(elts=pairs):
            pass
        case ast.ListComp(elt=pair) | ast.GeneratorExp(elt=pair):
            pairs = [pair]
        case _:
            yield None
            return
    for pair in pairs:
        if not isinstance(pair, ast.Tuple) or not pair.elts:
            yield None
            continue
        yield _to_step(agent, step, "branch", pair.elts[0]) or _to_agent(
            step, "branch", pair.elts[0]
        )
