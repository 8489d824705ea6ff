"""Faults drawn from a seed, one after the other, against workers on one real broker.

    python -m tests.chaos.faults.storm --seed 7 --minutes 10

Workers are killed and frozen, and the network between them and the broker mistreats requests.
When the faults have stopped, everything that was asked for must get done, and the history and the
outside world are checked. Prints the faults by kind, the violations, and one line of figures; the
status is 1 if anything was violated. The same seed draws the same faults; what they meet depends on
the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.chaos.faults.networked import Networked, start_networked
from tests.chaos.faults.proxy import Action, Api, Proxy
from tests.chaos.processes.agents import chain
from tests.chaos.processes.lives import Life, Lives, lives
from tests.checker import Asked, History, Promise, check
from tests.checker.inputs import caught_up
from tests.checker.kafka import read_history
from tests.checker.view import View
from tests.support.cluster import Cluster, cluster
from tests.support.effect_target import Sink, sink
from tests.support.eventually import until

SETTINGS = {
    "heartbeat_interval_ms": 200,
    "producer_request_timeout_ms": 500,
    "transaction_timeout_ms": 1_000,
    "session_timeout_ms": 2_000,
    "rebalance_timeout_ms": 4_000,
    "partitions": 4,
}
WORKERS = 2
#: started with every fault
RUNS = 4
#: a fault that meets nobody for so long is taken back, in seconds
PATIENCE_S = 30.0
#: how long all that was asked for may take once the faults have stopped, in seconds
HEAL_S = 300.0

_APIS = (
    Api.END_TXN,
    Api.TXN_OFFSET_COMMIT,
    Api.INIT_PRODUCER_ID,
    Api.PRODUCE,
    Api.OFFSET_FETCH,
)
_NETWORK: tuple[tuple[Action, bool], ...] = (
    ("hold", False),
    ("hold", True),
    ("drop", False),
    ("drop", True),
    ("cut", False),
    ("reset", False),
    ("duplicate", False),
)


@dataclass(slots=True)
class Tally:
    """What a storm has done, and what has come of it."""

    seed: int
    #: faults that got hold of something, and those that were felt, by kind
    fired: Counter[str] = field(default_factory=Counter)
    bitten: Counter[str] = field(default_factory=Counter)
    drawn: int = 0
    runs: list[str] = field(default_factory=list)
    steps: int = 0
    violations: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"storm seed={self.seed} faults={self.drawn} fired={self.fired.total()} "
            f"bitten={self.bitten.total()} runs={len(self.runs)} steps={self.steps} "
            f"violations={len(self.violations)}"
        )


class Storm:
    def __init__(
        self,
        seed: int,
        networked: Networked,
        kafka: Cluster,
        net: Proxy,
        children: Lives,
        target: Sink,
    ) -> None:
        self.tally = Tally(seed)
        self._networked = networked
        self._random = random.Random(seed)
        self._kafka = kafka
        self._net = net
        self._children = children
        self._target = target
        self._workers: list[Life] = []

    async def blow(self, go_on: Callable[[Tally], bool]) -> Tally:
        """Faults while `go_on` says so; then none, and the check."""
        for slot in range(WORKERS):
            self._workers.append(await self._children.begin("chain", "outbox", slot=slot))
        for worker in self._workers:
            await worker.says("assignment")
        while go_on(self.tally):
            await self._ask()
            self.tally.drawn += 1
            kind = self._random.choices(("kill", "freeze", "network"), (1, 1, 4))[0]
            await {"kill": self._kill, "freeze": self._freeze, "network": self._mistreat}[kind]()
            await self._revive()
        await self._heal()
        return self.tally

    async def _ask(self) -> None:
        for _ in range(RUNS):
            run_id = f"r{len(self.tally.runs)}"
            self.tally.runs.append(run_id)
            await self._kafka.start(chain, run_id)

    # Faults ----------------------------------------------------------------------------------

    async def _kill(self) -> None:
        worker = self._random.choice(self._workers)
        worker.process.kill()
        await worker.ended()
        self.tally.fired["kill"] += 1
        self.tally.bitten["kill"] += 1
        self._workers[self._workers.index(worker)] = await self._again(worker)

    async def _freeze(self) -> None:
        """Shorter, or longer, than the session of a member."""
        worker = self._random.choice(self._workers)
        for_s = self._random.choice((0.7, 1.5, 3.0))
        worker.process.send_signal(signal.SIGSTOP)
        await worker.frozen()
        self.tally.fired["freeze"] += 1
        await asyncio.sleep(for_s)
        worker.process.send_signal(signal.SIGCONT)
        self.tally.bitten["freeze"] += 1

    async def _mistreat(self) -> None:
        action, answers = self._random.choice(_NETWORK)
        api = self._random.choice(_APIS)
        hold_s = self._random.choice((0.2, 1.0, 2.5))
        times = self._random.randint(1, 3)
        if api in (Api.INIT_PRODUCER_ID, Api.OFFSET_FETCH):
            # They are asked at a takeover only.
            await self._kill()
        fault = self._net.arm(action, api, answers=answers, times=times)
        kind = f"{action} {'answer' if answers else 'request'} {api.name}"
        with suppress(AssertionError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await fault.fired()
                if action == "hold":
                    await asyncio.sleep(hold_s)
                    fault.release()
                await fault.bitten()
        self._net.faults.remove(fault)
        fault.release()
        self.tally.fired[kind] += bool(fault.fired_s)
        self.tally.bitten[kind] += bool(fault.bitten_s)

    async def _revive(self) -> None:
        """No fault of these may end a process."""
        for n, worker in enumerate(self._workers):
            if worker.process.returncode is not None:
                self.tally.violations.append(
                    f"worker {worker.pid} ended with {worker.process.returncode}: {worker.log_path}"
                )
                self._workers[n] = await self._again(worker)

    async def _again(self, worker: Life) -> Life:
        slot = self._workers.index(worker)
        return await self._children.begin("chain", "outbox", slot=slot)

    # The end ---------------------------------------------------------------------------------

    async def _heal(self) -> None:
        kafka, tally = self._kafka, self.tally
        effects = {f"chain:{run_id}:{seq}:0" for run_id in tally.runs for seq in range(3)}
        checks = (
            kafka.until_status(chain, tally.runs, "completed", timeout_s=HEAL_S),
            kafka.until_status("outbox", effects, "completed", timeout_s=HEAL_S),
            self._at_rest(),
            self._check(effects),
        )
        for each in checks:
            try:
                await each
            except AssertionError as error:
                tally.violations.append(str(error) or repr(error))
        if tally.violations:
            await self._keep()
        closing = ("step.completed", "run.completed")
        tally.steps = sum(event["type"] in closing for event in await kafka.events(chain))

    async def _keep(self) -> None:
        """Write every record that there is to a file, a line each."""
        with (self._children.folder / "records").open("w") as file:
            for agent in ("chain", "outbox"):
                topics = self._kafka.topics(agent)
                for topic in (topics.commands, topics.tasks, topics.state, topics.events):
                    for record in await self._kafka.read(topic):
                        place = (topic, record.partition, record.offset, record.timestamp)
                        file.write(f"{place} {record.key!r} {record.headers} {record.value!r}\n")

    async def _history(self) -> History:
        """What is in the log, read by another client and from the broker's files, and what the
        target has seen."""
        app = self._kafka.settings.app
        history = await asyncio.to_thread(
            read_history, self._networked.direct, app, data=self._networked.data, at_rest=True
        )
        asked = [
            Asked(id=None, agent="chain", run_id=run_id, kind="start", outcome="ok")
            for run_id in self.tally.runs
        ]
        return replace(history, asked=asked, requests=self._target.requests())

    async def _at_rest(self) -> None:
        async def reached() -> bool:
            return not list(caught_up(View(await self._history())))

        await until(reached, what="the groups to reach the end", timeout_s=HEAL_S)

    async def _check(self, effects: set[str]) -> None:
        """Every promise, by a checker that knows nothing of the engine."""
        history = await self._history()
        promises = {
            run_id: Promise(
                result=2, effects=frozenset(e for e in effects if e.split(":")[1] == run_id)
            )
            for run_id in self.tally.runs
        }
        programs = {run_id: lambda _, promise=p: promise for run_id, p in promises.items()}
        self.tally.violations += map(str, check(history, programs))


async def storm(
    seed: int, networked: Networked, app: str, folder: Path, go_on: Callable[[Tally], bool]
) -> Tally:
    """One storm, from its first fault to the check."""
    async with (
        sink() as target,
        cluster(networked.direct, app, chain, **SETTINGS) as kafka,
        networked.network() as net,
        lives(networked.behind(kafka.settings), folder, target.url) as children,
    ):
        return await Storm(seed, networked, kafka, net, children, target).blow(go_on)


def main() -> int:
    parser = argparse.ArgumentParser(description="faults against workers on one real broker")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="surefoot-storm-"))
    with start_networked() as networked:
        until_s = time.monotonic() + given.minutes * 60
        tally = asyncio.run(
            storm(
                given.seed,
                networked,
                f"storm-{given.seed}-{os.getpid()}",
                folder,
                lambda _: time.monotonic() < until_s,
            )
        )
    lines = [
        *(
            f"{kind}: fired {n}, bitten {tally.bitten[kind]}"
            for kind, n in sorted(tally.fired.items())
        ),
        *(f"violation: {violation}" for violation in tally.violations),
        tally.line(),
    ]
    sys.stdout.write("\n".join(lines) + f"\nthe workers' logs are in {folder}\n")
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
