"""The archive on a real broker and S3's API: what Kafka has deleted is still shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from surefoot import Agent, ConfigError
from surefoot.infra.aws.client import Aws
from surefoot.infra.processes.archive import require_archive
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.errors import StoreRefused, Unavailable
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ProducerRecord
from tests.integration.cli.test_cli_end_to_end import Cli, cli
from tests.support.archived import DAY_MS, life, offsets_by_any_reader
from tests.support.aws import REGION, aws_server, client
from tests.support.cluster import Cluster, cluster
from tests.support.long_deadlines import PATIENT
from tests.support.servers import asked

__all__ = ["cli"]

BUCKET = "archive-of-a-test"
SHOP = """
from surefoot import Agent, Context, Done, Next, TerminalError

shop = Agent("shop")

@shop.step
async def pack(ctx: Context, number: int) -> Next:
    return Next(ship, number + 1)

@shop.step
async def ship(ctx: Context, number: int) -> Done:
    if number == 13:
        raise TerminalError("unlucky")
    return Done(number * 2)
"""
#: what a history does not tell, or tells otherwise than a checkpoint
OTHERWISE = {"archived", "payload", "why", "wait", "attempt"}


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    with aws_server() as url:
        client(url, "s3").create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        yield url


@pytest.fixture
def shop_file(tmp_path: Path) -> str:
    path = tmp_path / "shop.py"
    path.write_text(SHOP)
    return str(path)


@pytest.fixture
async def kafka(bootstrap: str, app: str, shop_file: str) -> AsyncIterator[Cluster]:
    async with cluster(bootstrap, app, loaded(shop_file), partitions=6, **PATIENT) as made:
        yield made


def loaded(path: str) -> Agent:
    space: dict[str, Any] = {"__name__": "shop_of_a_test"}
    exec(compile(Path(path).read_text(), path, "exec"), space)
    agent: Agent = space["shop"]
    return agent


def archiving(cli: Cli, aws: str, where: str = f"s3://{BUCKET}/kept", **more: str) -> None:
    cli._env |= {
        "SUREFOOT_ARCHIVE": where,
        "SUREFOOT_AWS_ENDPOINT_URL": aws,
        "SUREFOOT_AWS_REGION": REGION,
        **more,
    }


async def typed(cli: Cli, *args: str) -> tuple[int, str]:
    """What a command that reads says, without a process of its own."""
    done = await asyncio.to_thread(cli.here, *args)
    return done.returncode, done.stdout


async def shown(cli: Cli, run_id: str) -> dict[str, Any]:
    status, said = await typed(cli, "runs", "show", "shop", run_id, "--json")
    assert status == 0
    told: dict[str, Any] = json.loads(said)
    return told


async def forget(kafka: Cluster, run_ids: list[str]) -> None:
    """What retention and the dedup window do to runs that are over."""
    topics = kafka.topics("shop")
    for record in await kafka.read(topics.state):
        if (record.key or b"").decode() in run_ids:
            await kafka.send(ProducerRecord(topics.state, record.partition, record.key, None))
    for partition in range(kafka.settings.partitions):
        await kafka.delete_before(topics.events, partition, -1)


async def test_what_kafka_has_deleted_is_shown_from_the_archive(
    cli: Cli, kafka: Cluster, app: str, aws: str, shop_file: str
) -> None:
    agent = loaded(shop_file)
    running = await kafka.work(agent)
    for run_id, payload in {"good": b"4", "bad": b"12"}.items():
        await kafka.start(agent, run_id, payload)
    await kafka.until_status(agent, "good", "completed")
    await kafka.until_status(agent, "bad", "failed")
    await running.drain()
    events = await kafka.read(kafka.topics("shop").events)
    written = sorted(record.offset for record in events)
    of_a_day = {(record.partition, record.timestamp // DAY_MS) for record in events}

    archiving(cli, aws)
    said = await asyncio.to_thread(cli.ok, "archive", shop_file, "--once")
    assert said == f"shop: {len(written)} events in {len(of_a_day)} files\n"

    before = {name: await shown(cli, name) for name in ("good", "bad")}
    await forget(kafka, ["good", "bad"])
    s3 = client(aws, "s3")
    keys = [found["Key"] for found in s3.list_objects_v2(Bucket=BUCKET)["Contents"]]
    files = [
        s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        for key in keys
        if key.startswith(f"kept/{app}/agent=shop/kind=events/")
    ]
    assert offsets_by_any_reader(files) == written
    for name, was in before.items():
        told = await shown(cli, name)
        assert told["archived"] is True
        assert told.keys() == was.keys() | {"archived"}
        assert {k: told[k] for k in told.keys() - OTHERWISE} == {
            k: was[k] for k in was.keys() - OTHERWISE
        }
        assert told["why"]["do"] == [f"surefoot runs watch shop {name}"]
    status, said = await typed(cli, "runs", "watch", "shop", "bad")
    assert status == 1
    assert [line.split()[2] for line in said.splitlines()[:-1]] == [
        "run.started",
        "step.completed",
        "run.failed",
    ]
    assert (await typed(cli, "runs", "show", "shop", "nobody"))[0] == 1
    cli._env["SUREFOOT_ARCHIVE"] = ""
    assert (await typed(cli, "runs", "show", "shop", "good"))[0] == 1

    settings = load_settings(
        **kafka.settings.model_dump(exclude_unset=True)
        | {
            "gateway_port": 0,
            "archive": f"s3://{BUCKET}/kept",
            "aws_endpoint_url": aws,
            "aws_region": REGION,
        }
    )
    async with asked(agent, settings) as http:
        answer = await http.get("/runs/shop/good")
        assert (answer.status_code, answer.json()["archived"], answer.json()["result"]) == (
            200,
            True,
            10,
        )
        history = (await http.get("/runs/shop/good/events")).text
        assert history.count("event: run.completed") == 1
        assert (await http.get("/runs/shop/nobody")).status_code == 404
        assert "archive" not in (await http.get("/ready")).json()
    gone = settings.model_copy(update={"archive": "s3://no-such-bucket-there/kept"})
    async with asked(agent, gone) as http:
        answer = await http.get("/ready")
        while "archive" not in answer.json():
            answer = await http.get("/ready")
        assert (answer.status_code, answer.json()["ready"]) == (200, True)
        assert answer.json()["archive"].startswith("SF3066: s3://no-such-bucket-there/kept/")


def refused(where: str | None, aws: str) -> str:
    """The number of the error."""

    async def check() -> None:
        settings = load_settings(archive=where, aws_endpoint_url=aws, aws_region=REGION)
        await require_archive(settings).check()

    with pytest.raises(ConfigError) as raised:
        asyncio.run(check())
    return raised.value.number


def test_what_cannot_work_is_told_before_anything_is_read(aws: str) -> None:
    assert refused(None, aws) == "SF1057"
    assert refused("s3://no-such-bucket-there/x", aws) == "SF1058"
    assert refused("file:///no/such/folder", aws) == "SF1058"
    assert refused("ftp://somewhere", aws) == "SF1001"


async def test_a_store_that_refuses_later_on_is_told_apart_from_one_that_is_away(aws: str) -> None:
    where = "s3://no-such-bucket-there/x"
    store = require_archive(load_settings(archive=where, aws_endpoint_url=aws, aws_region=REGION))
    asked = (partial(store.put, "a", b""), partial(store.put_new, "a", b""), store.look)
    for ask in asked:
        with pytest.raises(
            StoreRefused, match=r"SF3066: s3://no-such-bucket-there/x/.* refuses the "
        ):
            await ask()
    away = load_settings(archive=where, aws_endpoint_url="http://127.0.0.1:9", aws_region=REGION)
    with pytest.raises(Unavailable, match="SF3041"):
        await require_archive(away).look()


def test_a_store_that_overwrites_is_refused(aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Aws.call

    async def older(self: Aws, operation: str, **arguments: Any) -> dict[str, Any]:
        arguments.pop("IfNoneMatch", None)
        return await real(self, operation, **arguments)

    monkeypatch.setattr(Aws, "call", older)
    assert refused(f"s3://{BUCKET}/older", aws) == "SF1059"


async def test_it_archives_until_it_is_asked_to_stop(
    cli: Cli, kafka: Cluster, app: str, aws: str, shop_file: str
) -> None:
    archiving(cli, aws, SUREFOOT_ARCHIVE_AGE_S="0.1")
    service = cli.start("archive", shop_file)
    await asyncio.to_thread(service.wait_for, "archive_begins", kafka.settings.partitions)
    for number, value in enumerate(life("r")):
        await kafka.send(ProducerRecord(kafka.topics("shop").events, number, b"r", value))
    await asyncio.to_thread(service.wait_for, "archived", 2)
    assert await asyncio.to_thread(service.stop) == 0
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.settings.bootstrap_servers,
        group_id=AgentTopics(app, "shop").archive_group,
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        places = [TopicPartition(kafka.topics("shop").events, number) for number in range(3)]
        assert [await consumer.committed(place) for place in places] == [1, 1, None]
    finally:
        await consumer.stop()
