"""`surefoot dev`: everything that an agent needs, for the person who writes it.

A tracker without faults runs beside it, so that the effects of the sample delivery have somewhere
to go.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import signal
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from surefoot.infra import logging
from surefoot.infra.backend import Backend
from surefoot.infra.backends import open_backend
from surefoot.infra.broker_config import say
from surefoot.infra.clock import SystemClock
from surefoot.infra.demo.auditor import Request
from surefoot.infra.demo.deliveries import issue_event
from surefoot.infra.demo.tracker import Tracker
from surefoot.infra.loader import load_agents
from surefoot.infra.serve_main import serve
from surefoot.infra.settings import Settings, load_settings
from surefoot.infra.stack import (
    Site,
    children,
    create_topics,
    require_free,
    running_broker,
    running_log,
    until_ready,
)
from surefoot.infra.supervisor import Supervisor
from surefoot.infra.terminal import plain_console, printable
from surefoot.infra.topics import names_of, specs_for
from surefoot.schemas.codec import UndecodableError, decode
from surefoot.state.agent import Agent
from surefoot.state.errors import ConfigError
from surefoot.state.ports import In
from surefoot.state.topics import OUTBOX, AgentTopics

#: beyond the workers' own drain deadline, before they are killed; in seconds
GRACE_S = 10.0
#: of the embedded log, where there is no Kafka and none is named; from where the command is run
FILE = Path("surefoot.db")


def run_broker() -> None:
    """A broker in the foreground, until Ctrl-C or SIGTERM."""
    logging.configure(level="WARNING")
    with running_broker(load_settings(bootstrap_servers=None)) as broker:
        say(f"Kafka {broker.version} ({broker.kind}); Ctrl-C stops it, and its data goes with it")
        plain_console().print(f"SUREFOOT_BOOTSTRAP_SERVERS={broker.bootstrap}", soft_wrap=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            say("stopping")


def run_dev(agent_file: Path, *, port: int, processes: int) -> int:
    """Run until Ctrl-C or SIGTERM. Returns the exit status of what was run.

    Raises: ConfigError — what has to change before it can start.
    """
    logging.configure(level="CRITICAL")  # the processes have their own
    agents = load_agents([agent_file])
    settings = load_settings(gateway_port=port)
    require_free(settings.gateway_host, port)
    made = _make_secrets(agents, settings)
    with running_log(settings, FILE) as site:
        here = load_settings(gateway_port=port, **site.found_by)
        if here.embedded_path is not None and processes > 1:
            raise ConfigError(
                f"--processes {processes} needs Kafka: an embedded log has one process; leave it "
                "out, or set SUREFOOT_BOOTSTRAP_SERVERS instead of SUREFOOT_LOG"
            )
        return asyncio.run(_Dev(agents, agent_file, here, site, made).run(processes))


def _make_secrets(agents: Sequence[Agent], settings: Settings) -> dict[str, str]:
    """Give each webhook source without a secret a strong one. Returns those, by variable."""
    known = settings.webhook_secrets()
    sources = {trigger.source for agent in agents for trigger in agent.webhooks} - known.keys()
    made = {_variable(source): secrets.token_hex(32) for source in sorted(sources)}
    os.environ.update(made)
    return made


def _variable(source: str) -> str:
    return f"SUREFOOT_WEBHOOK_{source.upper().replace('-', '_')}_SECRET"


class InProcess:
    """All parts in this process, to be run and stopped as a Supervisor is."""

    def __init__(self, agents: Sequence[Agent], settings: Settings, backend: Backend) -> None:
        self._agents = agents
        self._settings = settings
        self._backend = backend
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        """Finish; asked again: hurry."""
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def run(self) -> int:
        return await serve(self._agents, self._settings, self._backend, self._stop, self._hurry)


class _Dev:
    def __init__(
        self,
        agents: Sequence[Agent],
        agent_file: Path,
        settings: Settings,
        site: Site,
        made: Mapping[str, str],
    ) -> None:
        self._agents = agents
        self._agent_file = agent_file
        self._settings = settings
        self._site = site
        self._made = made
        self._out = plain_console()
        self._url = f"http://{settings.gateway_host}:{settings.gateway_port}"

    async def run(self, processes: int) -> int:
        """Start all parts, follow the runs, and stop the parts in the end."""
        one = self._settings.embedded_path is not None
        async with open_backend(self._settings, SystemClock(), owner=one) as backend:
            specs = specs_for(names_of(self._agents), self._settings)
            await create_topics(self._settings, backend, specs)
            return await self._run(backend, self._parts(backend, processes))

    def _parts(self, backend: Backend, processes: int) -> Supervisor | InProcess:
        if self._settings.embedded_path is not None:
            return InProcess(self._agents, self._settings, backend)
        env = {**self._site.env, "SUREFOOT_GATEWAY_PORT": str(self._settings.gateway_port)}
        pools = sorted({pool for agent in self._agents for pool in agent.pools})
        return Supervisor(
            children(self._agent_file, processes=processes, env=env, logs=None, pools=pools),
            grace_s=self._settings.drain_timeout_s + GRACE_S,
        )

    async def _run(self, backend: Backend, parts: Supervisor | InProcess) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, parts.stop)
        running = asyncio.create_task(parts.run())
        names = [agent.name for agent in self._agents]
        following = asyncio.create_task(self._follow(backend, [*names, OUTBOX]))
        try:
            done, _ = await asyncio.wait({running, following}, return_when="FIRST_COMPLETED")
            if following in done:
                following.result()
            say("stopped gateway, workers and relay")
        finally:
            following.cancel()
            parts.stop()
            await asyncio.wait({running, following})
        return running.result()

    async def _follow(self, backend: Backend, names: Sequence[str]) -> None:
        """Show what happens, until cancelled."""
        tails = [
            backend.tail(
                AgentTopics(self._settings.app, name).events, self._show_event, from_end=True
            )
            for name in names
        ]
        with tempfile.TemporaryDirectory(prefix="surefoot-dev-") as folder:
            try:
                async with Tracker(
                    Path(folder) / "requests.jsonl", seed=None, on_request=self._show_request
                ) as tracker:
                    for tail in tails:
                        tail.start()
                    await until_ready(self._url)
                    self._welcome(tracker.url)
                    await asyncio.Event().wait()
            finally:
                for tail in tails:
                    await tail.stop()

    # What is shown ---------------------------------------------------------------------------

    def _show_event(self, record: In) -> None:
        try:
            event = decode(record.value, "Event")[1]
        except UndecodableError as error:
            self._line(record.timestamp_ms, f"{record.topic}: {error}")
            return
        told = [event["agent"], event["run_id"], event["type"], event["step"] or ""]
        if event["next_step"]:
            told.append(f"-> {event['next_step']}")
        if event["result"] is not None and event["agent"] != OUTBOX:
            told.append(event["result"].decode("utf-8", "replace"))
        if event["failure"] is not None and event["type"] != "run.completed":
            told.append(f"{event['failure']['code']}: {event['failure']['message']}")
        self._line(event["at_ms"], " ".join(part for part in told if part))

    def _show_request(self, request: Request) -> None:
        told = f"sample tracker got {request.method} {request.path} ({request.key})"
        self._out.print(f"         {printable(told)}", soft_wrap=True)

    def _line(self, at_ms: int, text: str) -> None:
        time = datetime.fromtimestamp(at_ms / 1000).astimezone()
        self._out.print(f"{time:%H:%M:%S} {printable(text)}", soft_wrap=True)

    def _welcome(self, tracker_url: str) -> None:
        out = self._out
        where = " ".join(f"{name}={shlex.quote(value)}" for name, value in self._site.env.items())
        lines = [
            "",
            f"log      {self._site.told}",
            f"gateway  {self._url}",
            f"agents   {', '.join(agent.name for agent in self._agents)}",
            f"runs     {where} surefoot runs list {self._agents[0].name}",
            *(f"secret   {variable}={secret}" for variable, secret in self._made.items()),
        ]
        for agent in self._agents:
            lines += ["", f"Start a run of {agent.name}:", "", self._start_command(agent)]
        if any(trigger.source == "github" for agent in self._agents for trigger in agent.webhooks):
            lines += ["", "Send a signed delivery, as GitHub does:", ""]
            lines.append(self._delivery_command(tracker_url))
        lines += ["", "Ctrl-C stops everything. What the runs do:", ""]
        for line in lines:
            out.print(line, soft_wrap=True)

    def _start_command(self, agent: Agent) -> str:
        payload = {"payload": sample(agent.start_step.adapter.json_schema())}
        return (
            f"curl -sS {self._url}/runs/{agent.name} -H 'Content-Type: application/json' "
            f"-d {_quoted(json.dumps(payload))}"
        )

    def _delivery_command(self, tracker_url: str) -> str:
        example = issue_event(1, Random(1))  # noqa: S311  (the same one every time)
        body = example.replace(b"https://api.github.com", tracker_url.encode())
        secret = os.environ[_variable("github")].split(",")[0]
        return (
            f"BODY={_quoted(body.decode())}; "
            f"curl -sS {self._url}/webhooks/github -H 'Content-Type: application/json' "
            '-H "X-GitHub-Event: issues" -H "X-GitHub-Delivery: $(openssl rand -hex 16)" '
            '-H "X-Hub-Signature-256: sha256=$(printf %s "$BODY" | '
            f"openssl dgst -sha256 -hmac {shlex.quote(secret)} | sed 's/.* //')\" "
            '--data-binary "$BODY"'
        )


def _quoted(text: str) -> str:
    """JSON for a shell: a single quote is written with JSON's own escape."""
    return "'" + text.replace("'", "\\u0027") + "'"


def sample(schema: Mapping[str, Any]) -> Any:
    """A value that a JSON schema (of pydantic's making) allows: what it requires and no more."""
    return _sample(schema, schema.get("$defs", {}), frozenset())


def _sample(schema: Mapping[str, Any], defs: Mapping[str, Any], parents: frozenset[str]) -> Any:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return None if name in parents else _sample(defs[name], defs, parents | {name})
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return _sample(choices[0], defs, parents)
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {
                name: _sample(properties[name], defs, parents)
                for name in schema.get("required", ())
            }
        case "array":
            return [_sample(item, defs, parents) for item in schema.get("prefixItems", ())]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case "string":
            return "text"
    return None
