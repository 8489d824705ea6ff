"""Names of the agents that the system derives from declared ones."""

from __future__ import annotations

#: reserved; no pool can have this name
SCHEDULES = "schedules"


def pool_agent_name(agent: str, pool: str) -> str:
    """Return the name of the agent that runs a pool's steps. Declared agents have no dot."""
    return f"{agent}.{pool}"


def schedules_agent_name(agent: str) -> str:
    """Return the name of the agent that keeps an agent's schedules."""
    return pool_agent_name(agent, SCHEDULES)
