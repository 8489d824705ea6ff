"""Payloads that fit into no record, on a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from surefoot import Agent, ConfigError, Context, Done, Next, Wait
from surefoot.consumers.attempts.claim_check import ClaimCheck
from surefoot.infra.blobs import sweep as blob_sweep
from surefoot.infra.blobs.stores import FolderBlobs, open_blobs
from surefoot.infra.blobs.sweep import Swept, sweep
from surefoot.infra.kafka.backend import KafkaBackend
from surefoot.infra.kafka_client.appender import KafkaAppender
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.writers.commands import LogCommands
from surefoot.schemas.codec.codec import decode
from surefoot.schemas.pointer import Pointer, pointer_of, pointer_to
from surefoot.state.errors import RecordTooLarge, StoreRefused, Unavailable
from surefoot.state.names.topics import DAY_MS
from surefoot.state.ports.blobs import Blobs
from surefoot.state.ports.log import ProducerRecord
from tests.integration.cli.test_cli_end_to_end import Cli
from tests.support.aws import REGION, aws_server, client
from tests.support.cluster import Cluster, Running, cluster
from tests.support.eventually import until, until_sync
from tests.support.long_deadlines import PATIENT
from tests.support.trigger_cluster import listening

LARGE = "ü" * 1_500_000


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    with aws_server() as url:
        client(url, "s3").create_bucket(
            Bucket="large", CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        yield url


def doubling(name: str) -> Agent:
    agent = Agent(name)

    @agent.step
    async def double(ctx: Context, text: str) -> Next:
        return Next(measure, text + text)

    @agent.step
    async def measure(ctx: Context, text: str) -> Done:
        return Done(len(text))

    return agent


async def start(kafka: Cluster, agent: Agent, run_id: str, payload: str) -> None:
    commands = LogCommands(kafka.settings, KafkaAppender(kafka.settings), kafka.clock)
    try:
        await commands.start(agent.name, run_id, f'"{payload}"'.encode(), deadline_s=60.0)
    finally:
        await commands.stop()


def blobs_of(kafka: Cluster) -> Blobs:
    blobs = open_blobs(kafka.settings)
    assert blobs is not None
    return blobs


async def keys(blobs: Blobs) -> list[str]:
    return [key async for key, _ in blobs.keys()]  # noqa: SIM118


@asynccontextmanager
async def storing(
    bootstrap: str, app: str, agent: Agent, where: str, **settings: Any
) -> AsyncIterator[Cluster]:
    """Since noon, so that no day ends in between: blobs are named by it."""
    async with cluster(bootstrap, app, agent, blobs=where, **PATIENT, **settings) as kafka:
        kafka.clock.ahead_ms = -((kafka.clock.now_ms() - DAY_MS // 2) % DAY_MS)
        yield kafka


async def test_a_run_goes_through_s3_with_what_no_record_could_hold(
    bootstrap: str, app: str, agent_name: str, aws: str
) -> None:
    agent = doubling(agent_name)
    settings = {"aws_endpoint_url": aws, "aws_region": REGION}
    async with storing(bootstrap, app, agent, "s3://large/some/prefix", **settings) as kafka:
        await kafka.work(agent)
        await start(kafka, agent, "r", LARGE)
        await kafka.until_status(agent, "r", "completed")
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        assert checkpoint["result"] == b"3000000"
        stored = await keys(blobs_of(kafka))
        assert len(stored) == 2
        objects = client(aws, "s3").list_objects_v2(Bucket="large")["Contents"]
        assert {found["Key"] for found in objects} == {f"some/prefix/{app}/{k}" for k in stored}
        await kafka.check_history(agent)


async def test_without_a_store_a_large_start_is_refused(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = doubling(agent_name)
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        with pytest.raises(RecordTooLarge):
            await start(kafka, agent, "r", LARGE)


async def test_an_event_makes_a_start_that_no_record_could_hold_also_while_the_store_was_away(
    bootstrap: str, app: str, agent_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, refused = doubling(agent_name), 0

    @agent.on_event(topic=f"{app}-letters", start="earliest")
    def on_letter(letter: str) -> str:
        return letter * 1_500_000

    put = FolderBlobs.put

    async def away_at_first(self: FolderBlobs, pointer: Pointer, content: bytes) -> None:
        nonlocal refused
        refused += 1
        if refused <= 2:  # the first is the check at the start
            raise Unavailable("SF3014", "the store is away")
        if refused == 3:
            raise StoreRefused("SF3070", "the store refuses")
        await put(self, pointer, content)

    monkeypatch.setattr(FolderBlobs, "put", away_at_first)
    with capture_logs() as logs:
        async with (
            storing(bootstrap, app, agent, str(tmp_path)) as kafka,
            listening(kafka, agent, partitions=1) as heard,
        ):
            await heard.send(b'"a"')
            heard.begin()
            await heard.until_started(1)
            told = [line["event"] for line in logs if line["event"].startswith("blob_")]
            assert told == ["blob_waits", "blob_refused"]
            (record,) = await heard.commands()
            command = decode(record.value or b"", "Command")[1]
            assert pointer_of(command["payload"]) is not None
            assert refused == 4
            await kafka.work(agent)
            await kafka.until_status(agent, command["run_id"], "completed")
            checkpoint = await kafka.checkpoint(agent, command["run_id"])
            assert checkpoint is not None
            assert checkpoint["result"] == b"3000000"
            assert await heard.codes() == []


async def test_killed_between_the_blob_and_the_commit_the_step_runs_again_and_nothing_is_lost(
    bootstrap: str, app: str, agent_name: str, tmp_path: Path
) -> None:
    agent = doubling(agent_name)
    async with storing(bootstrap, app, agent, str(tmp_path)) as kafka:
        first = await kafka.work(agent)
        stored, go_on = asyncio.Event(), asyncio.Event()
        hold_after_put(first, kafka, stored, go_on)
        await start(kafka, agent, "r", "a" * 200_000)  # its double is stored, itself is not
        await until(stored.is_set, what="the blob to be stored")
        assert len(await keys(blobs_of(kafka))) == 1
        assert await kafka.checkpoint(agent, "r") is None
        await first.vanish()
        await kafka.work(agent)
        await kafka.until_status(agent, "r", "completed")
        assert len(await keys(blobs_of(kafka))) == 1
        await kafka.check_history(agent)


def hold_after_put(
    running: Running, kafka: Cluster, stored: asyncio.Event, go_on: asyncio.Event
) -> None:
    """The worker dies, so to say, when its blob is stored and nothing is committed."""
    blobs = blobs_of(kafka)
    put = blobs.put

    async def putting(pointer: Pointer, content: bytes) -> None:
        await put(pointer, content)
        stored.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    blobs.put = putting  # type: ignore[method-assign]
    running.executor.claims = ClaimCheck(kafka.clock, blobs, kafka.settings.blob_over_bytes)


async def test_a_run_whose_payload_is_gone_waits_for_a_person_and_the_others_go_on(
    bootstrap: str, app: str, agent_name: str, tmp_path: Path
) -> None:
    agent = doubling(agent_name)
    async with storing(bootstrap, app, agent, str(tmp_path)) as kafka:
        on_one = kafka.run_on(0, "gone")
        await start(kafka, agent, on_one, "b" * 300_000)
        (key,) = await keys(blobs_of(kafka))
        path = tmp_path / app / key
        content = path.read_bytes()
        path.unlink()
        await start(kafka, agent, kafka.run_on(0, "there"), "c" * 300_000)
        await kafka.work(agent)
        await kafka.until_status(agent, kafka.run_on(0, "there"), "completed")
        await kafka.until_status(agent, on_one, "attention")
        checkpoint = await kafka.checkpoint(agent, on_one)
        assert checkpoint is not None
        assert checkpoint["failure"]["code"] == "blob_missing"
        assert key in checkpoint["failure"]["message"]
        assert pointer_of(checkpoint["payload"]) is not None
        path.write_bytes(content)
        await kafka.tell(agent, on_one, "retry")
        await kafka.until_status(agent, on_one, "completed")
        await kafka.check_history(agent)


async def test_the_same_large_start_is_one_run(
    bootstrap: str, app: str, agent_name: str, tmp_path: Path
) -> None:
    agent = doubling(agent_name)
    async with storing(bootstrap, app, agent, str(tmp_path)) as kafka:
        await kafka.work(agent)
        for _ in range(2):
            await start(kafka, agent, "r", "d" * 300_000)
        await kafka.until_status(agent, "r", "completed")
        await start(kafka, agent, "last", "e")
        await kafka.until_status(agent, "last", "completed")
        events = [event["type"] for event in await kafka.events(agent, "r")]
        assert "start.ignored" not in events
        assert events.count("run.started") == 1


async def test_a_sweep_deletes_what_no_record_needs_and_nothing_else(
    bootstrap: str, app: str, agent_name: str, tmp_path: Path
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def first(ctx: Context, text: str) -> Wait:
        return Wait("go", then=second, carry=text if ctx.run_id == "carries" else "")

    @agent.step
    async def second(ctx: Context, said: str, text: str) -> Done:
        return Done(len(text))

    async with storing(bootstrap, app, agent, str(tmp_path)) as kafka:
        await kafka.work(agent)
        await start(kafka, agent, "carries", "c" * 300_000)
        await start(kafka, agent, "forgets", "f" * 300_000)
        await kafka.until_status(agent, ("carries", "forgets"), "waiting")
        store = blobs_of(kafka)
        orphan = b'"' + b"o" * 300_000 + b'"'
        for days_ago in (0, 40):
            made = pointer_to(orphan, kafka.clock.now_ms() - days_ago * DAY_MS)
            await store.put(made, orphan)
        before = set(await keys(store))
        backend = KafkaBackend(kafka.settings, kafka.clock)

        async def swept(in_days: int, **how: Any) -> Swept:
            now_ms = kafka.clock.now_ms() + in_days * DAY_MS
            return await sweep(
                kafka.settings,
                backend,
                store,
                now_ms=now_ms,
                keep_days=7,
                **{"dry_run": False} | how,
            )

        assert await swept(0, dry_run=True) == Swept(0, 1, 300_002)
        assert set(await keys(store)) == before
        assert await swept(0) == Swept(0, 1, 300_002)
        assert before - set(await keys(store)) == {made.key}
        assert await swept(30) == Swept(2, 1, 300_002)  # the younger orphan

        topics = kafka.topics(agent)

        async def forget(*names: str) -> None:
            for topic in names:
                for partition in range(kafka.settings.partitions):
                    await kafka.delete_before(topic, partition, -1)

        await forget(topics.commands)
        assert await swept(30) == Swept(2, 0, 0)  # one is needed by a history only
        await forget(topics.events)
        assert await swept(30) == Swept(1, 1, 300_002)
        await kafka.tell(agent, "carries", "signal", name="go", payload=b'"x"')
        await kafka.until_status(agent, "carries", "completed")


async def test_a_pointer_that_moves_while_the_sweep_reads_is_seen(
    bootstrap: str, app: str, agent_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = doubling(agent_name)
    async with storing(bootstrap, app, agent, str(tmp_path)) as kafka:
        store = blobs_of(kafka)
        moving = pointer_to(b"1", 0)
        await store.put(moving, b"1")
        read, moved = blob_sweep._read, False

        async def reading(backend: Any, topic: str, *more: Any) -> set[str]:
            nonlocal moved
            found = await read(backend, topic, *more)
            if not moved:
                moved = True
                await kafka.send(ProducerRecord(topic, 0, b"k", moving.encode()))
            return found

        monkeypatch.setattr(blob_sweep, "_read", reading)
        backend = KafkaBackend(kafka.settings, kafka.clock)
        done = await sweep(
            kafka.settings, backend, store, now_ms=kafka.clock.now_ms(), keep_days=7, dry_run=False
        )
        assert done == Swept(1, 0, 0)


async def test_s3_keeps_lists_and_deletes_its_own(app: str, aws: str) -> None:
    made = {"app": app, "aws_endpoint_url": aws, "aws_region": REGION}
    store, other = (
        open_blobs(load_settings(**made | {"blobs": f"s3://large/{prefix}"}))
        for prefix in ("one", "one/two")
    )
    assert store is not None
    assert other is not None
    here, there = pointer_to(b"1", 0), pointer_to(b"22", DAY_MS)
    await store.put(here, b"1")
    await other.put(there, b"22")
    assert (await store.get(here), await store.get(there)) == (b"1", None)
    assert [found async for found in store.keys()] == [(here.key, 1)]  # noqa: SIM118
    await store.delete(here.key)
    assert await store.get(here) is None
    assert await other.get(there) == b"22"


async def test_a_bucket_that_is_not_there_is_waited_for_and_not_taken_for_an_empty_one(
    app: str, aws: str
) -> None:
    store = open_blobs(
        load_settings(app=app, aws_endpoint_url=aws, aws_region=REGION, blobs="s3://nowhere")
    )
    assert store is not None
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        await store.get(pointer_to(b"1", 0))
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        await store.put(pointer_to(b"1", 0), b"1")


async def test_a_sweep_of_a_log_that_has_never_seen_the_app_deletes_nothing(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    settings = load_settings(bootstrap_servers=bootstrap, app=f"{app}-other", blobs=str(tmp_path))
    store = open_blobs(settings)
    assert store is not None
    await store.put(pointer_to(b"1", 0), b"1")
    backend = KafkaBackend(settings, SystemClock())
    with pytest.raises(ConfigError, match=r"SUREFOOT_APP.*Nothing was deleted"):
        await sweep(
            settings, backend, store, now_ms=SystemClock().now_ms(), keep_days=7, dry_run=False
        )
    assert len(await keys(store)) == 1


def test_large_payloads_and_their_sweep_through_the_command_line(tmp_path: Path) -> None:
    """On the embedded log."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "doubling.py").write_text(DOUBLING)
    env = {
        "SUREFOOT_LOG": "sqlite:///runs.db",
        "SUREFOOT_BLOBS": "blobs",
        "SUREFOOT_GATEWAY_PORT": "0",
    }
    cli = Cli(env, tmp_path)
    try:
        serving = cli.start("serve", "doubling.py")
        serving.wait_for("worker_ready")
        cli.ok("runs", "start", "doubling.py", "--payload", "2000000", "--run-id", "r")
        run = until_sync(
            lambda: cli.ok("runs", "list", "doubling", "--status", "completed").strip(),
            what="the run to be completed",
        )
        assert "r" in run
        shown = json.loads(cli.ok("runs", "show", "doubling", "r", "--json"))
        assert shown["result"] == 4_000_000
        (blob,) = (tmp_path / "blobs" / "surefoot").glob("*/*")
        orphan = tmp_path / "blobs" / "surefoot" / "20200101" / blob.name
        orphan.parent.mkdir()
        orphan.write_bytes(b"1")
        told = cli.ok("blobs", "gc")
        assert told == "deleted: 1 (1 bytes); still needed: 0\n"
        assert blob.exists()
        assert serving.stop() == 0
    finally:
        cli.close()


DOUBLING = """
from surefoot import Agent, Context, Done, Next

doubling = Agent("doubling")

@doubling.step
async def make(ctx: Context, size: int) -> Next:
    return Next(measure, "xy" * size)

@doubling.step
async def measure(ctx: Context, text: str) -> Done:
    return Done(len(text))
"""


ECHO = """
from typing import Any
from surefoot import Agent, Context, Done, Next, Wait

echo = Agent("echo")

@echo.step
async def first(ctx: Context, given: Any) -> Wait:
    return Wait("go", then=second, carry=["x" * 300_000, given])

@echo.step
async def second(ctx: Context, said: Any, carry: list) -> Next:
    return Next(last, [*carry, said])

@echo.step
async def last(ctx: Context, all: list) -> Done:
    return Done([len(all[0]), *all[1:]])
"""


def test_a_pointer_from_outside_is_data_and_one_of_ours_survives_being_sent_back(
    tmp_path: Path,
) -> None:
    """On the embedded log, through the command line."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "echo.py").write_text(ECHO)
    env = {
        "SUREFOOT_LOG": "sqlite:///runs.db",
        "SUREFOOT_BLOBS": "blobs",
        "SUREFOOT_GATEWAY_PORT": "0",
    }
    cli = Cli(env, tmp_path)

    def result(run_id: str, epoch: int = 0) -> Any:
        def found() -> Any:
            shown = json.loads(cli.ok("runs", "show", "echo", run_id, "--json"))
            ended = (shown["status"], shown["epoch"]) == ("completed", epoch)
            return shown["result"] if ended else None

        return until_sync(found, what=f"{run_id} to be completed")

    try:
        serving = cli.start("serve", "echo.py")
        serving.wait_for("worker_ready")
        cli.ok("runs", "start", "echo.py", "--payload", '"mine"', "--run-id", "victim")
        blobs = tmp_path / "blobs" / "surefoot"
        (blob,) = until_sync(lambda: list(blobs.glob("*/*")), what="the blob of the first run")
        name = f"{blob.parent.name}/{blob.name}/{blob.stat().st_size}"
        made_up = {"$surefoot.blob": name}
        text = json.dumps(made_up)
        cli.ok("runs", "start", "echo.py", "--payload", text, "--run-id", "r")
        cli.ok("runs", "signal", "echo", "r", "go", text)
        assert result("r") == [300_000, made_up, made_up]
        cli.ok("runs", "rewind", "echo", "r", "--to", "2")
        assert result("r", epoch=1) == [300_000, made_up, made_up]
        cli.ok("runs", "fork", "echo", "r", "--at", "2", "--run-id", "branch")
        assert result("branch") == [300_000, made_up, made_up]
        assert serving.stop() == 0
    finally:
        cli.close()
