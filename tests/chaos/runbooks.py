"""The runbooks of brokers, on three of them, each from the fault to a doctor that finds nothing.

    python -m tests.chaos.runbooks

Prints what the doctor says. It fails if the doctor misses a fault, finds another, or goes on about
one that is mended. The full disk is a small one in memory, which only root may make; others
are told that it was left out.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka.admin

from surefoot import Agent, Context, Done
from surefoot.infra.doctor.checks import Doctor
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.state.diagnosis.findings import DiagnosisCode, Examination
from tests.support.cluster import QUICK, cluster
from tests.support.eventually import until
from tests.support.three_brokers import ThreeBrokers, three_brokers

admin: Any = confluent_kafka.admin  # it exports more than its types say

#: of the disk of all three brokers
DISK_MIB = 700
HOUR_MS = 3_600_000


def shipping() -> Agent:
    agent = Agent("shop")

    @agent.step
    async def ship(ctx: Context, order: int) -> Done:
        return Done(order)

    return agent


class Ward:
    """One app on the cluster, and what the doctor says of it."""

    def __init__(self, settings: Settings, agent: Agent) -> None:
        self.agent = agent
        self._settings = settings
        self._clock = SystemClock()

    async def examined(self) -> Examination:
        async with open_backend(self._settings, self._clock, access="read") as backend:
            doctor = Doctor(self._settings, backend, [self.agent])
            try:
                now_ms = self._clock.now_ms()
                return await doctor.examine(now_ms, now_ms - HOUR_MS)
            finally:
                await doctor.stop()

    async def until(self, what: str, *codes: DiagnosisCode) -> None:
        """Wait until the doctor finds these, and nothing else of the cluster; print what it
        says."""

        async def so() -> Examination | None:
            seen = await self.examined()
            return seen if {each.code for each in seen.findings} == set(codes) else None

        seen = await until(so, what=f"{what}: {', '.join(codes) or 'nothing'} to be found")
        assert seen is not None
        sys.stdout.write(f"{what}: exit status {seen.status}\n")
        for each in seen.findings:
            sys.stdout.write(f"    {each.code}: {each.what}\n")
        for check, why in seen.blind:
            sys.stdout.write(f"    cannot look at {check}: {why}\n")


async def a_broker_is_lost(brokers: ThreeBrokers, ward: Ward) -> None:
    brokers.kill(2)
    await ward.until("broker 2 is killed", "broker_missing")
    brokers.start(2)
    await brokers.until_whole()
    await ward.until("broker 2 is started")


async def too_few_replicas(brokers: ThreeBrokers, ward: Ward, settings: Settings) -> None:
    _require(brokers, settings, ward.agent, in_sync=3)
    brokers.kill(2)
    await ward.until(
        "broker 2 is killed, and all three are required", "broker_missing", "under_min_isr"
    )
    brokers.start(2)
    await brokers.until_whole()
    await ward.until("broker 2 is started again")
    _require(brokers, settings, ward.agent, in_sync=2)


def _require(brokers: ThreeBrokers, settings: Settings, agent: Agent, *, in_sync: int) -> None:
    """Set min.insync.replicas of the app's topics."""
    client = admin.AdminClient({"bootstrap.servers": brokers.bootstrap})
    entry = admin.ConfigEntry(
        "min.insync.replicas",
        str(in_sync),
        incremental_operation=admin.AlterConfigOpType.SET,
    )
    resources = [
        admin.ConfigResource(admin.ResourceType.TOPIC, spec.name, incremental_configs=[entry])
        for spec in specs_for(names_of([agent]), settings)
    ]
    for done in client.incremental_alter_configs(resources).values():
        done.result(timeout=60)


async def a_disk_is_full(disk: Path, ward: Ward) -> None:
    filler = disk / "filler"
    room = os.statvfs(disk)
    leave = room.f_blocks * room.f_frsize // 20
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - leave)
    await ward.until("the disk is filled", "disk_full")
    filler.unlink()
    await ward.until("there is space again")


async def everything(brokers: ThreeBrokers, disk: Path | None) -> None:
    agent = shipping()
    app = f"ward-{os.getpid()}"
    async with cluster(
        brokers.bootstrap, app, agent, partitions=3, replication_factor=3, **QUICK
    ) as kafka_:
        await kafka_.work(agent)
        ward = Ward(kafka_.settings, agent)
        await ward.until("the cluster is whole")
        await a_broker_is_lost(brokers, ward)
        await too_few_replicas(brokers, ward, kafka_.settings)
        if disk is not None:
            await a_disk_is_full(disk, ward)


@contextmanager
def small_disk() -> Iterator[Path | None]:
    """A disk in memory, where everything temporary is meanwhile; None: only root may make one."""
    if os.geteuid():
        yield None
        return
    place = Path(tempfile.mkdtemp(prefix="surefoot-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "surefoot", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        place.rmdir()
        yield None
        return
    former, tempfile.tempdir = tempfile.tempdir, str(place)
    try:
        yield place
    finally:
        tempfile.tempdir = former
        subprocess.run(["umount", place], check=True)
        place.rmdir()


def main() -> int:
    logging.configure(level="CRITICAL")  # that a broker is gone is known
    with small_disk() as disk, three_brokers() as brokers:
        asyncio.run(everything(brokers, disk))
    if disk is None:
        sys.stdout.write("left out: a full disk, which needs root and mount\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
