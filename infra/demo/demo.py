"""`surefoot demo`: a real log, real processes, real kills, and then the audit.

The gateway, two workers and the relay run as child processes of a supervisor, under a topic prefix
of their own; on the embedded log they are one child process. Signed deliveries arrive at an even
pace, some of them twice; the tracker fails now and then; and while runs are in progress, a busy
process gets SIGKILL. When every run has ended everything is stopped, and the auditor reads all
topics from the beginning.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from surefoot.consumers.partition.ending import stop_all
from surefoot.infra.broker.config import free_ports, say
from surefoot.infra.demo.auditor import Report, audit
from surefoot.infra.demo.deliveries import FORGED, Sender, SentOutcome, plan
from surefoot.infra.demo.display import Display, print_report
from surefoot.infra.demo.evidence import read_topics
from surefoot.infra.demo.progress import Kill, Progress, WorkerLog
from surefoot.infra.demo.tracker import Tracker, read_book
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.local.stack import (
    OUT_ALLOW_HERE,
    Site,
    children,
    create_topics,
    one_child,
    running_log,
    until_ready,
)
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import capabilities, open_backend
from surefoot.infra.runtime import crash, logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.exits import EXIT_CLEAN, EXIT_FAULT, EXIT_INTERRUPTED
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.runtime.supervisor import Child, Supervisor
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import OUTBOX, AgentTopics

#: the default agent
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "triage.py"
WORKERS = 2
#: time between two deliveries, and extra time of each step, like a call to a model; in seconds
PACE_S = 0.22
THINK_S = 0.25
#: how long after the last delivery everything must have ended, in seconds
SETTLE_S = 120.0
_POLL_S = 0.05
_ANSWER_S = 0.2


def run_demo(agent_file: Path | None, *, deliveries: int, kills: int, seed: int | None) -> int:
    """Run the demo. Returns the exit status.

    0 only if nothing was lost, doubled or left unfinished; 130 if interrupted.

    Raises: ConfigError — the log cannot be used, or the agent is not suitable.
    """
    logging.configure(level="CRITICAL")
    agent_file = agent_file or EXAMPLE
    agent = _suitable(agent_file)
    seed = secrets.randbelow(2**31) if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="surefoot-demo-"))
    with running_log(load_settings(), folder / "demo.db") as site:
        settings = load_settings(
            app=f"demo-{secrets.token_hex(4)}",
            gateway_host="127.0.0.1",
            gateway_port=free_ports(1)[0],
            **site.found_by,
        )
        demo = _Demo(
            agent, agent_file, settings, site, folder, deliveries=deliveries, kills=kills, seed=seed
        )
        code = asyncio.run(demo.run())
    if code == EXIT_FAULT:
        say(f"the output of the processes is in {folder}")
    else:
        shutil.rmtree(folder)
    return code


def _suitable(agent_file: Path) -> str:
    agents = load_agents([agent_file])
    fits = [t for a in agents for t in a.webhooks if t.source == "github"]
    if len(agents) != 1 or not fits:
        raise ConfigError(
            "SF1008",
            f"{agent_file}: the demo needs a file of one agent that maps GitHub's issues events, "
            'with @agent.webhook("github", event="issues"), as examples/triage.py does',
        )
    return agents[0].name


class _Demo:
    """One demo, from the topics to the verdict."""

    def __init__(
        self,
        agent: str,
        agent_file: Path,
        settings: Settings,
        site: Site,
        folder: Path,
        *,
        deliveries: int,
        kills: int,
        seed: int,
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._site = site
        self._folder = folder
        self._kills = kills
        #: kills requested in the dashboard
        self._asked = 0
        #: kills a busy worker, while there are workers
        self._crash: Callable[[], None] = lambda: None
        self._seed = seed
        self._secret = secrets.token_hex(32)
        self._clock = SystemClock()
        self._random = Random(seed)  # noqa: S311  (a demo that can be repeated)
        self._plan = plan(deliveries, self._random)
        self._specs = specs_for([agent], settings)
        self._children = self._parts(agent_file)
        self._outcome = SentOutcome()
        self._progress = Progress(self._clock.monotonic_s)
        self._display = Display(
            self._progress,
            self._outcome,
            deliveries=deliveries,
            monotonic_s=self._clock.monotonic_s,
        )

    def _parts(self, agent_file: Path) -> list[Child]:
        env = {
            **self._site.env,
            "SUREFOOT_APP": self._settings.app,
            "SUREFOOT_GATEWAY_HOST": self._settings.gateway_host,
            "SUREFOOT_GATEWAY_PORT": str(self._settings.gateway_port),
            "SUREFOOT_WEBHOOK_GITHUB_SECRET": self._secret,
            "SUREFOOT_OUT_ALLOW": OUT_ALLOW_HERE,
            "TRIAGE_THINK_S": str(THINK_S),
            crash.VARIABLE: str(os.getpid()),
        }
        if capabilities(self._settings).many_processes:
            return children(
                agent_file, self._settings, processes=WORKERS, env=env, logs=self._folder
            )
        return [one_child(agent_file, env=env, logs=self._folder)]

    @property
    def _workers(self) -> list[str]:
        """Names of the children that run the agent's steps."""
        return [
            child.name for child in self._children if child.name.startswith(("worker", "serve"))
        ]

    async def run(self) -> int:
        """Act, stop everything, audit. A first SIGINT or SIGTERM ends it cleanly."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        # delayed, so that the gateway, which may be the one to die, can answer first
        loop.add_signal_handler(crash.SIGNAL, lambda: loop.call_later(_ANSWER_S, self._crash))
        began_s = self._clock.monotonic_s()
        app = self._settings.app
        self._display.say(f"{self._site.told}, topics {app}.*, seed {self._seed}")
        async with open_backend(self._settings, self._clock, access="make") as backend:
            acting = asyncio.create_task(self._act(backend))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({acting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not acting.done():
                self._display.say("interrupted: stopping")
                acting.cancel()
                await asyncio.wait({acting})
                return EXIT_INTERRUPTED
            acting.result()
            return await self._judge(backend, began_s)

    async def _act(self, backend: Backend) -> None:
        """Run the installation and drive it."""
        book = self._folder / "requests.jsonl"
        await create_topics(backend, self._specs)
        async with Tracker(book, seed=self._seed) as tracker:
            found = {"TRIAGE_TRACKER_URL": tracker.url}
            supervisor = Supervisor(
                [replace(child, env={**child.env, **found}) for child in self._children],
                grace_s=self._settings.drain_timeout_s + 10.0,
            )
            supervising = asyncio.create_task(supervisor.run())
            try:
                await self._drive(backend, supervisor)
            finally:
                supervisor.stop()
                await asyncio.wait({supervising})

    async def _drive(self, backend: Backend, supervisor: Supervisor) -> None:
        """Send deliveries, kill workers, and wait until everything has ended."""
        url = f"http://{self._settings.gateway_host}:{self._settings.gateway_port}"
        logs = {
            name: WorkerLog(self._folder / f"{name}.log", self._agent) for name in self._workers
        }
        tails = [
            backend.tail(
                AgentTopics(self._settings.app, name).events,
                self._progress.apply,
                from_end=False,
            )
            for name in (self._agent, OUTBOX)
        ]
        try:
            for tail in tails:
                tail.start()
            await until_ready(url)
            for worker_log in logs.values():
                await _until(worker_log.ready, SETTLE_S)
            names = ", ".join(child.name for child in self._children)
            self._display.say(f"dashboard, with a button that crashes a worker: {url}/ui/now")
            self._display.say(
                f"ready: {names}; deliveries begin, one every {PACE_S * 1000:g} ms. This sets the "
                "rates below; docs/performance.md has those that a machine can reach"
            )
            self._crash = partial(self._kill_one, supervisor, logs)
            async with self._display.shown():
                sender = Sender(url, self._secret, self._outcome)
                async with asyncio.TaskGroup() as group:
                    group.create_task(sender.send_all(self._plan, every_s=PACE_S))
                    group.create_task(self._kill_all(supervisor, logs))
                await _until(self._settled, SETTLE_S)
        finally:
            await stop_all(*tails)

    def _settled(self) -> bool:
        kills = self._progress.kills
        recovered = all(kill.recovered_s is not None for kill in kills)
        return recovered and self._progress.settled(self._outcome.accepted)

    # Kills -----------------------------------------------------------------------------------

    async def _kill_all(self, supervisor: Supervisor, logs: Mapping[str, WorkerLog]) -> None:
        """Kill workers, each at a random moment of its share of the deliveries."""
        for number in range(self._kills):
            share = (number + self._random.uniform(0.2, 0.8)) / self._kills
            after = int(share * len(self._plan) * 0.95)
            worker = self._random.choice(sorted(logs))
            if await _until(partial(self._worth_it, after, logs[worker]), SETTLE_S):
                self._kill(worker, supervisor, logs[worker])

    def _worth_it(self, after: int, worker_log: WorkerLog) -> bool:
        """Whether `after` deliveries are out, and the worker is ready, with runs in progress."""
        if self._outcome.sent < after or not worker_log.ready():
            return False
        return self._progress.under_way(worker_log.owned())

    def _kill_one(self, supervisor: Supervisor, logs: Mapping[str, WorkerLog]) -> None:
        """Kill a busy worker now, on request."""
        working = [name for name in sorted(logs) if self._worth_it(0, logs[name])]
        if working:
            self._asked += 1
            worker = self._random.choice(working)
            self._kill(worker, supervisor, logs[worker])
        else:
            self._display.say("no worker has a run in progress, so none is killed")

    def _kill(self, worker: str, supervisor: Supervisor, worker_log: WorkerLog) -> None:
        process = supervisor.running[worker]
        partitions = worker_log.owned()
        worker_log.next_process()
        kill = Kill(
            worker=worker,
            pid=process.pid,
            at_s=self._clock.monotonic_s(),
            at_ms=self._clock.now_ms(),
            partitions=partitions,
        )
        process.kill()
        self._progress.kills.append(kill)
        self._display.say(
            f"SIGKILL to {worker} (pid {kill.pid}), owner of partitions {sorted(partitions)}"
        )

    # The verdict -----------------------------------------------------------------------------

    async def _judge(self, backend: Backend, began_s: float) -> int:
        self._display.say("all stopped; the auditor reads the topics and the tracker's requests")
        topics = await read_topics(backend, self._specs)
        report = audit(topics, read_book(self._folder / "requests.jsonl"))
        figures = self._figures(report)
        figures["took_s"] = round(self._clock.monotonic_s() - began_s, 1)
        faults = self._faults(report)
        print_report(figures, report, faults)
        print(json.dumps(figures))  # noqa: T201  (the result)
        return EXIT_FAULT if faults else EXIT_CLEAN

    def _figures(self, report: Report) -> dict[str, Any]:
        outcome, kills = self._outcome, self._progress.kills
        recovered = [kill.recovered_s for kill in kills if kill.recovered_s is not None]
        return {
            "runs": report.runs,
            "completed": report.completed,
            "duplicate_deliveries": outcome.duplicates,
            "rejected_deliveries": outcome.rejected,
            "lost_deliveries": len(outcome.accepted - report.run_ids),
            "worker_kills": len(kills),
            "steps_committed": report.steps_committed,
            "steps_lost": report.count("lost"),
            "steps_committed_twice": report.count("twice"),
            "unfinished": report.count("unfinished"),
            "transactions": report.transactions,
            "transactions_torn": report.count("torn", "unfounded", "disorder", "undecodable"),
            "effects_expected": report.effects_expected,
            "effects_received": report.effects_received,
            "effects_lost": report.count("effect_lost"),
            "effects_duplicated": report.count("effect_twice"),
            "effects_phantom": report.count("phantom"),
            "effects_redelivered": report.effects_redelivered,
            "dead_letters": report.dead_letters,
            "recovery_first_step_s": [round(seconds, 2) for seconds in recovered],
            "steps_per_s": report.steps_per_s,
            "broker": self._site.version,
            "seed": self._seed,
        }

    def _faults(self, report: Report) -> list[str]:
        """Return the reasons for a nonzero exit status."""
        outcome, kills = self._outcome, self._progress.kills
        recovered = sum(kill.recovered_s is not None for kill in kills)
        wanted = self._kills + self._asked
        twice = sum(delivery.again_s is not None for delivery in self._plan)
        claims = {
            f"the auditor has {len(report.findings)} findings": not report.findings,
            f"{report.completed} of {report.runs} runs completed": report.completed == report.runs,
            "the runs are not those of the accepted deliveries": (
                report.run_ids == outcome.accepted
            ),
            f"{outcome.duplicates} of {twice} repeated deliveries were recognised": (
                outcome.duplicates == twice
            ),
            f"{outcome.rejected} of {FORGED} forged deliveries were refused": (
                outcome.rejected == FORGED
            ),
            f"the gateway gave unexpected answers: {outcome.strange[:5]}": not outcome.strange,
            f"{len(kills)} of {wanted} kills, {recovered} recoveries": (
                recovered == len(kills) == wanted
            ),
        }
        return [claim for claim, holds in claims.items() if not holds]


async def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until the condition holds. Returns whether it did in time."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  (of files and processes: nobody tells)
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False
    return True
