"""What a run has done with ctx.once: at most once over all its epochs, and in doubt for a copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from surefoot import (
    Agent,
    Context,
    Done,
    Ended,
    Handoff,
    Next,
    NotDone,
    Parallel,
    TerminalError,
    Wait,
)
from surefoot.state.machine.actions import call_name, call_of, found_by
from surefoot.state.machine.model import Action, Entry, EventRecord, Failure, jsonable
from surefoot.state.machine.operations import Cancel
from surefoot.state.reading.versions import Line
from surefoot.state.records.run_store import RunStore
from surefoot.testing import Simulation
from tests.support.run_driver import PLAIN, REWIND, START, Life, child_done, fork


@dataclass
class Bank:
    """Charges, and is told of what it was asked."""

    charged: list[int] = field(default_factory=list)
    quoted: int = 0
    probed: list[int] = field(default_factory=list)
    amounts: list[int] = field(default_factory=lambda: [10])

    async def charge(self, amount: int) -> str:
        self.charged.append(amount)
        return f"receipt {len(self.charged)}"

    async def quote(self) -> int:
        self.quoted += 1
        return self.quoted

    async def probe(self, amount: int) -> str | None:
        self.probed.append(amount)
        return "found" if amount in self.charged else None


@pytest.fixture
def bank() -> Bank:
    return Bank()


def shop(bank: Bank, probe: Any = None) -> Agent:
    """Quotes and pays, once for each amount; then rests, so that it can be sent back."""
    agent = Agent("shop")

    @agent.step(start=True)
    async def pay(ctx: Context, number: int) -> Next:
        await ctx.call("quote", bank.quote)
        receipt = await ctx.once("charge", bank.charge, bank.amounts[number], probe=probe)
        if number + 1 < len(bank.amounts):
            return Next(pay, number + 1)
        return Next(rest, receipt)

    @agent.step
    async def rest(ctx: Context, receipt: str) -> Wait:
        return Wait("go", then=ship, carry=receipt)

    @agent.step
    async def ship(ctx: Context, go: bool, receipt: str) -> Done:
        return Done(receipt)

    return agent


@pytest.fixture
def sim(bank: Bank) -> Iterator[Simulation]:
    with Simulation(lambda: shop(bank)) as made:
        yield made


# Rewinding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("restored", [False, True])
def test_a_run_that_is_sent_back_gets_its_outcome_and_does_not_act_again(
    bank: Bank, sim: Simulation, over: bool, restored: bool
) -> None:
    sim.run(0)
    for epoch in range(1, 4):
        if over:
            assert sim.signal("go", True).result == "receipt 1"
        if restored:
            sim.crash()
        back = sim.rewind(0)
        assert (back.status, back.history[-1]["epoch"]) == ("waiting", epoch)
        assert bank.quoted == epoch + 1  # a call that is not an action is made anew
    assert sim.signal("go", True).result == "receipt 1"
    assert bank.charged == [10]


def test_each_action_of_the_line_that_was_left_stands_for_one_of_the_new_line(
    bank: Bank, sim: Simulation
) -> None:
    bank.amounts = [10, 10, 10]
    sim.run(0)
    assert bank.charged == [10] * 3
    bank.amounts = [10, 10, 10, 10]
    sim.rewind(1)
    assert bank.charged == [10] * 4
    assert sim.signal("go", True).result == "receipt 4"
    sim.rewind(0)
    assert bank.charged == [10] * 4


def test_other_arguments_are_another_action(bank: Bank, sim: Simulation) -> None:
    sim.run(0)
    bank.amounts = [12]
    sim.rewind(0)
    bank.amounts = [10]
    sim.rewind(0)
    assert bank.charged == [10, 12]


def test_an_action_that_is_named_is_done_again(bank: Bank, sim: Simulation) -> None:
    sim.run(0)
    sim.rewind(0, repeat=["refund"])
    assert bank.charged == [10]
    sim.rewind(0, repeat=["charge"])
    assert bank.charged == [10, 10]
    sim.rewind(0)
    assert sim.signal("go", True).result == "receipt 2"
    assert bank.charged == [10, 10]


def test_what_is_in_doubt_stays_so_and_is_not_done_by_sending_the_run_back(bank: Bank) -> None:
    async def breaks(amount: int) -> str:
        await Bank.charge(bank, amount)
        raise ConnectionError("reset")

    bank.charge = breaks  # type: ignore[method-assign]
    with Simulation(lambda: shop(bank)) as sim:
        assert sim.run(0).status == "attention"
        for _ in range(2):
            parked = sim.rewind(0)
            assert parked.failure is not None
            assert (parked.status, parked.failure["code"]) == ("attention", "once_in_doubt")
        assert bank.charged == [10]
        sim.resolve("happened", "receipt 7")
        sim.rewind(0)
        assert sim.signal("go", True).result == "receipt 7"
    assert bank.charged == [10]


def test_what_failed_for_good_is_tried_again(bank: Bank) -> None:
    async def refuses(amount: int) -> str:
        await Bank.charge(bank, amount)
        if len(bank.charged) == 1:
            raise TerminalError("card refused")
        return "receipt"

    bank.charge = refuses  # type: ignore[method-assign]
    with Simulation(lambda: shop(bank)) as sim:
        assert sim.run(0).status == "failed"
        assert sim.rewind(0).status == "waiting"
    assert bank.charged == [10, 10]


def test_what_was_done_before_a_compensation_and_by_it_is_not_done_again(bank: Bank) -> None:
    agent = Agent("trip")

    @agent.step
    async def pay(ctx: Context, amount: int) -> Wait:
        await ctx.once("charge", bank.charge, amount)
        return Wait("go", then=end, carry=amount)

    @agent.step
    async def end(ctx: Context, go: bool, amount: int) -> Done:
        return Done()

    @agent.on_cancel
    async def undo(ctx: Context, ended: Ended) -> Done:
        await ctx.once("refund", bank.charge, -10)
        return Done()

    with Simulation(agent) as sim:
        sim.run(10)
        assert sim.cancel().status == "cancelled"
        sim.rewind(0)
        assert sim.cancel().status == "cancelled"
        assert bank.charged == [10, -10]
        sim.rewind(0, repeat=["charge", "refund"])
        assert sim.cancel().status == "cancelled"
    assert bank.charged == [10, -10] * 2


# Copies --------------------------------------------------------------------------------------


def test_a_copy_asks_the_probe_before_it_does_what_the_other_run_has_done(bank: Bank) -> None:
    with Simulation(lambda: shop(bank, bank.probe)) as sim:
        sim.run(0)
        copy = sim.fork(0, new_id="copy")
        assert (copy.status, bank.probed) == ("waiting", [10])
        assert sim.signal("go", True).result == "found"
        bank.charged.clear()
        sim.fork(0, new_id="second", run_id="copy")
        assert sim.signal("go", True).result == "receipt 1"
    assert bank.charged == [10]


def test_a_copy_without_a_probe_waits_for_a_person_who_is_told_of_the_other_run(
    bank: Bank, sim: Simulation
) -> None:
    sim.run(0, run_id="first")
    copy = sim.fork(0, new_id="copy")
    assert copy.failure is not None
    assert (copy.status, copy.failure["code"]) == ("attention", "once_in_doubt")
    assert "done or begun by run first" in copy.failure["message"]
    assert bank.charged == [10]
    of_the_copy = sim.fork(0, new_id="next", run_id="copy")
    assert of_the_copy.failure is not None
    assert "by run first" in of_the_copy.failure["message"]
    sim.resolve("did_not", run_id="copy")
    assert bank.charged == [10, 10]
    sim.rewind(0, run_id="copy")
    assert bank.charged == [10, 10]


def test_a_copy_simply_does_what_is_named_and_what_the_other_run_has_not_done(
    bank: Bank, sim: Simulation
) -> None:
    sim.run(0)
    first = {"run_id": "run-1"}
    assert sim.fork(0, new_id="copy", repeat=["charge"], **first).status == "waiting"
    assert sim.fork(1, new_id="later", **first).status == "waiting"  # begins behind it
    bank.amounts = [11]
    assert sim.fork(0, new_id="other", **first).status == "waiting"
    assert bank.charged == [10, 10, 11]


# What is kept --------------------------------------------------------------------------------


def acted(life: Life, name: str = "charge", value: bytes | None = b"1") -> None:
    kind: Any = "intent" if value is None else "call"
    life.journaled(f"c:{name}#0", kind, value=value or b"null", digest=b"d", action=True)


def kinds(life: Life) -> dict[str, str]:
    return {slot: entry.kind for slot, entry in life.entries.items()}


def made(**changes: Any) -> Life:
    life = Life(PLAIN)
    life.legal(replace(START, **changes))
    return life


def test_an_action_outlives_its_step_under_a_slot_of_its_own_and_the_run_itself() -> None:
    life = made()
    acted(life)
    life.journaled("c:look#0", value=b"2", digest=b"e")
    life.goes("b")
    acted(life, value=None)
    life.legal(Cancel(id="1"))
    assert kinds(life) == {"o:0:0:charge#0": "done", "o:1:0:charge#0": "done"}
    kept = list(life.entries.values())
    assert [(each.name, each.value, each.digest) for each in kept] == [
        ("a", b"1", b"d"),
        ("b", None, b"d"),
    ]


def test_only_what_was_done_since_that_version_is_past() -> None:
    life = made()
    acted(life)
    life.goes("b")
    acted(life)
    acted(life, "refund")
    life.legal(replace(REWIND, seq=1, step="b", repeat=("refund", "charge-all")))
    assert kinds(life) == {"o:0:0:charge#0": "done", "o:1:0:charge#0": "past"}
    assert life.event("run.rewound").name == "refund, charge-all"


def test_an_intent_of_an_earlier_release_is_an_action_and_a_call_is_none() -> None:
    life = made()
    life.journaled("c:charge#0", "intent", value=b"null", digest=b"d")
    life.journaled("c:look#0", value=b"2", digest=b"e")
    life.legal(REWIND)
    assert [(each.slot, each.name) for each in life.entries.values()] == [("o:0:0:charge#0", "a")]


def test_a_name_may_have_whatever_is_in_a_slot() -> None:
    life = made()
    acted(life, "a:b#c|~")
    life.goes("b")
    (entry,) = (each for each in life.entries.values() if each.kind == "done")
    assert (call_of(entry), call_name(entry)) == ("a:b#c|~#0", "a:b#c|~")


def test_what_a_copy_finds_is_what_was_done_since_that_version_and_by_others_before() -> None:
    theirs = Action(run_id="first", step="a", call="fee#0", digest=b"f")
    life = made(actions=(theirs,))
    acted(life)
    life.goes("b")
    acted(life, "refund", value=None)
    assert [call_name(each) for each in found_by(life.entries.values(), life.run, 1)] == [
        "fee",
        "refund",
    ]
    assert len(found_by(life.entries.values(), life.run, 0)) == 3


def test_a_run_that_is_over_keeps_what_it_has_done_until_its_receipt_goes() -> None:
    done = Entry(run_id="r", slot="o:0:0:charge#0", kind="done", name="a", value=b"1")
    call = replace(done, slot="c:look#0", kind="call")
    life = made()
    over = life.run._replace(status="completed")
    early, late = RunStore(), RunStore()
    for entry in (done, call):
        early.put_entry(entry)
    early.put(over)
    late.put(over)
    for entry in (done, call):
        late.put_entry(entry)
    for store in (early, late):
        assert dict(store.state("r", "x").entries) == {done.slot: done}
        assert store.early(2**62) == []
        assert list(store.keys("r")) == [b"r|o:0:0:charge#0", b"r"]
        store.forget("r")
        assert store.entries == {}


def test_the_past_of_another_step_is_not_the_attempts() -> None:
    store, run = RunStore(), made().run
    for step in ("a", "b"):
        store.put_entry(
            Entry(run_id="r", slot=f"o:0:0:{step}#0", kind="past", name=step, value=b"1")
        )
    store.put(run._replace(failure=Failure(code="x", message="y")))
    assert list(store.journal(run)) == ["o:0:0:a#0"]


# Children and pooled steps -------------------------------------------------------------------


def boss(bank: Bank, probe: Any = None) -> list[Agent]:
    """Has its children charge 1 and 2, one at a time; then, when told, its pool 3, and its heir 4.
    One child has a child of its own, which charges 2."""
    agent, child = Agent("boss"), Agent("child")

    @child.step(start=True)
    async def branch(ctx: Context, amount: int) -> Done | Parallel:
        if amount == 2:
            return Parallel([(leaf, amount)], join=back)
        return Done(await ctx.once("charge", bank.charge, amount, probe=probe))

    @child.step
    async def leaf(ctx: Context, amount: int) -> Done:
        return Done(await ctx.once("charge", bank.charge, amount, probe=probe))

    @child.step
    async def back(ctx: Context, receipts: list[str]) -> Done:
        return Done(receipts[0])

    @agent.step(start=True)
    async def fork(ctx: Context, payload: int) -> Parallel:
        return Parallel([(child, 1), (child, 2)], join=join, limit=1)

    @agent.step
    async def join(ctx: Context, receipts: list[str]) -> Wait:
        return Wait("go", then=pooled)

    @agent.step(pool="gpu")
    async def pooled(ctx: Context, amount: int) -> Next:
        return Next(rest, await ctx.once("charge", bank.charge, amount, probe=probe))

    @agent.step
    async def rest(ctx: Context, receipt: str) -> Wait:
        return Wait("end", then=end)

    @agent.step
    async def end(ctx: Context, amount: int) -> Handoff:
        return Handoff(child, amount)

    return [agent, child]


def asking(sim: Simulation) -> list[str]:
    """The runs in which an action is in doubt."""
    return [
        each.run_id
        for each in sim.runs()
        if each.failure and each.failure["code"] == "once_in_doubt"
    ]


@pytest.mark.parametrize("over", [False, True])
def test_children_pooled_steps_and_heirs_of_a_run_that_is_sent_back_ask_their_probe(
    bank: Bank, over: bool
) -> None:
    with Simulation(*boss(bank, bank.probe)) as sim:
        sim.run(0, run_id="r")
        sim.signal("go", 3)
        if over:
            sim.signal("end", 4)
        done = [1, 2, 3, *([4] if over else [])]
        assert (bank.charged, bank.probed) == (done, [])
        for _ in range(2):
            bank.probed.clear()
            assert sim.rewind(0, run_id="r").status == "waiting"
            sim.signal("go", 3, run_id="r")
            if over:
                assert sim.signal("end", 4, run_id="r").status == "completed"
            assert (bank.charged, bank.probed) == (done, done)


def test_without_a_probe_a_person_is_asked_once_and_told_of_the_run_that_was_sent_back(
    bank: Bank,
) -> None:
    async def closed(amount: int) -> str:
        if closing.pop():
            raise NotDone("the bank is closed")
        return await Bank.charge(bank, amount)

    bank.charge = closed  # type: ignore[method-assign]
    closing = [False, True, False, False, False]
    with Simulation(*boss(bank)) as sim:
        sim.run(0, run_id="r")
        sim.signal("go", 3)
        assert sim.rewind(0, run_id="r").status == "waiting"
        assert asking(sim) == ["r~3~0"]
        failure = sim.look("r~3~0", agent="child").failure
        assert failure is not None
        assert "run r was rewound or copied" in failure["message"]
        sim.crash()
        sim.resolve("did_not", run_id="r~3~0")  # tried twice, as the bank is closed at first
        assert bank.charged == [1, 2, 3, 1]
        assert asking(sim) == ["r~3~1~1~0"]
        sim.resolve("happened", "found", run_id="r~3~1~1~0")
        assert asking(sim) == []
        sim.signal("go", 3, run_id="r")
        failure = sim.look("r~4~0", agent="boss.gpu").failure
        assert failure is not None
        assert (failure["code"], bank.charged) == ("once_in_doubt", [1, 2, 3, 1])


def test_a_name_that_is_repeated_holds_for_children_and_pooled_steps_too(bank: Bank) -> None:
    with Simulation(*boss(bank)) as sim:
        sim.run(0, run_id="r")
        sim.signal("go", 3)
        sim.rewind(0, run_id="r", repeat=["charge"])
        sim.signal("go", 3, run_id="r")
        assert (asking(sim), bank.charged) == ([], [1, 2, 3, 1, 2, 3])
        sim.rewind(0, run_id="r")
        assert (asking(sim), bank.charged) == (["r~5~0"], [1, 2, 3, 1, 2, 3])


def test_what_was_not_undone_raises_no_doubt(bank: Bank) -> None:
    with Simulation(*boss(bank)) as sim:
        sim.run(0, run_id="r")
        sim.rewind(2, run_id="r")  # behind the children
        sim.signal("go", 3)
        assert (asking(sim), bank.charged) == ([], [1, 2, 3])
        sim.rewind(4, run_id="r")  # behind the pooled step
        sim.signal("end", 4)
        assert (asking(sim), bank.charged) == ([], [1, 2, 3, 4])


def test_the_children_of_a_copy_are_in_doubt_as_well(bank: Bank) -> None:
    with Simulation(*boss(bank)) as sim:
        sim.run(0, run_id="r")
        sim.fork(0, new_id="copy", run_id="r")
        assert (asking(sim), bank.charged) == (["copy~1~0"], [1, 2])
        sim.fork(0, new_id="third", run_id="copy")
        assert (asking(sim), bank.charged) == (["copy~1~0", "third~1~0"], [1, 2])
        sim.fork(0, new_id="named", run_id="r", repeat=["charge"])
        assert bank.charged == [1, 2, 1, 2]
        sim.fork(0, new_id="of-a-child", run_id="copy~1~0")
        assert bank.charged == [1, 2, 1, 2]


def forked(life: Life, step: str = "a") -> list[bool]:
    """Whether the children of the next fork may be in the place of others."""
    life.goes(step)
    life.returned(fork(1))
    told = [bool(each.actions) for each in life.commands("start")]
    life.child(0)
    return told


def test_each_step_starts_as_many_copies_as_forks_were_undone() -> None:
    life = made()
    assert forked(life) == [False]
    assert forked(life) == [False]
    life.legal(replace(REWIND, forks=1))
    assert [forked(life)[0] for _ in range(3)] == [True, False, False]
    life.legal(replace(REWIND, id="2", epoch=1, forks=2))  # one copy and two others are undone
    assert [forked(life)[0] for _ in range(4)] == [True, True, True, False]


def test_a_run_that_had_no_children_keeps_nothing_of_them() -> None:
    life = made()
    life.legal(REWIND)
    assert life.entries == {}
    assert forked(life) == [False]
    assert life.entries == {}


def decoded(event: EventRecord) -> Any:
    return jsonable(event)


def test_the_end_of_an_heir_tells_the_number_of_its_branchs_fork() -> None:
    life = made()
    life.returned(fork(1))
    life.legal(replace(child_done(1, 0), child="r~1~0~7~0"))
    line = Line()
    for event in life.history:
        line.apply(decoded(event))
    life.goes("c")
    line.apply(decoded(life.event("step.completed")))
    assert line.versions[2].forks == 1
