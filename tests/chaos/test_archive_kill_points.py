"""An archive process is killed between a file and the commit: each event is archived once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surefoot import Agent
from surefoot.infra.archive.store import open_archive
from surefoot.infra.kafka.backend import KafkaBackend
from surefoot.infra.processes.archive import archive, archiver
from surefoot.infra.runtime.settings import Settings
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ProducerRecord
from tests.chaos.processes.archive_child import AGENT, POINTS
from tests.chaos.processes.lives import ROOT, Life
from tests.support.archived import life, offsets_by_any_reader
from tests.support.aws import REGION, aws_server, client
from tests.support.cluster import Cluster, cluster

BUCKET = "archive-of-a-test"
#: so that a dead member's partitions are soon somebody else's
SOON = {
    "heartbeat_interval_ms": 200,
    "producer_request_timeout_ms": 500,
    "transaction_timeout_ms": 800,
    "session_timeout_ms": 2_500,
    "rebalance_timeout_ms": 5_000,
}


@pytest.fixture
def aws() -> Iterator[str]:
    with aws_server() as url:
        client(url, "s3").create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        yield url


async def begin(settings: Settings, folder: Path, at: str, file_bytes: int) -> Life:
    log_path = folder / f"{at}.log"
    set_here = settings.model_dump(exclude_unset=True, exclude_none=True)
    set_here |= {"archive_file_bytes": file_bytes, "archive_age_s": 0.2}
    env = {f"SUREFOOT_{name.upper()}": str(value) for name, value in set_here.items()}
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.chaos.processes.archive_child",
            at,
            cwd=ROOT,
            stderr=log,
            env={**os.environ, **env},
        )
    return Life(process=process, log_path=log_path, agents=())


async def write(kafka: Cluster, names: range) -> None:
    topic = AgentTopics(kafka.settings.app, AGENT).events
    await asyncio.gather(
        *(
            kafka.send(ProducerRecord(topic, number % 2, b"r%d" % number, value))
            for number in names
            for value in life(f"r{number}", at_ms=kafka.clock.now_ms())
        )
    )


async def test_killed_at_any_point_each_event_is_archived_once(
    bootstrap: str, app: str, tmp_path: Path, aws: str
) -> None:
    there = {
        "archive": f"s3://{BUCKET}/kept",
        "aws_endpoint_url": aws,
        "aws_region": REGION,
        **SOON,
    }
    async with cluster(bootstrap, app, Agent(AGENT), **there) as kafka:
        await write(kafka, range(40))
        for number, point in enumerate(POINTS):
            # what is read meanwhile, and the size of a file, are others than the dead one's
            life_ = await begin(kafka.settings, tmp_path, point, 1_500 + 400 * number)
            try:
                assert await life_.ended() == -signal.SIGKILL, life_.log_path.read_text()[-4000:]
            finally:
                if life_.process.returncode is None:
                    life_.process.kill()
                    await life_.process.wait()
            await write(kafka, range(40 + 10 * number, 50 + 10 * number))
        store = open_archive(kafka.settings)
        assert store is not None
        last = archiver(
            kafka.settings, AGENT, KafkaBackend(kafka.settings, kafka.clock), store, kafka.clock
        )
        status = await archive([last], kafka.settings, asyncio.Event(), asyncio.Event(), once=True)
        assert status == 0
        keys = [key for key in await store.keys("agent=shop/kind=events/") if key]
        for partition in range(2):
            files = [await store.get(key) or b"" for key in keys if f"/p=0{partition}/" in key]
            records = await kafka.read(AgentTopics(app, AGENT).events)
            written = [record.offset for record in records if record.partition == partition]
            assert offsets_by_any_reader(files) == written
        store.close()
