"""Runs from SQS, over HTTP against moto's server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from surefoot import Agent, ConfigError, Context, Done, QueueMessage, Unavailable
from surefoot.infra.aws.client import Aws
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.sources import sqs as sqs_source
from surefoot.infra.sources.sqs import SqsSource
from surefoot.infra.sources.starter import Starter
from surefoot.producers.sources.sqs_messages import message_of
from surefoot.state.ports.log import Position
from tests.integration.cli.test_cli_end_to_end import Cli
from tests.support.aws import KEYS, REGION, aws_server, client
from tests.support.eventually import until, until_sync
from tests.support.long_deadlines import LONG_S


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    with aws_server() as url:
        yield url


@pytest.fixture
def one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may give one message to two who ask at the same moment, and one that is given back
    to a poll that is still under way."""
    monkeypatch.setattr(sqs_source, "READERS", 1)


@pytest.fixture(autouse=True)
def leaves_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is deleted or given back on the way down has as long as it takes."""
    monkeypatch.setattr(sqs_source, "_LEAVE_S", LONG_S)


@pytest.fixture
def settings(aws: str) -> Settings:
    return load_settings(aws_endpoint_url=aws, aws_region=REGION)


@pytest.fixture
def sqs(aws: str) -> Any:
    return client(aws, "sqs")


@dataclass
class MovingClock:
    """By which the server tells who sees a message. It stands still but for what a test puts it
    forward by."""

    now_ms: float

    def forward(self, seconds: float) -> None:
        self.now_ms += 1_000 * seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovingClock:
    clock = MovingClock(SystemClock().now_ms())
    monkeypatch.setattr("moto.sqs.models.unix_time_millis", lambda: clock.now_ms)
    return clock


@pytest.fixture
def queue(sqs: Any) -> str:
    """Name of a queue with a redrive policy: what was seen twice is not seen again."""
    name = f"q-{uuid.uuid4().hex[:8]}"
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": "2"}
    sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": json.dumps(policy)})
    return name


@pytest.fixture
def fifo(sqs: Any) -> str:
    """Name of a FIFO queue whose messages are given up on at their second time."""
    name, kind = f"q-{uuid.uuid4().hex[:8]}", {"FifoQueue": "true"}
    dead = sqs.create_queue(QueueName=f"{name}-dead.fifo", Attributes=kind)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": "1"}
    sqs.create_queue(
        QueueName=f"{name}.fifo", Attributes=kind | {"RedrivePolicy": json.dumps(policy)}
    )
    return f"{name}.fifo"


class Slow:
    """The Commands port: takes no start of the runs that are held, and forgets none."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.tried: list[str] = []
        self.held: set[str] = set()
        self.away = 0

    async def start(self, agent: str, run_id: str, payload: bytes, **_: Any) -> Position:
        assert agent == "numbers"
        self.tried.append(payload.decode())
        while payload.decode() in self.held:
            await asyncio.sleep(0.01)
        if self.away:
            self.away -= 1
            raise Unavailable("SF3002", "Kafka is away")
        self.started.append(run_id)
        return Position(0, 0)

    async def send(self, *args: Any, **_: Any) -> Position:
        raise AssertionError(args)


def numbers() -> Agent:
    agent = Agent("numbers")

    @agent.step
    async def take(ctx: Context, n: int) -> Done:
        return Done(n)

    return agent


def take_number(message: QueueMessage) -> int | None:
    return int(message.body) or None


class Receipts(Aws):
    """Remembers what each message, by its body, was last received under."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.receipts: dict[str, str] = {}

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        answer = await super().call(operation, **arguments)
        for message in answer.get("Messages", []):
            self.receipts[message["Body"]] = message["ReceiptHandle"]
        return answer


@asynccontextmanager
async def listening(
    settings: Settings,
    queue: str,
    commands: Slow,
    visibility_s: int = 60,
    fn: Any = take_number,
    aws: Aws | None = None,
) -> AsyncIterator[asyncio.Task[None]]:
    agent = numbers()
    agent.sqs(queue)(fn)
    source = SqsSource(
        queue,
        [(agent, agent.queues[0])],
        Starter(commands, SystemClock()),
        aws or Aws(settings, "sqs", at_once=8),
        visibility_s=visibility_s,
        wait_s=1,
    )
    task = asyncio.create_task(source.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def left(sqs: Any, queue: str) -> int:
    """Messages that the queue still has, seen or not."""
    told = sqs.get_queue_attributes(
        QueueUrl=sqs.get_queue_url(QueueName=queue)["QueueUrl"], AttributeNames=["All"]
    )["Attributes"]
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    return sum(int(told[name]) for name in names)


def send(sqs: Any, queue: str, *bodies: str) -> list[str]:
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    return [sqs.send_message(QueueUrl=url, MessageBody=body)["MessageId"] for body in bodies]


def send_to_group(sqs: Any, queue: str, group: str, *bodies: str) -> list[str]:
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    return [
        sqs.send_message(
            QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=body
        )["MessageId"]
        for body in bodies
    ]


async def test_a_message_is_deleted_once_its_start_is_acknowledged_and_not_before(
    settings: Settings, sqs: Any, queue: str, one_reader: None
) -> None:
    commands = Slow()
    commands.held.add("7")
    (identity,) = send(sqs, queue, "7")
    async with listening(settings, queue, commands):
        await until(lambda: commands.tried, what="the start to be tried")
        assert left(sqs, queue) == 1
        commands.held.clear()
        await until(lambda: left(sqs, queue) == 0, what="the message to be deleted")
    assert commands.started == [f"sqs-{queue}-{identity}"]


async def test_messages_that_are_done_do_not_wait_for_a_slow_one_that_came_with_them(
    settings: Settings, sqs: Any, queue: str, one_reader: None
) -> None:
    commands = Slow()
    commands.held.add("7")
    send(sqs, queue, *(str(number) for number in range(1, 11)))
    async with listening(settings, queue, commands):
        await until(lambda: "7" in commands.tried, what="the slow start to be tried")
        await until(lambda: left(sqs, queue) == 1, what="the others to be deleted")
        assert len(commands.started) == 9
        commands.held.clear()
        await until(lambda: left(sqs, queue) == 0, what="the slow one to be deleted")
    assert len(set(commands.started)) == len(commands.started) == 10


async def test_a_message_that_is_done_is_held_until_it_could_be_deleted(
    settings: Settings, sqs: Any, queue: str, one_reader: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Slow()
    away = iter((True, True))
    call = Aws.call

    async def at_times(self: Aws, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation == "delete_message_batch" and next(away, False):
            raise Unavailable("SF3013", "AWS is away")
        return await call(self, operation, **arguments)

    monkeypatch.setattr(Aws, "call", at_times)
    send(sqs, queue, "7")
    async with listening(settings, queue, commands):
        await until(lambda: left(sqs, queue) == 0, what="the message to be deleted")
    assert (len(commands.started), next(away, None)) == (1, None)


async def test_what_cannot_be_read_is_the_problem_of_that_message_alone(
    settings: Settings, sqs: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Slow()
    looked: list[str] = []

    def reading(queue: str, raw: dict[str, Any]) -> QueueMessage:
        looked.append(raw["Body"])
        if raw["Body"] == "odd":
            raise AttributeError("'list' object has no attribute 'items'")
        return message_of(queue, raw)

    monkeypatch.setattr("surefoot.infra.sources.sqs.message_of", reading)
    send(
        sqs, queue, "1", "odd", '{"Type": "Notification", "Message": "2", "MessageAttributes": []}'
    )
    async with listening(settings, queue, commands, fn=of_any_body) as task:
        await until(lambda: left(sqs, queue) == 1, what="the others to be deleted")
        await until(lambda: "odd" in looked, what="the odd one to be looked at")
        send(sqs, queue, "3")
        await until(lambda: len(commands.started) == 3, what="the next one to be started")
        assert not task.done()


def of_any_body(message: QueueMessage) -> int:
    return len(message.body)


async def test_while_kafka_is_away_the_message_is_held_on_to(
    settings: Settings, sqs: Any, queue: str, one_reader: None
) -> None:
    commands = Slow()
    commands.away = 3
    send(sqs, queue, "7")
    async with listening(settings, queue, commands):
        await until(lambda: left(sqs, queue) == 0, what="the message to be deleted")
    assert (len(commands.tried), len(commands.started)) == (4, 1)


@pytest.mark.usefixtures("one_reader")
async def test_a_message_in_work_stays_out_of_sight_for_longer_than_the_visibility_timeout(
    settings: Settings, sqs: Any, queue: str, clock: MovingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Slow()
    commands.held.add("7")
    asked: Counter[str] = Counter()
    call = Aws.call

    async def counting(self: Aws, operation: str, **arguments: Any) -> dict[str, Any]:
        answer = await call(self, operation, **arguments)
        asked[operation] += 1
        return answer

    async def kept() -> None:
        """From now on: by the second one, as the first may be under way."""
        wanted = asked["change_message_visibility_batch"] + 2
        await until(
            lambda: asked["change_message_visibility_batch"] >= wanted, what="it to be kept"
        )

    monkeypatch.setattr(Aws, "call", counting)
    send(sqs, queue, "7")
    async with listening(settings, queue, commands, visibility_s=1):
        await until(lambda: commands.tried, what="the start to be tried")
        for _ in range(2):
            clock.forward(0.7)
            await kept()
        clock.forward(0.1)
        url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        assert "Messages" not in sqs.receive_message(QueueUrl=url)
        commands.held.clear()
        await until(lambda: left(sqs, queue) == 0, what="the message to be deleted")


async def test_a_bad_message_holds_up_no_other_and_ends_in_the_dead_letter_queue(
    settings: Settings, sqs: Any, queue: str, clock: MovingClock
) -> None:
    commands = Slow()
    send(sqs, queue, "1", "bad", "2", "0")

    def moved() -> bool:
        clock.forward(61)  # it is seen again
        return left(sqs, f"{queue}-dead") == 1

    async with listening(settings, queue, commands):
        await until(lambda: left(sqs, queue) == 1, what="the others to be deleted")
        await until(moved, what="the bad message to be moved")
        assert left(sqs, queue) == 0
    assert len(set(commands.started)) == 2


async def test_a_group_of_a_fifo_queue_waits_for_its_first_message_and_other_groups_do_not(
    settings: Settings, sqs: Any, fifo: str
) -> None:
    commands = Slow()
    commands.held.add("1")
    one, two = send_to_group(sqs, fifo, "a", "1", "2")
    (other,) = send_to_group(sqs, fifo, "b", "3")
    async with listening(settings, fifo, commands):
        await until(lambda: left(sqs, fifo) == 2, what="the other group's message to be deleted")
        await until(lambda: "1" in commands.tried, what="the start to be tried")
        assert sorted(commands.tried) == ["1", "3"]
        commands.held.clear()
        await until(lambda: left(sqs, fifo) == 0, what="the messages to be deleted")
    name = fifo.removesuffix(".fifo")
    assert commands.started == [f"sqs-{name}-{each}" for each in (other, one, two)]


async def test_behind_a_bad_message_of_a_fifo_queue_none_is_tried_or_given_up_before_it_is(
    settings: Settings, sqs: Any, fifo: str
) -> None:
    commands, aws = Slow(), Receipts(settings, "sqs", at_once=8)
    url, dead = sqs.get_queue_url(QueueName=fifo)["QueueUrl"], fifo.replace(".", "-dead.")
    mapped: list[QueueMessage] = []
    dead_when_mapped = []

    def noted(message: QueueMessage) -> int:
        dead_when_mapped.append(left(sqs, dead))
        mapped.append(message)
        return int(message.body)

    send_to_group(sqs, fifo, "a", "1", "bad", "2", "3")
    async with listening(settings, fifo, commands, fn=noted, aws=aws):
        await until(lambda: len(mapped) == 2, what="the bad message to be tried")
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=aws.receipts["bad"], VisibilityTimeout=0
        )
        await until(lambda: left(sqs, fifo) == 0, what="the group to come to its end")
    assert [message.body for message in mapped] == ["1", "bad", "2", "3"]
    assert dead_when_mapped == [0, 0, 1, 1]
    assert {(each.group, each.deduplication_id == each.body) for each in mapped} == {("a", True)}
    assert (len(commands.started), left(sqs, dead)) == (3, 1)


async def test_a_failed_mapping_of_one_agent_takes_no_other_agent_with_it_and_keeps_the_message(
    settings: Settings, sqs: Any, queue: str
) -> None:
    commands = Slow()
    good, bad = numbers(), Agent("other")
    bad.step(good.start_step.fn)
    good.sqs(queue)(take_number)
    bad.sqs(queue)(lambda_that_raises)
    triggers = [(bad, bad.queues[0]), (good, good.queues[0])]
    aws = Aws(settings, "sqs", at_once=8)
    source = SqsSource(queue, triggers, Starter(commands, SystemClock()), aws, wait_s=1)
    send(sqs, queue, "1")
    task = asyncio.create_task(source.run())
    await until(lambda: commands.started, what="the other agent's run")
    task.cancel()
    await asyncio.wait({task})
    assert left(sqs, queue) == 1


def lambda_that_raises(message: QueueMessage) -> int:
    raise RuntimeError(message.body)


async def test_going_down_gives_back_what_has_not_been_started_and_deletes_what_has(
    settings: Settings, sqs: Any, queue: str, one_reader: None
) -> None:
    commands = Slow()
    commands.held.add("2")
    send(sqs, queue, "1", "2")
    async with listening(settings, queue, commands):
        await until(lambda: set(commands.tried) == {"1", "2"}, what="both to be tried")
        await until(lambda: commands.started, what="one to be started")
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    (back,) = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert (back["Body"], left(sqs, queue)) == ("2", 1)


async def test_a_queue_that_is_not_there_is_told_at_once(settings: Settings) -> None:
    with pytest.raises(ConfigError, match=r"no SQS queue 'nowhere'.*SUREFOOT_AWS_REGION"):
        async with listening(settings, "nowhere", Slow()) as task:
            await asyncio.wait({task}, timeout=90)


UPLOADS = """
from surefoot import Agent, Context, Done, S3Object

uploads = Agent("uploads")

@uploads.sqs("QUEUE")
def on_upload(upload: S3Object) -> dict | None:
    return {"key": upload.key, "size": upload.size}

@uploads.step
async def look(ctx: Context, upload: dict) -> Done:
    return Done(upload)
"""


def test_an_object_put_into_a_bucket_is_one_run_through_the_command_line(
    bootstrap: str, app: str, aws: str, sqs: Any, queue: str, tmp_path: Path
) -> None:
    s3 = client(aws, "s3")
    s3.create_bucket(Bucket=queue, CreateBucketConfiguration={"LocationConstraint": REGION})
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    told = [{"QueueArn": arn["Attributes"]["QueueArn"], "Events": ["s3:ObjectCreated:*"]}]
    s3.put_bucket_notification_configuration(
        Bucket=queue, NotificationConfiguration={"QueueConfigurations": told}
    )
    s3.put_object(Bucket=queue, Key="in/a b.json", Body=b"123")
    # what SQS may do at any time
    (message,) = [
        found
        for found in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)[
            "Messages"
        ]
        if "Records" in found["Body"]
    ]
    send(sqs, queue, message["Body"])

    (tmp_path / "uploads.py").write_text(UPLOADS.replace("QUEUE", queue))
    cli = Cli(
        {
            "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap,
            "SUREFOOT_APP": app,
            "SUREFOOT_PARTITIONS": "2",
            "SUREFOOT_AWS_ENDPOINT_URL": aws,
            "SUREFOOT_AWS_REGION": REGION,
            **KEYS,
        },
        tmp_path,
    )
    try:
        cli.ok("topics", "apply", "uploads.py")
        worker = cli.start("worker", "uploads.py")
        trigger = cli.start("trigger", "uploads.py")
        until_sync(lambda: left(sqs, queue) == 0, what="the messages to be deleted")
        worker.wait_for("worker_ready")
        (line,) = until_sync(
            lambda: cli.ok(
                "runs", "list", "uploads", "--status", "completed", "--json"
            ).splitlines(),
            what="the run to be completed",
        )
        run = json.loads(line)
        assert run["run_id"].startswith("s3-")
        shown = json.loads(cli.ok("runs", "show", "uploads", run["run_id"], "--json"))
        assert shown["result"] == {"key": "in/a b.json", "size": 3}
        assert trigger.stop() == 0
        worker.stop()
    finally:
        cli.close()
