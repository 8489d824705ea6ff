"""Webhooks that go out: what is declared, and one to try it with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from surefoot.commands.readers import table
from surefoot.consumers.builtin.signing import secret_variable, signers_of
from surefoot.consumers.builtin.webhooks_out import HookDelivery, judge_hook, signed_request
from surefoot.infra.http.deliver import HttpDeliver
from surefoot.infra.processes.webhooks_out import require_secrets, without_secret
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.runtime.terminal import plain_console, printable
from surefoot.schemas.payload import strict_json
from surefoot.state.declare.subscriptions import iso
from surefoot.state.egress.policy import parse_allowed
from surefoot.state.errors import ConfigError, RetryableError, TerminalError

#: type of the event that is sent to try it
TEST = "surefoot.test"


def list_subscriptions(agent_files: Sequence[Path], *, as_json: bool) -> None:
    """One line each."""
    logging.configure(level="CRITICAL")  # what matters is raised
    agents, settings = load_agents(agent_files), load_settings()
    missing = without_secret(agents, settings)
    found: list[dict[str, Any]] = [
        {
            "agent": agent.name,
            "name": each.name,
            "url": each.url,
            "events": sorted(each.events),
            "filtered": each.where is not None,
            "secret": None if each.name in missing else "set",
        }
        for agent in agents
        for each in agent.subscriptions.values()
    ]
    if as_json:
        for fields in found:
            typer.echo(json.dumps(fields))
        return
    titles = ("AGENT", "NAME", "URL", "EVENTS", "SECRET")
    rows = [
        (
            str(each["agent"]),
            str(each["name"]),
            printable(str(each["url"])),
            " ".join(map(str, [*each["events"], *(["where ..."] if each["filtered"] else [])])),
            "set" if each["secret"] else f"set {secret_variable(str(each['name']))}",
        )
        for each in found
    ]
    plain_console().print(table(titles, rows, wraps="EVENTS"))


def try_subscription(agent_file: Path, name: str) -> int:
    """Returns the exit status.

    Raises: ConfigError — there is no such subscription, or it has no secret.
    """
    logging.configure(level="CRITICAL")  # what matters is raised
    agents, settings, clock = load_agents([agent_file]), load_settings(), SystemClock()
    having = [agent for agent in agents if name in agent.subscriptions]
    if not having:
        names = ", ".join(name for agent in agents for name in agent.subscriptions) or "none"
        raise ConfigError("SF1138", f"{agent_file} has no subscription {name!r}; it has: {names}")
    require_secrets(having, settings)
    agent, now_ms = having[0], clock.now_ms()
    body = {"type": TEST, "timestamp": iso(now_ms), "data": {"agent": agent.name}}
    message = HookDelivery(
        hook=name,
        url=agent.subscriptions[name].url,
        id=f"test-{clock.unique()}",
        body=strict_json(body).decode(),
    )
    request = signed_request(message, signers_of(settings.hook_secrets()), now_ms)

    async def send() -> int:
        deliver = HttpDeliver(parse_allowed(settings.out_allow))
        try:
            return judge_hook(await deliver(request), clock.now_ms())
        finally:
            await deliver.close()

    try:
        status = asyncio.run(send())
    except (RetryableError, TerminalError) as error:
        typer.echo(f"{message.id}: {printable(str(error))}", err=True)
        return 1
    typer.echo(f"{message.id}: taken, {status}")
    return 0
