"""Going through a stretch again: what is found in it, what would be done, and what is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from surefoot.producers.commands.operations import Operator
from surefoot.producers.commands.replay import Bounds, OffsetSlice, Replay, bounds
from surefoot.schemas.codec.codec import encode
from surefoot.state.errors import ConfigError, Unavailable
from surefoot.state.machine.model import Parent
from surefoot.state.ports.log import ConsumerRecord, InputKind, ProducerRecord
from surefoot.state.records.encoding import command_out
from tests.support.fake_runs import AGENT, AWAY, World
from tests.support.run_driver import fork, wait_for
from tests.unit.state.test_operations import FakeClock


@dataclass
class FakeStretch:
    """The records of one partition of both topics, by kind."""

    records: dict[InputKind, list[ConsumerRecord]] = field(
        default_factory=lambda: {"commands": [], "tasks": []}
    )
    appended: list[ProducerRecord] = field(default_factory=list)
    away: bool = False

    async def read(self, piece: OffsetSlice) -> AsyncIterator[ConsumerRecord]:
        for record in self.records[piece.kind]:
            if piece.start <= record.offset < piece.end:
                yield record

    async def append(self, record: ProducerRecord) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise AWAY
        self.appended.append(record)

    def add(
        self, kind: InputKind, value: bytes | None, *, key: bytes | None = b"k"
    ) -> ConsumerRecord:
        headers = [("sf-txn", b"1"), ("other", b"2")]
        record = ConsumerRecord(f"app.x.{kind}", 0, len(self.records[kind]), 7, key, value, headers)
        self.records[kind].append(record)
        return record

    def start(self, run_id: str) -> None:
        out = command_out("app", 1, AGENT, run_id=run_id, kind="start", sent_ms=1)
        self.add("commands", out.value, key=out.key)

    def task(self, run_id: str, seq: int) -> None:
        value = encode("Task", {"run_id": run_id, "seq": seq, "step": "a"})
        self.add("tasks", value, key=run_id.encode())


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def stretch() -> FakeStretch:
    return FakeStretch()


def replay(world: World, stretch: FakeStretch, **more: Any) -> Replay:
    pieces = [
        OffsetSlice(kind="commands", partition=0, start=0, end=100),
        OffsetSlice(kind="tasks", partition=0, start=0, end=100),
    ]
    fields = {"id": "incident-7", "pieces": pieces} | more
    return Replay(agent=AGENT, stretch=stretch, versions=world, **fields)


def operator(world: World) -> Operator:
    return Operator(commands=world, reader=world, clock=FakeClock(), send_s=1, answer_s=5)


# From and to --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        ("0", None, Bounds("offset", 0, None)),
        ("17", "18", Bounds("offset", 17, 18)),
        ("1970-01-01T00:00:01Z", None, Bounds("time", 1000, None)),
        ("1970-01-01T01:00:01+01:00", "1970-01-01 00:00:02.5Z", Bounds("time", 1000, 2500)),
    ],
)
def test_from_and_to_are_offsets_or_times_with_a_zone(
    start: str, end: str | None, told: Bounds
) -> None:
    assert bounds(start, end) == told


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        ("", None, "--from"),
        ("yesterday", None, "zone"),
        ("2026-01-31", None, "zone"),
        ("2026-01-31T12:00:00", None, "zone"),
        ("2026-13-31T12:00:00Z", None, "zone"),
        ("-1", None, "--from"),
        ("1.5", None, "--from"),
        ("\u0661", None, "--from"),
        ("9" * 30, None, "--from"),
        ("1", "x", "--to"),
        ("1", "2026-01-31T12:00:00Z", "both"),
        ("5", "5", "after"),
        ("5", "4", "after"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00+01:00", "after"),
    ],
)
def test_what_is_neither_or_lies_the_wrong_way_round_is_refused(
    start: str, end: str | None, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        bounds(start, end)


# Appending again ----------------------------------------------------------------------------


async def test_the_dry_run_tells_of_each_run_what_would_be_done_and_writes_nothing(
    world: World, stretch: FakeStretch
) -> None:
    for run_id in ("over", "here", "further", "lost"):
        stretch.start(run_id)
    for run_id in ("over", "here", "further", "lost", "stranger"):
        stretch.task(run_id, 1)
    for run_id in ("over", "here", "further", "asks"):
        life = world.started(run_id)
        world.lead(run_id, life.goes)
    world.lead("over", world.life("over").ends)
    world.lead("further", world.life("further").goes)
    world.lead("asks", lambda: world.life("asks").returned(wait_for("go")))
    stretch.task("asks", 1)
    one = replay(world, stretch)
    touched = await one.touched()
    rows = {row.run_id: (row.status, row.acts) for row in await one.foresee(touched)}
    assert rows == {
        "over": ("completed", False),
        "here": ("running", True),
        "further": ("running", False),
        "lost": ("unknown", True),
        "stranger": ("unknown", False),
        "asks": ("waiting", False),
    }
    assert touched["here"].records == 2
    assert stretch.appended == []
    assert world.sent == []


async def test_start_commands_and_tasks_are_appended_byte_for_byte_where_they_were(
    world: World, stretch: FakeStretch
) -> None:
    stretch.start("a")
    stretch.task("a", 1)
    stretch.task("b", 4)
    assert await replay(world, stretch).append() == 3
    originals = [*stretch.records["commands"], *stretch.records["tasks"]]
    assert [out[:4] for out in stretch.appended] == [
        (record.topic, record.partition, record.key, record.value) for record in originals
    ]


async def test_a_copy_says_which_replay_it_comes_from_and_not_which_transaction(
    world: World, stretch: FakeStretch
) -> None:
    stretch.start("a")
    await replay(world, stretch).append()
    [copy] = stretch.appended
    assert dict(copy.headers) == {"other": b"2", "sf-replay": b"incident-7"}


async def test_other_commands_and_what_is_none_are_left_out(
    world: World, stretch: FakeStretch
) -> None:
    for kind in ("cancel", "signal", "pause", "rewind"):
        out = command_out("app", 1, AGENT, run_id="a", kind=kind, sent_ms=1, id="c")
        stretch.add("commands", out.value)
    stretch.add("commands", b"nonsense")
    stretch.add("commands", None)
    stretch.add("tasks", b"\xc3\x01")
    assert await replay(world, stretch).touched() == {}
    assert await replay(world, stretch).append() == 0


async def test_only_the_stretch_is_appended(world: World, stretch: FakeStretch) -> None:
    for number in range(200):
        stretch.task(f"r{number}", 1)
    piece = OffsetSlice(kind="tasks", partition=0, start=10, end=150)
    assert await replay(world, stretch, pieces=[piece]).append() == 140
    keys = [out.key for out in stretch.appended]
    assert keys == [f"r{number}".encode() for number in range(10, 150)]


async def test_a_log_that_goes_away_in_the_middle_is_told(
    world: World, stretch: FakeStretch
) -> None:
    stretch.start("a")
    stretch.away = True
    with pytest.raises(Unavailable):
        await replay(world, stretch).append()


# Running again ------------------------------------------------------------------------------


async def rerun(
    world: World, stretch: FakeStretch, step: str | None = None, *, emit: bool = False, **more: Any
) -> tuple[dict[str, tuple[str, bool]], dict[str, bool | None]]:
    one = replay(world, stretch, **more)
    rows, back = await one.plan(await one.touched(), step)
    replies = await one.rerun(operator(world), back, emit=emit)
    return (
        {row.run_id: (row.what, row.acts) for row in rows},
        {run_id: reply.accepted for run_id, reply in replies.items()},
    )


def finished(world: World, run_id: str) -> None:
    """a, b, b, c."""
    life = world.started(run_id)
    for step in ("b", "b", "c"):
        world.lead(run_id, lambda step=step: life.goes(step, b'"%s"' % step.encode()))  # type: ignore[misc]
    world.lead(run_id, life.ends)


async def test_every_run_that_was_touched_begins_anew(world: World, stretch: FakeStretch) -> None:
    for run_id in ("r1", "r2", "untouched"):
        finished(world, run_id)
    stretch.start("r1")
    stretch.task("r2", 3)
    rows, replies = await rerun(world, stretch)
    assert replies == {"r1": True, "r2": True}
    assert rows["r1"] == ("rewound from version 4 to 0, before step 'a', in epoch 1", True)
    for run_id in ("r1", "r2"):
        run = world.run(run_id)
        assert (run.status, run.seq, run.step, run.epoch, run.emit) == ("running", 0, "a", 1, 0)
    assert world.run("untouched").status == "completed"
    assert {sent.by for sent in world.sent} == {"replay incident-7"}


async def test_a_step_is_gone_back_to_before_its_first_execution(
    world: World, stretch: FakeStretch
) -> None:
    finished(world, "r1")
    life = world.started("short")
    world.lead("short", life.ends)
    stretch.start("r1")
    stretch.start("short")
    rows, replies = await rerun(world, stretch, "b", emit=True)
    assert replies == {"r1": True}
    run = world.run("r1")
    assert (run.seq, run.step, run.payload, run.epoch, run.emit) == (1, "b", b'"b"', 1, 1)
    assert rows["short"][1] is False
    assert "not done step 'b'" in rows["short"][0]


async def test_the_same_replay_again_sends_nobody_back_twice_and_another_one_does(
    world: World, stretch: FakeStretch
) -> None:
    finished(world, "r1")
    stretch.start("r1")
    await rerun(world, stretch)
    world.lead("r1", world.life("r1").ends)
    world.life("r1").maybe = world.run("r1")._replace(commands=())  # a receipt keeps none
    rows, replies = await rerun(world, stretch)
    assert (replies, rows["r1"][1], world.run("r1").epoch) == ({}, False, 1)
    _, replies = await rerun(world, stretch, id="incident-8")
    assert (replies, world.run("r1").epoch) == ({"r1": True}, 2)


async def test_two_replays_at_once_send_a_run_back_once(world: World, stretch: FakeStretch) -> None:
    finished(world, "r1")
    stretch.start("r1")
    plans = []
    for name in ("one", "two"):
        made = replay(world, stretch, id=name)
        plans.append((made, (await made.plan(await made.touched(), None))[1]))
    replies = await asyncio.gather(
        *(made.rerun(operator(world), back, emit=False) for made, back in plans)
    )
    answers = [(reply["r1"].accepted, reply["r1"].code) for reply in replies]
    assert sorted(answers, key=repr) == [(False, "stale_epoch"), (True, None)]
    assert world.run("r1").epoch == 1


async def test_children_and_runs_that_cannot_go_back_are_left_alone_and_told(
    world: World, stretch: FakeStretch
) -> None:
    parent = Parent(agent=AGENT, run_id="p", fork=1, branch=0)
    world.started("p~1~0", parent=parent)
    life = world.started("forks")
    world.lead("forks", lambda: life.returned(fork(2)))
    for run_id in ("p~1~0", "forks", "nobody"):
        stretch.start(run_id)
    rows, replies = await rerun(world, stretch, "b")
    assert replies == {}
    assert "child" in rows["p~1~0"][0]
    assert "waits for children" in rows["forks"][0]
    assert "there is no such run" in rows["nobody"][0]


async def test_runs_that_refuse_or_give_no_answer_are_told_apart(
    world: World, stretch: FakeStretch
) -> None:
    life = world.started("gone")
    world.lead("gone", lambda: life.goes("b", messages=(b"1",)))
    del life.entries["m:0"]
    world.started("fine")
    stretch.start("gone")
    stretch.start("fine")
    _, replies = await rerun(world, stretch, "b")
    assert replies == {"gone": False}
    world.away = AWAY
    _, replies = await rerun(world, stretch)
    assert replies == {"gone": None, "fine": None}
