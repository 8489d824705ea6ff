"""Outgoing webhooks: list subscriptions, and send a test event."""

from __future__ import annotations

import asyncio
from typing import TypedDict

import typer

from surefoot.commands.groups import group
from surefoot.commands.options import AgentFile, AgentFiles, Json, NameArgument
from surefoot.commands.output import print_each
from surefoot.consumers.builtin.signing import secret_variable, signers_of
from surefoot.consumers.builtin.webhooks_out import judge_hook, signed_request
from surefoot.infra.http.deliver import HttpDeliver
from surefoot.infra.processes.webhooks_out import require_secrets, without_secret
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.runtime.terminal import printable
from surefoot.schemas.payload import strict_json
from surefoot.state.declare.subscriptions import iso
from surefoot.state.egress.policy import parse_allowed
from surefoot.state.errors import ConfigError, RetryableError, TerminalError
from surefoot.state.steps.webhook_effect import WebhookEffect

#: type of the test event
TEST_EVENT = "surefoot.test"


app = group("Outgoing webhooks: list subscriptions, and test one.")


class SubscriptionJson(TypedDict):
    agent: str
    name: str
    url: str
    events: list[str]
    #: whether a function chooses among the events
    filtered: bool
    #: "set" if this process has the secret
    secret: str | None


@app.command("list")
def list_subscriptions(agent_files: AgentFiles, as_json: Json = False) -> None:
    """List subscriptions, and whether their secrets are set here."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    agents, settings = load_agents(agent_files), load_settings()
    missing = without_secret(agents, settings)
    found: list[SubscriptionJson] = [
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
    titles = ("AGENT", "NAME", "URL", "EVENTS", "SECRET")
    print_each(found, dict, titles, _cells, wraps="EVENTS", as_json=as_json)


def _cells(each: SubscriptionJson) -> tuple[str, ...]:
    return (
        each["agent"],
        each["name"],
        printable(each["url"]),
        " ".join([*each["events"], *(["where ..."] if each["filtered"] else [])]),
        "set" if each["secret"] else f"set {secret_variable(each['name'])}",
    )


@app.command("test")
def try_subscription(agent_file: AgentFile, name: NameArgument) -> None:
    """Send one signed `surefoot.test` event to a subscription's URL, once, and show the status.

    Sends as a relay with these settings would: with their secret, and only to targets that
    SUREFOOT_OUT_ALLOW allows. Exit status 1 when it was not delivered.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    agents, settings, clock = load_agents([agent_file]), load_settings(), SystemClock()
    having = [agent for agent in agents if name in agent.subscriptions]
    if not having:
        names = ", ".join(name for agent in agents for name in agent.subscriptions) or "none"
        raise ConfigError(
            "SF1138", f"{agent_file} has no subscription {name!r}; its subscriptions: {names}"
        )
    require_secrets(having, settings)
    agent, now_ms = having[0], clock.now_ms()
    body = {"type": TEST_EVENT, "timestamp": iso(now_ms), "data": {"agent": agent.name}}
    message = WebhookEffect(
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
        raise typer.Exit(1) from None
    typer.echo(f"{message.id}: delivered, {status}")
