"""A run's next step begins when the last one is committed, and not when its task has been read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from surefoot import Agent, Context, Done, Next
from surefoot.consumers.partition.owner import Owner
from surefoot.consumers.partition.worker import Slots
from surefoot.infra.embedded.log import EmbeddedOwnership, TopicPartition
from surefoot.infra.embedded.memory import MemoryBroker
from surefoot.infra.runtime.clock import SystemClock
from surefoot.schemas.codec.codec import decode
from surefoot.state.ports.log import ConsumerRecord, InputKind, ProducerRecord
from surefoot.testing import Simulation, check_crashes

STEPS = 5
#: after this long in a simulation, offsets are committed that nothing else has committed
IDLE = "70d"


def counter() -> Agent:
    """Counts up, a step at a time."""
    agent = Agent("counter")

    @agent.step
    async def count(ctx: Context, payload: int) -> Next | Done:
        return Next(count, payload + 1) if payload + 1 < STEPS else Done(payload + 1)

    return agent


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with Simulation(counter, partitions=1) as made:
        yield made


#: given a condition, keeps tasks from being read while it holds; returns the offsets of those kept
Hold = Callable[[Callable[[], bool]], list[int]]


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Hold:
    read = MemoryBroker.read

    def holding(condition: Callable[[], bool]) -> list[int]:
        kept: list[int] = []

        def read_some(
            broker: MemoryBroker, place: TopicPartition, position: int, most: int
        ) -> tuple[list[ConsumerRecord], int]:
            records, after = read(broker, place, position, most)
            if place[0].endswith(".counter.tasks") and condition():
                kept.extend(record.offset for record in records)
                return [], position
            return records, after

        monkeypatch.setattr(MemoryBroker, "read", read_some)
        return kept

    return holding


def passed(sim: Simulation) -> int | None:
    """The group's offset of the tasks."""
    group = f"{sim._world.app}.counter"
    return sim._world.broker.committed(group, (f"{group}.tasks", 0))


def sources(sim: Simulation) -> list[str]:
    """What each result of the run says that it answers."""
    records, _ = sim._world.broker.partition(f"{sim._world.app}.counter.events", 0).read(0)
    ends = ("step.completed", "run.completed")
    return [
        dict(record.headers)["sf-src"].decode()
        for record in records
        if decode(record.value, "Event")[1]["type"] in ends
    ]


def test_a_run_goes_on_while_its_tasks_are_not_read(sim: Simulation, hold: Hold) -> None:
    held = True
    kept = hold(lambda: held)
    assert sim.run(0).result == STEPS
    assert kept
    topics = f"{sim._world.app}.counter"
    assert sources(sim)[0] == f"{topics}.commands/0/0"
    tasks, _ = sim._world.broker.partition(f"{topics}.tasks", 0).read(0)
    assert sources(sim)[1:] == [f"{topics}.tasks/0/{task.offset}" for task in tasks]
    sim.advance(IDLE)
    assert not passed(sim)
    held = False
    sim.advance(IDLE)
    assert passed(sim) == sim._world.broker.end_offset((f"{topics}.tasks", 0))
    assert len(sources(sim)) == STEPS


def test_wherever_the_process_dies_before_it_has_read_its_tasks_no_step_is_committed_twice(
    hold: Hold,
) -> None:
    lives: list[Simulation] = []
    kept = hold(lambda: not lives[-1]._graves)

    def scenario(sim: Simulation) -> None:
        lives.append(sim)
        assert sim.run(0).result == STEPS
        assert len(sources(sim)) == len(set(sources(sim))) == STEPS

    report = check_crashes(counter, scenario=scenario, partitions=1)
    assert report.kills >= 2 * STEPS
    assert kept


def test_offsets_do_not_pass_the_task_of_a_step_that_was_begun_before_it_was_read(
    hold: Hold,
) -> None:
    agent = Agent("counter")

    @agent.step
    async def begin(ctx: Context, payload: int) -> Next:
        return Next(last, payload)

    @agent.step
    async def last(ctx: Context, seconds: int) -> Done:
        await asyncio.sleep(seconds)
        return Done()

    held = True
    hold(lambda: held)
    with Simulation(agent, partitions=1) as sim:
        sim.start(3_600, run_id="long")
        held = False
        for number in range(3):
            sim.start(0, run_id=f"short-{number}")
        assert [run.status for run in sim.runs()] == ["running", *["completed"] * 3]
        task, *others = sim._world.broker.partition("surefoot.counter.tasks", 0).read(0)[0]
        assert passed(sim) == task.offset
        sim.advance(IDLE)
        assert passed(sim) == others[-1].offset + 2  # and its transaction's marker


def test_a_task_that_arrives_during_a_commit_of_offsets_alone_is_passed(
    sim: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes a copy of a task, which is done."""
    sim.run(0)
    broker, place = sim._world.broker, (f"{sim._world.app}.counter.tasks", 0)
    copy = broker.partition(*place).read(0)[0][-1]
    ingest, ingested = Owner.ingest, asyncio.Event()
    copied: list[int] = []

    def ingesting(owner: Owner, kind: InputKind, record: ConsumerRecord) -> None:
        ingest(owner, kind, record)
        if [record.offset] == copied:
            assert owner.committer.busy
            ingested.set()

    async def end(ownership: EmbeddedOwnership) -> None:
        if not copied and ownership._topics.tasks == place[0]:
            copied.extend(broker.write([ProducerRecord(*place, copy.key, copy.value)]))
            await ingested.wait()

    monkeypatch.setattr(Owner, "ingest", ingesting)
    monkeypatch.setattr(EmbeddedOwnership, "_end", end)
    sim.advance(IDLE)
    assert ingested.is_set()
    assert passed(sim) == broker.end_offset(place) == copied[0] + 1


class Busy(Owner):
    """An owner whose partition always has a step to begin, or has one."""

    def __init__(self, steps: int | None) -> None:
        self.steps_left = steps
        self.begun = 0

    def dispatch_one(self) -> bool:
        if self.steps_left == self.begun:
            return False
        self.begun += 1
        return True


def test_a_storm_of_starts_in_one_partition_does_not_keep_the_runs_of_another_from_going_on() -> (
    None
):
    slots = Slots(2, SystemClock())
    storm, other = Busy(None), Busy(1)
    slots.ready(storm)
    assert (slots.free, storm.begun) == (0, 2)
    slots.ready(other)
    slots.release()
    slots.release()
    assert other.begun == 1
