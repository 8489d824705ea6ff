"""The checks of the doctor: one that cannot look costs no other. On the embedded log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from surefoot import Agent, Context, Done
from surefoot.cli import app as surefoot
from surefoot.infra.doctor.checks import Doctor
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.readers.dead_letters import DeadReader
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.diagnosis.findings import Examination
from surefoot.state.errors import Unavailable
from surefoot.state.names.topics import dead_topic
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.encoding import start_out

AGENT = """
from surefoot import Agent, Context, Done

shop = Agent("shop")

@shop.step
async def ship(ctx: Context, order: int) -> Done:
    return Done(order)
"""
#: nobody listens there
NOWHERE = "127.0.0.1:1"
HOUR_MS = 3_600_000
EVERY = ["topics", "workers", "triggers", "runs", "effects", "dead letters"]


@pytest.fixture
def agent() -> Agent:
    made = Agent("shop")

    @made.step
    async def ship(ctx: Context, order: int) -> Done:
        return Done(order)

    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = load_settings(log=f"sqlite:///{tmp_path / 'x.db'}", partitions=1)
    return made.within(read_s=180, send_s=180, check_s=180)


@pytest.fixture
async def backend(settings: Settings) -> AsyncIterator[Backend]:
    async with open_backend(settings, SystemClock(), access="make") as made:
        yield made


@pytest.fixture
async def log(settings: Settings, backend: Backend) -> Backend:
    """With the agent's topics."""
    async with backend.topics() as topics:
        await topics.apply(specs_for(["shop"], settings))
    return backend


async def examined(
    settings: Settings, backend: Backend, agent: Agent, *, later_ms: int = 0
) -> Examination:
    doctor = Doctor(settings, backend, [agent])
    try:
        return await doctor.examine(SystemClock().now_ms() + later_ms, 0)
    finally:
        await doctor.stop()


async def append(backend: Backend, out: ProducerRecord) -> None:
    appender = backend.appender()
    try:
        await appender.append(out, "a record", deadline_s=180)
    finally:
        await appender.stop()


async def test_every_check_looks_at_a_log_without_brokers(
    settings: Settings, log: Backend, agent: Agent
) -> None:
    seen = await examined(settings, log, agent)
    assert (seen.looked, seen.findings, seen.blind) == (EVERY, [], [])


async def test_a_start_that_nobody_takes_is_found_with_what_serves_this_log(
    settings: Settings, log: Backend, agent: Agent
) -> None:
    await append(log, start_out(settings.app, 1, "shop", "r1", b"1", sent_ms=1))
    (found,) = (await examined(settings, log, agent, later_ms=HOUR_MS)).findings
    assert (found.code, found.do[0]) == ("nobody_works", "surefoot serve AGENT.py")


async def test_a_start_that_its_owner_does_not_decide_is_found(
    settings: Settings, agent: Agent
) -> None:
    async with open_backend(settings, SystemClock(), owner=True) as log:
        async with log.topics() as topics:
            await topics.apply(specs_for(["shop"], settings))
        await append(log, start_out(settings.app, 1, "shop", "r1", b"1", sent_ms=1))
        before = await examined(settings, log, agent, later_ms=-HOUR_MS)
        assert before.findings == []
        (found,) = (await examined(settings, log, agent, later_ms=HOUR_MS)).findings
    assert found.code == "commands_wait"
    assert "run r1 of shop" in found.what


async def test_topics_that_are_missing_are_found(
    settings: Settings, backend: Backend, agent: Agent
) -> None:
    seen = await examined(settings, backend, agent)
    assert "topics_wrong" in [each.code for each in seen.findings]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Unavailable("SF3093", "may not look"), "SF3093: may not look"),
        (KeyError("new"), "KeyError: 'new'"),
    ],
)
async def test_a_check_that_cannot_look_says_why_and_costs_no_other(
    settings: Settings,
    log: Backend,
    agent: Agent,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    why: str,
) -> None:
    async def denied(*_: object) -> Sequence[object]:
        raise error

    await append(log, ProducerRecord(dead_topic(settings.app), 0, None, b"", ()))
    monkeypatch.setattr(type(log.standings()), "look", denied)
    seen = await examined(settings, log, agent)
    assert seen.blind == [("workers", why)]
    assert seen.looked == [name for name in EVERY if name != "workers"]
    assert [each.code for each in seen.findings] == ["inputs_dead"]


async def test_a_check_that_takes_too_long_says_so(
    settings: Settings, log: Backend, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forever(*_: object) -> Sequence[object]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(type(log.standings()), "look", forever)
    seen = await examined(settings.within(check_s=1.0), log, agent)
    assert "workers" in dict(seen.blind)


async def test_dead_letters_of_before_are_left_out(settings: Settings, log: Backend) -> None:
    await append(log, ProducerRecord(dead_topic(settings.app), 0, None, b"", ()))
    reader = DeadReader(settings, log)
    try:
        (letter,) = await reader.latest(lambda _: True, 9, since_ms=1)
        assert await reader.latest(lambda _: True, 9, since_ms=letter.at_ms) == [letter]
        assert await reader.latest(lambda _: True, 9, since_ms=letter.at_ms + 1) == []
    finally:
        await reader.stop()


def test_a_log_that_is_not_there_is_told_and_nothing_is_said_to_be_well(tmp_path: Path) -> None:
    path = tmp_path / "shop.py"
    path.write_text(AGENT)
    env = {"SUREFOOT_BOOTSTRAP_SERVERS": NOWHERE}
    done = CliRunner().invoke(surefoot, ["doctor", str(path), "--json"], env=env)
    assert done.exit_code == 2
    told = json.loads(done.stdout)
    assert (told["healthy"], told["looked"], told["findings"]) == (False, [], [])
    assert [each["check"] for each in told["blind"]] == ["log"]
    plain = CliRunner().invoke(surefoot, ["doctor", str(path)], env=env)
    assert plain.stdout.startswith("cannot look at log: SF3001: ")
