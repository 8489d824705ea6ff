"""Loads the agents of a user's file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from surefoot.state.agent import Agent
from surefoot.state.errors import ConfigError
from surefoot.state.lint import check
from surefoot.state.topics import OUTBOX


def load_agents(paths: Sequence[Path]) -> list[Agent]:
    """Import the files and return every Agent that they define at top level, checked.

    Raises: ConfigError — no such file, no agent in it, two of one name, or a declaration that
    cannot work. What the file itself raises goes through as it is.
    """
    agents: dict[str, Agent] = {}
    for path in paths:
        module_agents = [a for a in vars(_import(path)).values() if isinstance(a, Agent)]
        if not module_agents:
            raise ConfigError(
                "SF1102", f'{path} defines no agent; write `my_agent = Agent("my-agent")`'
            )
        for agent in module_agents:
            if agent.name == OUTBOX:
                raise ConfigError(
                    "SF1103", f"{path}: the agent name {OUTBOX!r} is the built-in relay's"
                )
            if agents.setdefault(agent.name, agent) is not agent:
                raise ConfigError("SF1104", f"{path}: there are two agents named {agent.name!r}")
            check(agent)
    return list(agents.values())


def pool_agents(agents: Sequence[Agent], pool: str) -> list[Agent]:
    """The agents that run the steps of that pool.

    Raises: ConfigError — none of these agents has a step in it.
    """
    found = [agent.pool(pool) for agent in agents if pool in agent.pools]
    if not found:
        there = sorted({name for agent in agents for name in agent.pools})
        raise ConfigError(
            "SF1110",
            f"no step is in a pool named {pool!r}; there are: {', '.join(there) or 'none'}",
        )
    return found


def _import(path: Path) -> object:
    if not path.is_file():
        raise ConfigError("SF1101", f"no such file: {path}")
    name = f"surefoot_agents.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError("SF1101", f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


if __name__ == "__main__":  # only to see whether it loads: infra/reload.py
    try:
        load_agents([Path(path) for path in sys.argv[1:]])
    except ConfigError as problem:
        sys.exit(f"surefoot: {problem}")
