"""Commands that retention has deleted before anybody read them: told, once, to whom it concerns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done, Wait
from surefoot.state.names.topics import dead_topic
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.dead_letters import dead_letter, what_to_do
from surefoot.state.telemetry import metrics
from surefoot.testing import Simulation


def shop() -> Agent:
    agent = Agent("shop")

    @agent.step
    async def begin(ctx: Context, waits: bool) -> Wait | Done:
        return Wait("go", then=end) if waits else Done()

    @agent.step
    async def end(ctx: Context, go: bool) -> Done:
        return Done("went")

    return agent


class Counted:
    """A metric's sink."""

    def __init__(self) -> None:
        self.lost: list[tuple[Sequence[str], float]] = []

    def add(self, metric: metrics.Metric, labels: Sequence[str], by: float) -> None:
        if metric is metrics.INPUTS_LOST:
            self.lost.append((labels, by))

    def set(self, *_: Any) -> None: ...

    def observe(self, *_: Any) -> None: ...


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    made = Counted()
    monkeypatch.setattr(metrics, "_sink", made)
    return made


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with Simulation(shop, partitions=1) as made:
        yield made


def expire_unread(sim: Simulation) -> tuple[int, int]:
    """While no process lives commands come in, and retention takes them; the range."""
    place = (f"{sim._world.app}.shop.commands", 0)
    sim._alive().kill()
    partition = sim._world.broker.partition(*place)
    start = sim._world.broker.end_offset(place)
    for number in range(3):
        sim._send("waits", "signal", agent="shop", id=f"s{number}", name="go", payload=b"true")
    end = sim._world.broker.end_offset(place)
    partition.delete_before(end)
    return start, end


def dead(sim: Simulation) -> list[ConsumerRecord]:
    records, _ = sim._world.broker.partition(dead_topic(sim._world.app), 0).read(0)
    return list(records)


def test_what_is_lost_is_told_once_with_the_runs_that_may_wait_for_it(
    sim: Simulation, counted: Counted
) -> None:
    sim.run(True, run_id="waits")
    sim.run(False, run_id="over")
    start, end = expire_unread(sim)
    with capture_logs() as logs:
        sim.settle()
        sim.crash()
    assert sim.look("waits").status == "waiting"
    (told,) = [line for line in logs if line["event"] == "commands_lost"]
    assert (told["start"], told["end"], told["waiting"]) == (start, end, ["waits"])
    assert counted.lost == [(("shop", "commands"), 3)]
    (letter,) = dead(sim)
    said = {name: value.decode() for name, value in letter.headers}
    assert (said["sf-dead-code"], said["sf-dead-offset"], said["sf-dead-until"]) == (
        "commands_lost",
        str(start),
        str(end),
    )
    assert json.loads(said["sf-dead-waiting"]) == ["waits"]
    shown = dead_letter(letter)
    assert "1 runs wait for what may have been among them: waits" in shown.message
    assert what_to_do(shown) == [
        "surefoot explain SF4065",
        "the records are lost: have their senders send them again",
    ]
    assert sim.signal("go", True, run_id="waits").result == "went"


def test_what_was_read_and_then_expired_is_not_lost(sim: Simulation, counted: Counted) -> None:
    sim.run(True, run_id="waits")
    place = (f"{sim._world.app}.shop.commands", 0)
    sim.advance("1m")
    sim._world.broker.partition(*place).delete_before(sim._world.broker.end_offset(place))
    with capture_logs() as logs:
        sim.crash()
    assert not [
        line for line in logs if line["event"] in ("commands_lost", "committed_offset_gone")
    ]
    assert (counted.lost, dead(sim)) == ([], [])


def test_a_worker_that_falls_behind_retention_tells_it_and_goes_on(
    sim: Simulation, counted: Counted
) -> None:
    sim.run(True, run_id="waits")
    place = (f"{sim._world.app}.shop.commands", 0)
    broker = sim._world.broker
    (log,) = [log for worker, log in sim._alive()._workers if worker.agent.name == "shop"]
    log.pause(0)
    start = broker.end_offset(place)
    for number in range(3):
        sim._send("waits", "signal", agent="shop", id=f"s{number}", name="go", payload=b"true")
    end = broker.end_offset(place)
    broker.partition(*place).delete_before(end)
    log.resume(0)
    sim.settle()
    assert counted.lost == [(("shop", "commands"), 3)]
    (letter,) = dead(sim)
    said = {name: value.decode() for name, value in letter.headers}
    assert (said["sf-dead-offset"], said["sf-dead-until"]) == (str(start), str(end))
    sim.crash()
    assert sim.signal("go", True, run_id="waits").result == "went"
    assert (len(counted.lost), len(dead(sim))) == (1, 1)  # what is told is told once
