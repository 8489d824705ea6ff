"""`surefoot dev`: everything that an agent needs, for its author.

Changes are loaded while it runs: the parts finish what is running and restart.

A tracker without faults runs beside it, as a target for the sample delivery's effects.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import signal
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from random import Random

from surefoot.consumers.builtin.signing import secret_variable
from surefoot.consumers.partition.ending import stop_all
from surefoot.infra.broker.config import say
from surefoot.infra.demo.auditor import Request
from surefoot.infra.demo.deliveries import issue_event
from surefoot.infra.demo.tracker import Tracker
from surefoot.infra.dev.reload import Changed, Reload
from surefoot.infra.dev.sample import sample
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.local.stack import (
    OUT_ALLOW_HERE,
    Site,
    children,
    create_topics,
    require_free,
    running_broker,
    running_log,
    until_ready,
)
from surefoot.infra.log.ports import Backend, Tail
from surefoot.infra.open_log import capabilities, open_backend
from surefoot.infra.processes.serve import serve
from surefoot.infra.processes.trigger import has_sources
from surefoot.infra.processes.webhooks_out import new_secret, without_secret
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.exits import EXIT_CONFIG
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.runtime.supervisor import DRAIN_GRACE_S, Supervisor
from surefoot.infra.runtime.terminal import plain_console, printable
from surefoot.infra.telemetry.setup import start_telemetry
from surefoot.schemas.codec.codec import UndecodableError, decode
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import OUTBOX, AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.runs import failure_text

#: the embedded log's file without Kafka and without a setting, relative to the current folder
FILE = Path("surefoot.db")


def run_broker() -> None:
    """Run a broker in the foreground, until Ctrl-C or SIGTERM."""
    logging.configure(level="WARNING")
    with running_broker(load_settings(bootstrap_servers=None)) as broker:
        say(f"Kafka {broker.version} ({broker.kind}); Ctrl-C stops it, and its data goes with it")
        plain_console().print(f"SUREFOOT_BOOTSTRAP_SERVERS={broker.bootstrap}", soft_wrap=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            say("stopping")


def run_dev(agent_file: Path, *, port: int, processes: int) -> int:
    """Run until Ctrl-C or SIGTERM. Returns the exit status of the parts.

    Raises: ConfigError — says what has to change before it can start.
    """
    logging.configure(level="CRITICAL")  # the child processes log themselves
    os.environ.setdefault("SUREFOOT_OUT_ALLOW", OUT_ALLOW_HERE)
    agents = load_agents([agent_file])
    settings = load_settings(gateway_port=port)
    require_free(settings.gateway_host, port)
    reload = Reload(agent_file)
    with running_log(settings, FILE) as site:
        here = load_settings(gateway_port=port, **site.found_by)
        alone = not capabilities(here).many_processes
        if alone and processes > 1:
            raise ConfigError(
                "SF1005",
                f"--processes {processes} needs Kafka: an embedded log has one process; leave it "
                "out, or set SUREFOOT_BOOTSTRAP_SERVERS instead of SUREFOOT_LOG",
            )
        if alone:  # all parts run in this process
            logging.configure(level="WARNING")
            start_telemetry(here)
        return asyncio.run(_Dev(agents, agent_file, here, site, reload).run(processes))


def _make_secrets(agents: Sequence[Agent], settings: Settings) -> dict[str, str]:
    """Generate a strong secret for each webhook source and subscription without one.

    Returns: the generated ones, by variable."""
    known = settings.webhook_secrets()
    sources = {trigger.source for agent in agents for trigger in agent.webhooks} - known.keys()
    made = {_variable(source): secrets.token_hex(32) for source in sorted(sources)}
    made |= {secret_variable(hook): new_secret() for hook in without_secret(agents, settings)}
    os.environ.update(made)
    return made


def _variable(source: str) -> str:
    return f"SUREFOOT_WEBHOOK_{source.upper().replace('-', '_')}_SECRET"


class InProcess:
    """Runs all parts in this process, with a Supervisor's interface."""

    def __init__(self, agents: Sequence[Agent], settings: Settings, backend: Backend) -> None:
        self._agents = agents
        self._settings = settings
        self._backend = backend
        self._stop, self._abort = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        """Finish what is running; called again: hurry."""
        (self._abort if self._stop.is_set() else self._stop).set()

    async def run(self) -> int:
        return await serve(self._agents, self._settings, self._backend, self._stop, self._abort)


class _Dev:
    def __init__(
        self,
        agents: Sequence[Agent],
        agent_file: Path,
        settings: Settings,
        site: Site,
        reload: Reload,
    ) -> None:
        self._agents = agents
        self._reload = reload
        #: whether the agents' files have changed since the start, and which did last
        self._again = False
        self._files: list[Path] = []
        self._agent_file = agent_file
        self._settings = settings
        self._site = site
        #: webhook secrets generated here, by variable
        self._made: dict[str, str] = {}
        #: those of them that have been shown
        self._told: set[str] = set()
        self._tails: dict[str, Tail] = {}
        self._out = plain_console()
        self._url = f"http://{settings.gateway_host}:{settings.gateway_port}"

    async def run(self, processes: int) -> int:
        """Start all parts, show the runs, and stop the parts at the end.

        Whenever the agents' files have changed and load, restart the parts with the new agents."""
        alone = not capabilities(self._settings).many_processes
        async with (
            open_backend(self._settings, SystemClock(), owner=alone) as backend,
            Tracker(None, seed=None, on_request=self._show_request) as tracker,
        ):
            await self._prepare(backend, self._agents)
            try:
                while True:
                    parts = self._parts(backend, processes)
                    code = await self._life(backend, parts, tracker.url)
                    if code is not None:
                        return code
                    self._again = True
            finally:
                await stop_all(*self._tails.values())

    async def _prepare(self, backend: Backend, agents: Sequence[Agent]) -> None:
        """Prepare secrets and topics. Raises ConfigError — these agents cannot run here."""
        self._made |= _make_secrets(agents, self._settings)
        await create_topics(backend, specs_for(names_of(agents), self._settings))

    def _parts(self, backend: Backend, processes: int) -> Supervisor | InProcess:
        if not backend.capabilities.many_processes:
            return InProcess(self._agents, self._settings, backend)
        env = {**self._site.env, "SUREFOOT_GATEWAY_PORT": str(self._settings.gateway_port)}
        pools = sorted({pool for agent in self._agents for pool in agent.pools})
        return Supervisor(
            children(
                self._agent_file,
                self._settings,
                processes=processes,
                env=env,
                logs=None,
                pools=pools,
                trigger=has_sources(self._agents),
            ),
            grace_s=self._settings.drain_timeout_s + DRAIN_GRACE_S,
        )

    async def _life(
        self, backend: Backend, parts: Supervisor | InProcess, tracker_url: str
    ) -> int | None:
        """Run the parts until they end. Returns the exit status; None: changed agents loaded."""
        stopping = asyncio.Event()

        def stop() -> None:
            stopping.set()
            parts.stop()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        running = asyncio.create_task(self._run(parts))
        following = asyncio.create_task(self._follow(backend, tracker_url))
        changed = asyncio.create_task(self._changed(backend))
        stopped = asyncio.create_task(stopping.wait())
        tasks = {running, following, changed, stopped}
        try:
            await asyncio.wait({running, following, changed}, return_when="FIRST_COMPLETED")
            if following.done():
                following.result()
            if running.done() and self._again and running.result() == EXIT_CONFIG:
                say("nothing runs until the file is changed again; Ctrl-C stops")
                await asyncio.wait({changed, stopped}, return_when="FIRST_COMPLETED")
            if changed.done() and not stopping.is_set():
                parts.stop()
                await asyncio.wait({running})
                if not stopping.is_set():
                    self._agents, self._files = changed.result().agents, changed.result().files
                    return None
            say("stopped gateway, workers and relay")
        finally:
            parts.stop()
            for task in tasks - {running}:
                task.cancel()
            await asyncio.wait(tasks)
        return running.result()

    async def _run(self, parts: Supervisor | InProcess) -> int:
        try:
            return await parts.run()
        except ConfigError as error:
            if not self._again:
                raise
            say(f"surefoot: {error}")
            return EXIT_CONFIG

    async def _changed(self, backend: Backend) -> Changed:
        """Wait for changed agents that can run here."""
        while True:
            changed = await self._reload.changed()
            try:
                await self._prepare(backend, changed.agents)
            except ConfigError as error:
                say(f"surefoot: {error}")
            else:
                return changed

    async def _follow(self, backend: Backend, tracker_url: str) -> None:
        """Show events until cancelled. An agent seen once is followed from then on."""
        for name in (*(agent.name for agent in self._agents), OUTBOX):
            if name not in self._tails:
                topic = AgentTopics(self._settings.app, name).events
                self._tails[name] = backend.tail(topic, self._show_event, from_end=True)
                self._tails[name].start()
        try:
            await until_ready(self._url)
        except ConfigError as error:
            if not self._again:
                raise
            say(f"surefoot: {error}")
        else:
            if self._again:
                self._tell_changed()
            else:
                self._welcome(tracker_url)
            self._told = set(self._made)
        await asyncio.Event().wait()

    # What is shown ---------------------------------------------------------------------------

    def _show_event(self, record: ConsumerRecord) -> None:
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
            told.append(failure_text(event["failure"]))
            told += [f"at {frame}" for frame in event["failure"]["frames"][-1:]]
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
            f"look at  {self._url}/ui/ (the dashboard)",
            f"agents   {', '.join(agent.name for agent in self._agents)}",
            *(f"watches  {each}" for each in self._watched()),
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

    def _tell_changed(self) -> None:
        """Print one line, and any secrets that have not been shown."""
        names = ", ".join(os.path.relpath(path) for path in self._files)
        say(f"{names} changed: {', '.join(agent.name for agent in self._agents)} restarted")
        for variable in sorted(self._made.keys() - self._told):
            self._out.print(f"secret   {variable}={self._made[variable]}", soft_wrap=True)

    def _watched(self) -> list[str]:
        """Return the queues and folders that start runs, each once."""
        told = [f"queue {each.queue}" for agent in self._agents for each in agent.queues]
        told += [f"files {each.pattern}" for agent in self._agents for each in agent.folders]
        return list(dict.fromkeys(told))

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
    """Quote JSON for a shell: a single quote becomes JSON's own escape."""
    return "'" + text.replace("'", "\\u0027") + "'"
