"""A storm of starts holds up no run that is under way: counted in transactions."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise

import pytest

from surefoot import Agent, Context, Done, Flow, Next
from surefoot.consumers.partition.context import OwnerLimits
from surefoot.consumers.partition.transaction import PendingInput, PendingInputs
from surefoot.infra.embedded.log import READ_MOST
from surefoot.state.names.partitioner import partition_of
from surefoot.state.records.encoding import command_out
from surefoot.testing import Simulation

STORM = 20_000
STEPS = 12
#: A step's outcome waits for the transaction in progress, and is in the next one. While the run
#: takes a step, each of the two partitions may begin one more.
MOST = 4


@pytest.mark.parametrize(
    "flow",
    [None, Flow(key=str, singleton="skip"), Flow(key=str, concurrency=1)],
    ids=["begun at once", "skipped", "waiting in a lane"],
)
def test_a_storm_on_one_partition_holds_up_no_step_of_a_run_under_way(
    flow: Flow | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("walker", flow=flow)
    runs: list[str] = []
    #: by run, how many transactions there had been when each of its steps began
    begun: defaultdict[str, list[int]] = defaultdict(list)
    waited: list[int] = []
    add = PendingInputs.add

    def noted(items: PendingInputs, *args: object) -> None:
        add(items, *args)  # type: ignore[arg-type]
        waited.append(len(items))

    monkeypatch.setattr(PendingInputs, "add", noted)

    @agent.step
    async def walk(ctx: Context, payload: str) -> Next | Done:
        if payload == "storm":
            return Done()
        begun[ctx.run_id].append(len(sim._world.commits))
        if all(len(begun[run_id]) > STEPS for run_id in runs):
            sim._alive().kill()  # the rest of the storm shows nothing more
            await asyncio.Event().wait()
        return Next(walk, payload) if ctx.seq < STEPS else Done()

    with Simulation(agent, partitions=2) as sim:
        here = next(n for n in map(str, range(9)) if partition_of(f"{n}=x", 2) == 0)
        there = next(n for n in map(str, range(9)) if partition_of(f"{n}=x", 2) == 1)
        world = sim._world
        world.group("walker")
        runs += [f"{here}=run", f"{there}=run"]
        starts = [
            command_out(
                *(world.app, world.partitions, "walker"),
                run_id=run_id,
                kind="start",
                payload=b'"%s"' % (b"walk" if run_id in runs else b"storm"),
                sent_ms=0,
            )
            for run_id in (*runs, *(f"{here}=storm{n}" for n in range(STORM)))
        ]
        world.broker.write(starts)
        sim._alive().loop.run_until(lambda: False, deadline_s=world.clock.monotonic_s() + 60.0)
    for run_id in runs:
        _, *under_way = begun[run_id]
        assert len(under_way) == STEPS
        assert max(after - before for before, after in pairwise(under_way)) <= MOST
    assert max(waited) <= OwnerLimits().backlog + READ_MOST


def item(run_id: str, number: int = 0) -> PendingInput:
    return PendingInput(run_id=run_id, sources=(("commands", number),))


def of(items: list[PendingInput]) -> list[str]:
    return [each.run_id for each in items]


def test_each_kind_has_half_of_a_transaction_while_both_have_enough() -> None:
    items = PendingInputs()
    for n in range(20):
        items.add(item(f"new{n}"), {})
        items.add(item(f"old{n}"), {f"old{n}"})
    assert of(items.take(10)) == [*(f"old{n}" for n in range(5)), *(f"new{n}" for n in range(5))]
    assert (len(items), items.under_way) == (30, 15)


@pytest.mark.parametrize(("old", "new"), [(2, 20), (20, 2), (0, 20), (20, 0), (1, 1)])
def test_what_one_kind_does_not_need_the_other_has(old: int, new: int) -> None:
    items = PendingInputs()
    for n in range(new):
        items.add(item(f"new{n}"), {})
    for n in range(old):
        items.add(item(f"old{n}"), {f"old{n}"})
    taken = items.take(10)
    assert len(taken) == min(10, old + new)
    assert sum(run_id.startswith("old") for run_id in of(taken)) == min(old, 10 - min(new, 5), 10)


@pytest.mark.parametrize("begins", [True, False], ids=["that begins", "that ends"])
def test_inputs_of_a_run_stay_in_order(begins: bool) -> None:
    """Whatever the run is when they come, and however often they are put back."""
    items = PendingInputs()
    before, after = ({}, {"r"}) if begins else ({"r"}, {})
    for n in range(6):
        items.add(item("other new"), {})
        items.add(item("other old"), {"other old"})
        items.add(item("r", n), before if n < 3 else after)
    order: list[int] = []
    while batch := items.take(4):
        items.put_back(batch, after)
        again = items.take(4)
        order += [each.sources[0][1] for each in again if each.run_id == "r"]
    assert order == sorted(order)
    assert len(order) == 6
