"""Names of the agents that the system makes of others."""

from __future__ import annotations

#: no pool can have this name
SCHEDULES = "schedules"


def pool_agent_name(agent: str, pool: str) -> str:
    """Name of the agent that runs the steps of a pool. No declared agent has a dot in its name."""
    return f"{agent}.{pool}"


def schedules_agent_name(agent: str) -> str:
    """Name of the agent that keeps its schedules."""
    return pool_agent_name(agent, SCHEDULES)
