"""The record of deliveries: what it keeps, what it leaves out, and that nobody waits for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers import delivery_log
from surefoot.infra.readers.delivery_log import DeliveryReader, DeliveryWriter
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.producers.webhooks.recorder import REFUSED_BURST, REFUSED_EVERY_S, Arrival, Recorder
from surefoot.schemas.codec.codec import UndecodableError, encode
from surefoot.state.errors import RecordTooLarge, Unavailable
from surefoot.state.ports.log import Position, ProducerRecord
from surefoot.state.reading.deliveries import Delivery, delivery_json, delivery_out, read_delivery
from tests.support.eventually import until
from tests.unit.producers.test_gateway import (
    DELIVERY,
    RAW,
    RUN,
    SECRET,
    FakeClock,
    FakeDeliveries,
    Gateway,
    triage_agent,
)

ONE = Delivery(
    id="018f0000000070008000000000000000",
    source="github",
    at_ms=1_700_000_000_000,
    outcome="started",
    status=202,
    verified=True,
    delivery="d-1",
    event="issues",
    headers=(("x-github-event", "issues"),),
    body=b"\xff{}",
    body_bytes=3,
    runs=(("triage", "github-d-1"),),
    errors=("other: no",),
    unrecorded=2,
)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    one = Gateway()
    async with one.http:
        yield one


def only(gateway: Gateway) -> Delivery:
    [delivery] = gateway.deliveries.offered
    return delivery


# What is kept ---------------------------------------------------------------------------------


async def test_a_delivery_that_started_a_run_is_kept_as_it_came(gateway: Gateway) -> None:
    await gateway.deliver()
    kept = only(gateway)
    assert (kept.outcome, kept.status, kept.verified) == ("started", 202, True)
    assert (kept.source, kept.delivery, kept.event) == ("github", DELIVERY, "issues")
    assert kept.runs == (("triage", RUN),)
    assert kept.body == RAW


async def test_no_credential_is_kept_or_shown_to_a_mapping(gateway: Gateway) -> None:
    names = (
        "Authorization",
        "Cookie",
        "Proxy-Authorization",
        "X-Api-Key",
        "X-Auth-Token",
        "X-Gitlab-Token",
        "X-Hub-Signature",
        "Stripe-Signature",
        "X-Client-Secret",
    )
    await gateway.deliver(**{name.replace("-", "_"): "canary" for name in names}, X_Other="kept")
    kept = only(gateway)
    assert kept.verified
    assert ("x-other", "kept") in kept.headers
    for text in ("canary", SECRET, "sha256="):
        assert text not in repr(kept)


async def test_of_a_delivery_without_a_right_signature_little_is_kept(gateway: Gateway) -> None:
    await gateway.deliver(
        b"x" * 5_000,
        X_Hub_Signature_256="sha256=" + "0" * 64,
        X_GitHub_Event="e" * 5_000,
        User_Agent="u" * 5_000,
        X_Other="o" * 5_000,
    )
    kept = only(gateway)
    assert (kept.outcome, kept.status, kept.verified) == ("refused", 401, False)
    assert kept.reason == "x-hub-signature-256 does not match this body and secret"
    assert (kept.body, kept.body_bytes) == (None, 5_000)
    assert dict(kept.headers)["user-agent"] == "u" * 200
    assert len(delivery_out("a", 1, kept).value or b"") < 1_000


async def test_why_a_delivery_was_not_taken_is_kept(gateway: Gateway) -> None:
    await gateway.deliver(b"[1")
    await gateway.deliver(Content_Encoding="gzip")
    await gateway.deliver(X_GitHub_Event="ping")
    await gateway.http.post("/webhooks/elsewhere%00%ff", content=b"{}")
    gateway.commands.fails["triage"] = Unavailable("SF3002", "no Kafka")
    await gateway.deliver()
    gateway.commands.fails["triage"] = RecordTooLarge("too long", size=2, limit=1)
    await gateway.deliver()
    told = [(each.outcome, each.status, each.verified) for each in gateway.deliveries.offered]
    assert told == [
        ("failed", 422, True),
        ("refused", 415, True),
        ("ignored", 200, True),
        ("refused", 404, False),
        ("unavailable", 503, True),
        ("failed", 413, True),
    ]
    assert gateway.deliveries.offered[3].source == "unknown"
    assert "no Kafka" in str(gateway.deliveries.offered[4].reason)


async def test_a_mapping_that_failed_is_kept_with_the_runs_of_the_others() -> None:
    broken, fine = triage_agent(), triage_agent()
    broken.name = "broken"
    broken.webhooks.clear()
    broken.webhook("github")(lambda delivery: delivery.json["missing"])
    gateway = Gateway(broken, fine)
    await gateway.deliver()
    kept = only(gateway)
    assert (kept.outcome, kept.status) == ("failed", 422)
    assert kept.runs == (("triage", RUN),)
    assert kept.errors == ("broken: the webhook mapping raised KeyError",)


# Strangers ------------------------------------------------------------------------------------


class MovingClock(FakeClock):
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


def test_refused_deliveries_are_recorded_a_few_at_a_time_and_the_rest_is_counted() -> None:
    log, clock = FakeDeliveries(), MovingClock()
    recorder = Recorder(log, clock)
    stranger = Arrival("github")

    def refuse(times: int) -> int:
        before = len(log.offered)
        for _ in range(times):
            recorder.record(stranger, "refused", 401, "no signature")
        return len(log.offered) - before

    assert refuse(10_000) == REFUSED_BURST
    recorder.record(Arrival("github", verified=True), "ignored", 200)
    assert log.offered[-1].unrecorded == 10_000 - REFUSED_BURST
    clock.now_s += REFUSED_EVERY_S
    assert refuse(100) == 1
    clock.now_s += 365 * 86_400.0
    assert refuse(100) == REFUSED_BURST


def test_verified_deliveries_are_all_recorded() -> None:
    log = FakeDeliveries()
    recorder = Recorder(log, MovingClock())
    for _ in range(10 * REFUSED_BURST):
        recorder.record(Arrival("github", verified=True), "ignored", 200)
    assert len(log.offered) == 10 * REFUSED_BURST


# The record itself ----------------------------------------------------------------------------


def test_a_record_comes_back_as_it_went_in() -> None:
    out = delivery_out("shop", 6, ONE)
    assert (out.topic, out.key) == ("shop.deliveries", ONE.id.encode())
    assert read_delivery(out.value) == ONE
    bare = Delivery(id="x", source="unknown", at_ms=0, outcome="refused", status=404)
    assert read_delivery(delivery_out("shop", 6, bare).value) == bare


def test_what_is_shown_is_json_whatever_the_body_was() -> None:
    assert json.loads(json.dumps(delivery_json(ONE)))["body"] == "\\xff{}"


def test_a_record_of_another_kind_or_outcome_is_not_read() -> None:
    value = delivery_out("shop", 6, replace(ONE, outcome="started")).value
    assert value is not None
    for wrong in (b"", value[:-1], value.replace(b"started", b"strated")):
        with pytest.raises(UndecodableError):
            read_delivery(wrong)
    with pytest.raises(UndecodableError):
        read_delivery(encode("Header", {"name": "a", "value": "b"}))


# Writing --------------------------------------------------------------------------------------


@dataclass
class FakeAppender:
    """Takes records, or raises what `fails` says; `held` until let go."""

    taken: list[ProducerRecord] = field(default_factory=list)
    fails: list[Exception] = field(default_factory=list)
    may_go: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: bool = False

    async def append(self, out: ProducerRecord, _what: str, *, deadline_s: float) -> Position:
        assert deadline_s > 0
        await self.may_go.wait()
        if self.fails:
            raise self.fails.pop(0)
        self.taken.append(out)
        return Position(out.partition, len(self.taken) - 1)

    async def stop(self) -> None:
        self.stopped = True

    def ids(self) -> list[str]:
        return [read_delivery(out.value).id for out in self.taken]


@pytest.fixture
async def appender(monkeypatch: pytest.MonkeyPatch) -> FakeAppender:
    monkeypatch.setattr(delivery_log, "_RETRY_S", 0.0)
    monkeypatch.setattr(delivery_log, "_STOP_S", 180.0)
    monkeypatch.setattr(delivery_log, "_GATHER_S", 0.0)
    return FakeAppender()


def numbered(number: int, **fields: Any) -> Delivery:
    return replace(ONE, id=f"d{number:04}", **fields)


async def test_what_is_offered_is_written_in_the_end_also_on_the_way_down(
    appender: FakeAppender,
) -> None:
    writer = DeliveryWriter(load_settings(), appender)
    appender.may_go.set()
    for number in range(200):
        writer.offer(numbered(number))
    await writer.stop()
    assert sorted(appender.ids()) == [f"d{number:04}" for number in range(200)]
    assert appender.stopped
    await writer.stop()


async def test_while_the_log_is_away_records_wait_and_are_written_after_it(
    appender: FakeAppender,
) -> None:
    writer = DeliveryWriter(load_settings(), appender)
    appender.fails = [Unavailable("SF3002", "away")] * 7
    appender.may_go.set()
    for number in range(3):
        writer.offer(numbered(number))
    await until(lambda: len(appender.taken) == 3, what="all records")
    assert set(appender.ids()) == {"d0000", "d0001", "d0002"}
    await writer.stop()


async def test_offering_never_waits_and_what_is_too_much_is_dropped(
    appender: FakeAppender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_log, "WAITING_DELIVERIES", 10)
    writer = DeliveryWriter(load_settings(), appender)
    with structlog.testing.capture_logs() as logs:
        for number in range(25):
            writer.offer(numbered(number))
    assert [line["dropped"] for line in logs] == [1, 2, 4, 8]
    await until(lambda: writer._task is not None, what="a task")
    appender.may_go.set()
    await writer.stop()
    assert len(appender.taken) == 10


async def test_bodies_that_wait_are_bounded_in_bytes(
    appender: FakeAppender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_log, "WAITING_DELIVERY_BYTES", 250)
    writer = DeliveryWriter(load_settings(), appender)
    for number in range(5):
        writer.offer(numbered(number, body=b"x" * 100))
    appender.may_go.set()
    await until(lambda: len(appender.taken) == 2, what="two records")
    writer.offer(numbered(9, body=b"x" * 100))
    await writer.stop()
    assert appender.ids() == ["d0000", "d0001", "d0009"]


async def test_a_log_that_hangs_does_not_hold_up_the_way_down(
    appender: FakeAppender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_log, "_STOP_S", 0.1)
    writer = DeliveryWriter(load_settings(), appender)
    writer.offer(ONE)
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(180):
            await writer.stop()
    assert [line["event"] for line in logs] == ["deliveries_not_recorded"]
    assert appender.stopped


async def test_where_the_body_has_no_room_the_rest_is_kept_and_others_go_on(
    appender: FakeAppender,
) -> None:
    writer = DeliveryWriter(load_settings(), appender)
    appender.may_go.set()
    appender.fails = [RecordTooLarge("too long", size=2, limit=1)]
    writer.offer(numbered(1))
    writer.offer(numbered(2, reason="\ud800"))  # cannot be encoded
    writer.offer(numbered(3))
    await until(lambda: len(appender.taken) == 2, what="two records")
    kept = {each.id: each for each in (read_delivery(out.value) for out in appender.taken)}
    assert (kept["d0001"].body, kept["d0001"].body_bytes) == (None, 3)
    assert kept["d0003"].body == ONE.body
    await writer.stop()


async def test_the_answer_is_given_while_the_record_hangs(appender: FakeAppender) -> None:
    gateway = Gateway()
    writer = DeliveryWriter(load_settings(), appender)
    gateway.deliveries.offer = writer.offer  # type: ignore[method-assign]
    async with gateway.http:
        answers = [await gateway.deliver() for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202] * 3
    assert appender.taken == []
    appender.may_go.set()
    await writer.stop()
    assert len(appender.taken) == 3


# Reading --------------------------------------------------------------------------------------


@pytest.fixture
def chosen(tmp_path: Path) -> Settings:
    return load_settings(log=f"sqlite:///{tmp_path / 'x.db'}", partitions=3)


@pytest.fixture
async def backend(chosen: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
    for deadline in ("_STOP_S", "_APPEND_S", "_READ_S"):  # of people, not of a busy machine
        monkeypatch.setattr(delivery_log, deadline, 180.0)
    async with open_backend(chosen, SystemClock(), owner=True) as made:
        async with made.topics() as topics:
            await topics.apply(specs_for([], chosen))
        yield made


async def test_the_newest_are_found_first_however_many_there_are(
    chosen: Settings, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_log, "_WINDOW", 7)
    writer = DeliveryWriter(chosen, backend.appender())
    for number in range(100):
        source = "stripe" if number % 20 == 0 else "github"
        writer.offer(numbered(number, source=source, delivery=f"own-{number % 50}"))
    writer.offer(numbered(99, delivery="own-49"))  # written twice after an unknown outcome
    await writer.stop()
    reader = DeliveryReader(chosen, backend)
    newest = await reader.latest(lambda _: True, 5)
    assert [each.id for each in newest] == ["d0099", "d0098", "d0097", "d0096", "d0095"]
    stripe = await reader.latest(lambda each: each.source == "stripe", 50)
    assert [each.id for each in stripe] == ["d0080", "d0060", "d0040", "d0020", "d0000"]
    assert len(await reader.latest(lambda _: True, 1_000)) == 100
    by_record, by_sender = await reader.find("d0003"), await reader.find("own-3")
    assert by_record is not None
    assert by_record.id == "d0003"
    assert by_sender is not None
    assert by_sender.id == "d0053"
    assert await reader.find("nobody") is None
    await reader.stop()


async def test_nothing_is_found_where_nothing_is(chosen: Settings, backend: Backend) -> None:
    reader = DeliveryReader(chosen, backend)
    assert await reader.latest(lambda _: True, 5) == []
    assert await reader.find("x") is None
    await reader.stop()


async def test_a_record_that_cannot_be_read_does_not_hide_the_others(
    chosen: Settings, backend: Backend
) -> None:
    appender = backend.appender()
    good = delivery_out(chosen.app, 3, ONE)
    for value in (b"junk", good.value):
        await appender.append(good._replace(value=value), "a record", deadline_s=180)
    reader = DeliveryReader(chosen, backend)
    assert await reader.latest(lambda _: True, 5) == [ONE]
    await reader.stop()
