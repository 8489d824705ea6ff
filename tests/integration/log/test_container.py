"""The broker in a container really runs: under Testcontainers, and as `start_broker` starts it.

The image is the official one where it can be pulled, else one made here by infra/broker/image.sh.
Without a Docker engine the module starts one by hand, which takes root and Debian's docker.io.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from testcontainers.core.config import ConnectionMode, testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from surefoot.infra.broker.config import KAFKA_FOLDER, pinned_version
from surefoot.infra.broker.docker import CONTAINER_PORT, container_environment, default_image
from surefoot.infra.broker.find import start_broker
from surefoot.state.errors import ConfigError
from tests.support.free_ports import unused_port

ROOT = Path(__file__).resolve().parents[3]
IMAGE_SCRIPT = KAFKA_FOLDER / "image.sh"
#: named by what it is made from, so that a kept one is never an old one
_MADE_FROM = IMAGE_SCRIPT.read_bytes() + (KAFKA_FOLDER / "pom.xml").read_bytes()
LOCAL_IMAGE = (
    f"surefoot/kafka-local:{pinned_version()}-{hashlib.sha256(_MADE_FROM).hexdigest()[:8]}"
)


def docker_says_yes(*arguments: str) -> bool:
    command = ["docker", *arguments]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason, except where the container path must not go untested."""
    if os.environ.get("SUREFOOT_TEST_REQUIRE_DOCKER"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def engine() -> Iterator[None]:
    if shutil.which("docker") and docker_says_yes("version"):
        yield
        return
    if os.geteuid() != 0:
        unavailable("no Docker engine answers, and only root can start one")
    if not (shutil.which("docker") and shutil.which("dockerd")):
        unavailable("no Docker engine answers, and dockerd is not installed (Debian: docker.io)")
    # Kept, with the image, for the next time.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = str(cache / "surefoot" / "docker-engine")
    script = str(ROOT / ".ci" / "docker-engine")
    started = subprocess.run([script, "start", folder], capture_output=True, text=True, check=False)
    if started.returncode != 0:
        unavailable(started.stderr)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", started.stdout.strip())
            yield
    finally:
        subprocess.run([script, "stop", folder], check=True)


@pytest.fixture(scope="module")
def image(engine: None) -> str:
    for name in (LOCAL_IMAGE, default_image()):
        if docker_says_yes("image", "inspect", name):
            return name
    if docker_says_yes("pull", "--quiet", default_image()):
        return default_image()
    if os.geteuid() != 0 or not (shutil.which("debootstrap") and shutil.which("mvn")):
        unavailable(
            f"{default_image()} cannot be pulled, and making an image takes root, debootstrap "
            "and Maven"
        )
    made = subprocess.run(
        [str(IMAGE_SCRIPT), LOCAL_IMAGE],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout
    return LOCAL_IMAGE


async def one_transaction_through(bootstrap: str) -> list[bytes]:
    """Commit one record, abort another; return what a read_committed consumer sees."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic("t", 1, 1)])
    await admin.close()

    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="t")
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"aborted", partition=0)
    await producer.abort_transaction()
    async with producer.transaction():
        await producer.send_and_wait("t", b"committed", partition=0)
    await producer.stop()

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    partition = TopicPartition("t", 0)
    consumer.assign([partition])
    records = (await consumer.getmany(partition, timeout_ms=180_000))[partition]
    await consumer.stop()
    return [record.value for record in records]


async def test_a_transaction_commits_on_a_broker_run_by_testcontainers(
    image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its helper container would have to be pulled; and ports are published on this machine, also
    # when this machine is itself a container.
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
    monkeypatch.setattr(testcontainers_config, "tc_host_override", "localhost")
    monkeypatch.setattr(
        testcontainers_config, "connection_mode_override", ConnectionMode.docker_host
    )
    port = unused_port()
    container = DockerContainer(image).with_bind_ports(CONTAINER_PORT, port)
    for name, value in container_environment(port, {}).items():
        container.with_env(name, value)
    container.waiting_for(LogMessageWaitStrategy(r"Kafka version: \S+"))
    with container:
        exposed = container.get_exposed_port(CONTAINER_PORT)
        bootstrap = f"{container.get_container_host_ip()}:{exposed}"
        with start_broker(bootstrap) as broker:
            assert pinned_version().startswith(broker.version)
        assert await one_transaction_through(bootstrap) == [b"committed"]


async def test_start_broker_runs_a_container_and_removes_it(image: str) -> None:
    with start_broker(ways=("docker",), image=image) as broker:
        assert broker.kind == "docker"
        assert broker.version == pinned_version()
        assert await one_transaction_through(broker.bootstrap) == [b"committed"]
        port = broker.bootstrap.rpartition(":")[2]
        assert containers_that_publish(port) == 1
    assert containers_that_publish(port) == 0


def test_an_image_that_cannot_be_pulled_is_named(engine: None) -> None:
    with pytest.raises(ConfigError, match="the image surefoot/no-such-image:1 cannot be pulled"):
        start_broker(ways=("docker",), image="surefoot/no-such-image:1")


def containers_that_publish(port: str) -> int:
    listed = subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"publish={port}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return len(listed.stdout.split())
