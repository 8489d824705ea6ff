"""A rolling upgrade from an earlier version of Surefoot, and back, while runs are under way.

    python -m tests.chaos.upgrade --from REF

The wheel of that commit is built, and its `surefoot worker` and `surefoot relay` run beside today's
in the same groups on one broker. Two workers and two relays are replaced one by one, old by new and
then new by old; while a group is mixed, each of its workers is killed once. Runs are started by
today's code all the time. Prints what the checker found; the status is 1 if a promise was broken.
Takes some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from surefoot.infra.broker.find import start_broker
from tests.chaos.faults.trial import AGENT, FILE, HEAL_S, Result, effects_of, judged
from tests.chaos.processes.lives import ROOT
from tests.chaos.processes.services import Service, Services, services
from tests.chaos.processes.walker import SINK, walker
from tests.checker.kafka import read_history, read_offsets
from tests.support.cluster import Cluster, cluster
from tests.support.effect_target import Sink, sink
from tests.support.eventually import until

PARTITIONS, MEMBERS = 4, 2
#: of a run, and how long one takes
STEPS, PAUSE_S = 20, 0.1
#: Records are judged as they were written: nothing is compacted away.
PROPERTIES = {"log.cleaner.backoff.ms": "36000000"}


def wheel_of(ref: str, folder: Path) -> Path:
    """Build the wheel of a commit; return a folder that `surefoot` can be imported from."""
    source, target = folder / "source", folder / "old"
    source.mkdir()
    tree = subprocess.run(["git", "archive", ref], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "--extract"], cwd=source, input=tree, check=True)
    build = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target)
    subprocess.run([*install, wheel], check=True)
    return target


@dataclass(slots=True)
class Upgrade:
    """The processes of one upgrade."""

    kafka: Cluster
    services: Services
    target: Sink
    result: Result = field(default_factory=Result)
    _workers: list[Service] = field(default_factory=list)
    _relays: list[Service] = field(default_factory=list)

    async def run(self, old: Path) -> None:
        """From the first start to the last effect."""
        self._workers = [await self._worker(old) for _ in range(MEMBERS)]
        self._relays = [await self.services.begin("relay", code=old) for _ in range(MEMBERS)]
        for code in (ROOT, old):
            for n in range(MEMBERS):
                await self._wave()
                await self._replace(self._workers, n, await self._worker(code))
                await self._replace(self._relays, n, await self.services.begin("relay", code=code))
                await self._wave()
                if n == 0:
                    for worker in self._workers:
                        await worker.kill()
                        await self._wave()
        await self._delivered(self.result.runs)
        await until(self._at_rest, what="the groups to reach the end", timeout_s=HEAL_S)

    async def _worker(self, code: Path) -> Service:
        worker = await self.services.begin("worker", FILE, code=code)
        await worker.joined()
        return worker

    async def _replace(self, members: list[Service], n: int, by: Service) -> None:
        leaving, members[n] = members[n], by
        if (status := await leaving.stop()) != 0:
            self.result.violations.append(
                f"{leaving.name} was told to stop and ended with {status}"
            )

    async def _wave(self) -> None:
        """Start a run in each partition; they go on while others are started. Waits until the wave
        before has delivered what it wanted, so that the members of the moment have work."""
        before = self.result.runs[-PARTITIONS:]
        payload = json.dumps({"steps": STEPS, "pause_s": PAUSE_S}).encode()
        for partition in range(PARTITIONS):
            run_id = self.kafka.run_on(partition, f"w{len(self.result.runs)}")
            await self.kafka.start(walker, run_id, payload)
            self.result.runs.append(run_id)
        await self._delivered(before)

    async def _delivered(self, runs: Sequence[str]) -> None:
        effects = effects_of(runs, STEPS)
        await until(
            lambda: effects <= self.target.acted.keys(),
            what=f"the effects of {', '.join(runs)}",
            timeout_s=HEAL_S,
        )

    async def _at_rest(self) -> bool:
        bootstrap, app = str(self.kafka.settings.bootstrap_servers), self.kafka.settings.app
        samples = await asyncio.to_thread(read_offsets, bootstrap, app)
        return all(sample.offset >= sample.stable_end for sample in samples)


async def upgrade(old: Path, bootstrap: str, data: Path, folder: Path) -> Result:
    """One upgrade, and one rollback, on a broker with this data folder."""
    app = f"upgrade-{os.getpid()}"
    async with (
        sink() as target,
        cluster(bootstrap, app, walker, partitions=PARTITIONS, out_allow="127.0.0.1") as kafka,
        services(kafka.settings, folder, {SINK: target.url}) as started,
    ):
        trial = Upgrade(kafka, started, target)
        try:
            await trial.run(old)
        except AssertionError as error:
            trial.result.violations.append(str(error))
    history = await asyncio.to_thread(read_history, bootstrap, app, data=data, at_rest=True)
    history = replace(history, requests=target.requests())
    judged(trial.result, history, trial.result.runs, STEPS)
    return trial.result


def main() -> int:
    parser = argparse.ArgumentParser(
        description="a rolling upgrade from an earlier version, and back"
    )
    parser.add_argument("--from", dest="ref", required=True, metavar="REF", help="commit or tag")
    ref = parser.parse_args().ref
    folder = Path(tempfile.mkdtemp(prefix="surefoot-upgrade-"))
    sys.stdout.write(f"the processes' logs are in {folder}\n")
    old = wheel_of(ref, folder)
    home = folder / "broker"
    with start_broker(ways=("java",), folder=home, properties=PROPERTIES) as broker:
        result = asyncio.run(upgrade(old, broker.bootstrap, home / "data", folder))
    for violation in result.violations:
        sys.stdout.write(f"violation: {violation}\n")
    sys.stdout.write(
        f"from {ref}: {AGENT} runs={len(result.runs)} steps={result.steps} lost={result.lost} "
        f"doubled={result.doubled} violations={len(result.violations)}\n"
    )
    return 1 if result.violations or result.lost or result.doubled else 0


if __name__ == "__main__":
    sys.exit(main())
