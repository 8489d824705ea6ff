"""What an agent's code declares, as JSON values for a person. Pure."""

from __future__ import annotations

from typing import Any

from surefoot.state.declare.agent import Agent, Step
from surefoot.state.declare.durations import duration_s
from surefoot.state.declare.flow_control import Flow, Rate
from surefoot.state.inspect.graph import Edge, graph_of
from surefoot.state.reading.runs import amounts_json


def agent_json(agent: Agent) -> dict[str, Any]:
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


def _step_json(agent: Agent, step: Step, unknown: frozenset[str]) -> dict[str, Any]:
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
        # the source does not show all of its targets
        "elsewhere": step.name in unknown,
    }


def _edge_json(edge: Edge) -> dict[str, Any]:
    return {"from": edge.source, "kind": edge.kind, "to": edge.target, "agent": edge.agent}


def _compensations(agent: Agent) -> list[dict[str, Any]]:
    """Return the edges to compensation steps. They have no source: any run can end so."""
    return [
        {"from": None, "kind": ending, "to": step, "agent": False}
        for ending, step in agent.compensations.items()
    ]


def _flow_json(flow: Flow) -> dict[str, Any]:
    return {
        "key": flow.key is not None,
        "concurrency": flow.at_once,
        "singleton": flow.singleton,
        "throttle": _rate_json(flow.throttle),
        "debounce_s": duration_s(flow.debounce),
        "dedup_s": duration_s(flow.dedup),
        "priority": flow.priority is not None,
    }


def _rate_json(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else {"limit": rate.limit, "per_s": rate.per_ms / 1000}


def _triggers_json(agent: Agent) -> list[dict[str, Any]]:
    """Return what starts runs of the agent: its kind and its origin."""
    found: list[dict[str, Any]] = [
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
