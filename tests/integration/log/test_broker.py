"""The broker that is started on Java: it serves, tells its version, keeps its data, and ends."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import create_conn
from aiokafka.errors import ProducerFenced

from surefoot.infra.broker import find as broker_of_any_kind
from surefoot.infra.broker import java as broker_java
from surefoot.infra.broker.config import (
    KAFKA_FOLDER,
    CannotStart,
    Storage,
    free_ports,
    pinned_version,
)
from surefoot.infra.broker.find import Broker, start_broker
from surefoot.infra.kafka_client.protocol import API_VERSIONS, TRANSACTION_VERSION, feature_level
from surefoot.state.errors import ConfigError
from tests.support.eventually import until_sync
from tests.support.free_ports import unused_port

needs_java = pytest.mark.skipif(
    shutil.which("java") is None, reason="Java is not installed; the suite's broker is in Docker"
)


async def create_topic(bootstrap: str, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, 1, 1)])
    finally:
        await admin.close()


async def committed_values(bootstrap: str, topic: str) -> list[bytes]:
    """All values of partition 0 that a read_committed consumer sees, up to its end. A transaction
    that is being completed is waited for."""
    partition = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False
    )
    await consumer.start()
    try:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        values: list[bytes] = []
        while True:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                values += [record.value for record in records]
            end = consumer.highwater(partition)  # known after the first fetch
            if end is not None and await consumer.position(partition) >= end:
                return values
    finally:
        await consumer.stop()


async def transaction_version(bootstrap: str) -> int:
    """What the cluster's storage was formatted with."""
    connection = await create_conn("127.0.0.1", int(bootstrap.rpartition(":")[2]))
    try:
        versions = await connection.send(API_VERSIONS("surefoot", "1"))
    finally:
        await connection.close()
    return feature_level(versions, TRANSACTION_VERSION)


async def test_a_current_broker_takes_transactions_fencing_and_read_committed(
    bootstrap: str, app: str
) -> None:
    await create_topic(bootstrap, app)
    old = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=app)
    new = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=app)
    await old.start()
    try:
        async with old.transaction():
            await old.send_and_wait(app, b"committed", partition=0)
            await old.send_offsets_to_transaction({TopicPartition(app, 0): 1}, group_id=app)
        await old.begin_transaction()
        await old.send_and_wait(app, b"left open by the old one", partition=0)
        await new.start()
        async with new.transaction():
            await new.send_and_wait(app, b"by the new one", partition=0)
        with pytest.raises(ProducerFenced):
            await old.commit_transaction()
    finally:
        await new.stop()
        await old.stop()
    assert await committed_values(bootstrap, app) == [b"committed", b"by the new one"]


def test_the_version_is_what_the_broker_reported(broker: Broker) -> None:
    if broker.kind != "given":
        assert broker.version == pinned_version()
    over_the_wire = start_broker(broker.bootstrap)
    assert over_the_wire.kind == "given"
    assert broker.version.startswith(over_the_wire.version)


def test_the_version_is_told_that_was_written_while_this_process_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, written = 0.0, ""

    def stand_still(_: float) -> None:
        nonlocal now_s, written
        now_s, written = now_s + 60, "Kafka version: 4.4.0"

    node: Any = SimpleNamespace(
        bootstrap="nobody:1", failure=lambda: None, log_text=lambda: written
    )
    still = SimpleNamespace(monotonic=lambda: now_s, sleep=stand_still)
    monkeypatch.setattr(broker_of_any_kind, "time", still)
    monkeypatch.setattr(broker_of_any_kind, "_answers", lambda _: True)
    monkeypatch.setattr(broker_of_any_kind, "ask", lambda *_, **__: "4.4")
    assert broker_of_any_kind._wait_until_ready(node) == "4.4.0"


def test_stopping_a_given_broker_leaves_it_running(broker: Broker) -> None:
    with start_broker(broker.bootstrap):
        pass
    assert start_broker(broker.bootstrap).version


def test_a_given_broker_that_does_not_answer_is_a_config_error() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"Kafka at {address} refuses the connection"):
            start_broker(address)


@needs_java
async def test_a_kept_folder_brings_back_the_same_records_on_the_same_port_after_a_kill(
    tmp_path: Path, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No connection is given them while no broker listens there.
    monkeypatch.setattr(
        broker_java, "free_ports", lambda count: [unused_port() for _ in range(count)]
    )
    # A killed broker may register again only when its old session is over: 9 s by default.
    quick = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
    with start_broker(ways=("java",), folder=tmp_path, properties=quick) as first:
        await create_topic(first.bootstrap, app)
        producer = AIOKafkaProducer(bootstrap_servers=first.bootstrap)
        await producer.start()
        await producer.send_and_wait(app, b"kept", partition=0)
        await producer.stop()
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
    with start_broker(ways=("java",), folder=tmp_path, properties=quick) as second:
        assert second.bootstrap == first.bootstrap
        assert await committed_values(second.bootstrap, app) == [b"kept"]


@needs_java
@pytest.mark.parametrize("level", [0, 1])
async def test_a_broker_can_be_given_an_older_protocol_of_transactions(level: int) -> None:
    storage = Storage(features={"transaction.version": level})
    with start_broker(ways=("java",), storage=storage) as broker:
        assert await transaction_version(broker.bootstrap) == level


@needs_java
def test_stop_ends_the_process_even_when_it_is_frozen_and_removes_a_temporary_folder() -> None:
    broker = start_broker(ways=("java",))
    pid, log = broker.pid, broker.log_path
    assert pid is not None
    assert log is not None
    broker.pause()
    until_sync(
        lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, what="the broker to freeze"
    )
    broker.stop()
    broker.stop()
    assert not psutil.pid_exists(pid)
    assert not log.parent.exists()


@needs_java
@pytest.mark.parametrize("kept", [True, False])
def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path, kept: bool) -> None:
    """Killed, it can tell nobody; what is not to be kept goes with it."""
    folder = f"Path({str(tmp_path / 'kept')!r})" if kept else None
    code = (
        "import signal; from pathlib import Path\n"
        "from surefoot.infra.broker.find import start_broker\n"
        f"broker = start_broker(ways=('java',), folder={folder})\n"
        "print(broker.pid, broker.log_path, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid, log = starter.stdout.readline().decode().split()
        assert psutil.pid_exists(int(pid))
        starter.kill()
    until_sync(lambda: not psutil.pid_exists(int(pid)), what="the broker's end")
    until_sync(lambda: Path(log).exists() == kept, what="what it leaves behind")


@needs_java
def test_a_port_asked_for_that_is_taken_fails_at_once_and_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="Address already in use"):
            start_broker(ways=("java",), port=port)


@needs_java
def test_a_free_port_lost_to_somebody_else_is_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = free_ports
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answers = iter([[port, *real(1)]])
        monkeypatch.setattr(
            broker_java, "free_ports", lambda count: next(answers, None) or real(count)
        )
        with start_broker(ways=("java",)) as broker:
            assert not broker.bootstrap.endswith(f":{port}")


@needs_java
def test_a_setting_that_the_broker_refuses_is_reported_in_its_own_words(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"num\.io\.threads"):
        start_broker(ways=("java",), folder=tmp_path, properties={"num.io.threads": "none"})


def test_without_docker_java_or_maven_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        ConfigError, match="Install Docker, or Java 17 or newer with Maven"
    ) as error:
        start_broker()
    assert "Docker is not installed" in str(error.value)
    assert "Java 17 or newer is not installed" in str(error.value)


@needs_java
def test_without_maven_jars_fetched_before_still_serve(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jars = broker_java.fetch_jars()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert broker_java.fetch_jars() == jars


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the pins: one jar, empty. A Maven that fetches this and, for somebody else who
    is faster, puts another into the folder $WINNER."""
    folder = tmp_path / "pins"
    folder.mkdir()
    shutil.copy(KAFKA_FOLDER / "pom.xml", folder)
    (folder / "jars.sha512").write_text(f"{hashlib.sha512(b'').hexdigest()}  ours.jar\n")
    monkeypatch.setattr(broker_java, "KAFKA_FOLDER", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("WINNER", str(tmp_path / "elsewhere"))
    tools = tmp_path / "tools"
    tools.mkdir()
    maven = tools / "mvn"
    maven.write_text(
        "#!/bin/sh\n"
        'for each; do case "$each" in -DoutputDirectory=*) out="${each#*=}";; esac; done\n'
        'mkdir -p "$out" && touch "$out/ours.jar"\n'
        'mkdir -p "$WINNER" && touch "$WINNER/theirs.jar"\n'
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.mark.parametrize(
    "known", [f"{hashlib.sha512(b'other bytes').hexdigest()}  ours.jar\n", "", "{} and-another.jar"]
)
def test_jars_other_than_those_whose_hashes_are_known_are_not_used(
    pinned: Path, tmp_path: Path, known: str
) -> None:
    sums = pinned / "jars.sha512"
    sums.write_text(known.format(sums.read_text() + hashlib.sha512(b"").hexdigest()))
    with pytest.raises(CannotStart, match=r"Maven fetched other jars.*\.jar"):
        broker_java.fetch_jars()
    assert list((tmp_path / "cache" / "surefoot").iterdir()) == []


def test_of_two_downloads_at_once_one_wins_and_no_half_folder_is_seen(
    pinned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process finishes while this one's Maven is still at work."""
    name = f"kafka-{pinned_version()}-"
    jars = broker_java.fetch_jars()
    assert jars.name.startswith(name)
    assert [jar.name for jar in jars.iterdir()] == ["ours.jar"]

    shutil.rmtree(jars)
    monkeypatch.setenv("WINNER", str(jars))
    assert broker_java.fetch_jars() == jars
    assert [jar.name for jar in jars.iterdir()] == ["theirs.jar"]
    assert [left.name for left in jars.parent.iterdir()] == [jars.name]


@needs_java
def test_a_java_too_old_for_kafka_4_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="is not Java 17 or newer"):
        start_broker(ways=("java",))
