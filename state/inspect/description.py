"""What an agent's code declares, as JSON values for a person. Pure."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from surefoot.state.declare.agent import Agent, Step
from surefoot.state.declare.durations import duration_s
from surefoot.state.declare.flow_control import Flow, Rate
from surefoot.state.inspect.graph import Edge, graph_of
from surefoot.state.reading.runs import amounts_json


class RateJson(TypedDict):
    limit: int
    per_s: float


class StepJson(TypedDict):
    name: str
    #: names of the types of its input, and of what it carries over a wait
    takes: str
    carries: str | None
    attempts: int
    timeout_s: float | None
    pool: str | None
    concurrency: int | None
    rate: RateJson | None
    compensation: bool
    #: the source does not show all of its targets
    elsewhere: bool


EdgeJson = TypedDict("EdgeJson", {"from": str | None, "kind": str, "to": str | None, "agent": bool})


class FlowJson(TypedDict):
    key: bool
    concurrency: int | None
    singleton: str | None
    throttle: RateJson | None
    debounce_s: float | None
    dedup_s: float | None
    priority: bool


class TriggerJson(TypedDict):
    """What starts runs of the agent: its kind and its origin."""

    kind: Literal["webhook", "topic", "queue", "folder", "schedule"]
    source: str
    #: of a webhook
    events: NotRequired[list[str]]
    #: of a schedule
    cron: NotRequired[str]
    tz: NotRequired[str]


class AgentJson(TypedDict):
    version: int
    start: str
    steps: list[StepJson]
    edges: list[EdgeJson]
    flow: FlowJson | None
    #: by name, in the author's units
    budget: dict[str, float] | None
    triggers: list[TriggerJson]


def agent_json(agent: Agent) -> AgentJson:
    """Return everything about an agent except what its functions do."""
    graph = graph_of(agent)
    return {
        "version": agent.version,
        "start": agent.start_step.name,
        "steps": [_step_json(agent, step, graph.unknown) for step in agent.steps.values()],
        "edges": [*(_edge_json(edge) for edge in graph.edges), *_compensations(agent)],
        "flow": None if agent.flow is None else _flow_json(agent.flow),
        "budget": None if agent.budget is None else amounts_json(agent.budget.amounts()),
        "triggers": _triggers_json(agent),
    }


def _step_json(agent: Agent, step: Step, unknown: frozenset[str]) -> StepJson:
    return {
        "name": step.name,
        "takes": _name(step.payload_type),
        "carries": None if step.carry_type is None else _name(step.carry_type),
        "attempts": step.retry.attempts,
        "timeout_s": step.timeout_s,
        "pool": step.pool,
        "concurrency": step.concurrency,
        "rate": _rate_json(step.rate),
        "compensation": step.name in agent.compensations.values(),
        "elsewhere": step.name in unknown,
    }


def _edge_json(edge: Edge) -> EdgeJson:
    return {"from": edge.source, "kind": edge.kind, "to": edge.target, "agent": edge.agent}


def _compensations(agent: Agent) -> list[EdgeJson]:
    """Return the edges to compensation steps. They have no source: any run can end so."""
    return [
        {"from": None, "kind": ending, "to": step, "agent": False}
        for ending, step in agent.compensations.items()
    ]


def _flow_json(flow: Flow) -> FlowJson:
    return {
        "key": flow.key is not None,
        "concurrency": flow.at_once,
        "singleton": flow.singleton,
        "throttle": _rate_json(flow.throttle),
        "debounce_s": duration_s(flow.debounce),
        "dedup_s": duration_s(flow.dedup),
        "priority": flow.priority is not None,
    }


def _rate_json(rate: Rate | None) -> RateJson | None:
    return None if rate is None else {"limit": rate.limit, "per_s": rate.per_ms / 1000}


def _triggers_json(agent: Agent) -> list[TriggerJson]:
    found: list[TriggerJson] = [
        {"kind": "webhook", "source": each.source, "events": sorted(each.events or ())}
        for each in agent.webhooks
    ]
    found += [{"kind": "topic", "source": each} for each in agent.event_triggers]
    found += [{"kind": "queue", "source": each.queue} for each in agent.queues]
    found += [{"kind": "folder", "source": each.pattern} for each in agent.folders]
    found += [
        {"kind": "schedule", "source": name, "cron": each.spec.cron, "tz": each.spec.tz}
        for name, each in agent.schedules.items()
    ]
    return found


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
