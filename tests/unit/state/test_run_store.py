"""The runs of a partition as its state topic tells them."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.schemas.codec.codec import decode
from surefoot.state.machine.decide import decide
from surefoot.state.machine.decision import Rules
from surefoot.state.machine.model import (
    Amount,
    Decided,
    Entry,
    EntryKind,
    Failure,
    Forget,
    Memory,
    PlanItem,
    Run,
    State,
    Status,
)
from surefoot.state.machine.operations import Cancel
from surefoot.state.names.topics import APPLIED_KEY, AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.records.encoding import Wire
from surefoot.state.records.run_store import RunStore

JOURNALED: tuple[EntryKind, ...] = ("call", "reserved", "intent", "partial")
WIRE = Wire("app", AgentTopics("app", "x"), 1)
RUN = Run(
    run_id="r",
    agent="x",
    version=1,
    status="running",
    seq=2,
    step="a",
    attempt=0,
    payload=b"1",
    created_ms=10,
    updated_ms=20,
    input_digest=b"d",
)


def over(run_id: str, updated_ms: int, status: Status = "completed") -> Run:
    return RUN._replace(run_id=run_id, status=status, payload=b"", updated_ms=updated_ms)


def state(key: bytes | None, value: bytes | None) -> ConsumerRecord:
    return ConsumerRecord("app.x.state", 0, 0, 0, key, value)


def checkpoint(run: Run) -> ConsumerRecord:
    out = WIRE.checkpoint(run, 1, (), 0)
    return state(out.key, out.value)


def entry(slot: str, kind: EntryKind = "call", run_id: str = "r", **fields: Any) -> Entry:
    return Entry(run_id=run_id, slot=slot, kind=kind, **fields)


def written(record: Entry | Forget, run_id: str = "r") -> ConsumerRecord:
    out = WIRE.out(record, run_id, 0, (), 0)
    return state(out.key, out.value)


def restored(*records: ConsumerRecord) -> RunStore:
    store = RunStore()
    store.apply(records)
    return store


def test_a_run_that_goes_on_is_live_with_all_that_its_checkpoint_says() -> None:
    store = restored(checkpoint(RUN._replace(seq=1)), checkpoint(RUN))
    assert store.live == {"r": RUN}
    assert store.receipts == {}


def test_a_run_that_is_over_is_a_receipt_without_its_payload() -> None:
    for status in ("completed", "cancelled"):
        store = restored(checkpoint(RUN), checkpoint(over("r", 30, status)))
        assert store.live == {}
        receipt = store.receipts["r"]
        assert (receipt.status, receipt.seq, receipt.input_digest) == (status, 2, b"d")
        assert not hasattr(receipt, "payload")


def test_a_failed_run_has_a_receipt_and_is_kept_whole() -> None:
    failed = RUN._replace(status="failed")
    store = restored(checkpoint(RUN), written(entry("c:x#0", value=b"1")), checkpoint(failed))
    assert store.live == {"r": failed}
    assert store.receipts["r"].status == "failed"
    assert store.state("r", "x").run == failed
    assert store.entries["r"].keys() == {"c:x#0"}


def test_a_receipt_tells_all_that_commands_are_answered_with() -> None:
    decided = Decided(question="q", approved=1, by="ann", at_ms=5)
    run = over("r", 30)._replace(
        version=4,
        epoch=3,
        emit=2,
        forks=7,
        commands=("1", "2"),
        memory=Memory(plan=(PlanItem(id="1", text="t"),), thread=2, decided=(decided,)),
    )
    left = restored(checkpoint(run)).state("r", "x").run
    assert left is not None
    assert (left.status, left.version, left.seq, left.updated_ms) == ("completed", 4, 2, 30)
    assert (left.epoch, left.emit, left.forks, left.commands) == (3, 2, 7, ("1", "2"))
    assert left.memory == Memory(thread=2, decided=(decided,))
    assert left.input_digest == b"d"
    plain = restored(checkpoint(over("r", 30))).state("r", "x").run
    assert plain is not None
    assert plain.memory is None
    assert RunStore().state("r", "x") == State(None)


def test_a_tombstone_forgets_the_run_whatever_it_was() -> None:
    for record in (checkpoint(RUN), checkpoint(over("r", 1)), state(b"r", b"garbage")):
        store = restored(record, state(b"r", None))
        assert (store.live, store.receipts, store.broken) == ({}, {}, {})
    store = restored(checkpoint(over("r", 1, "failed")), written(entry("s:1", "signal")))
    store.forget("r")
    assert (store.live, store.receipts, store.entries) == ({}, {}, {})


def test_a_checkpoint_that_cannot_be_decoded_costs_that_run_only() -> None:
    store = restored(
        checkpoint(RUN), checkpoint(RUN._replace(run_id="bad")), state(b"bad", b"garbage")
    )
    assert store.live == {"r": RUN}
    assert store.broken.keys() == {"bad"}
    assert store.broken["bad"]


def test_a_broken_run_is_whole_again_with_its_next_checkpoint() -> None:
    store = restored(state(b"r", b"garbage"), checkpoint(RUN))
    assert store.broken == {}
    assert store.live == {"r": RUN}


# Entries -------------------------------------------------------------------------------------


def test_entries_are_there_by_slot_in_the_order_in_which_they_were_last_written() -> None:
    store = restored(
        checkpoint(RUN),
        *(written(entry(slot, value=b"1")) for slot in ("c:x#0", "c:y#0", "c:z#0")),
        written(entry("c:x#0", value=b"2")),
        written(Forget(slot="c:y#0")),
    )
    state = store.state("r", "x")
    assert [(e.slot, e.value) for e in state.entries.values()] == [
        ("c:z#0", b"1"),
        ("c:x#0", b"2"),
    ]


def test_an_entry_comes_back_as_it_was() -> None:
    made = entry(
        "c:x#0",
        seq=4,
        epoch=2,
        digest=b"d",
        value=b"1",
        id="i",
        name="n",
        by="b",
        at_ms=9,
        failure=Failure(code="c", message="m", kind="k", step="s", attempt=1),
        cost=(Amount("money", 1), Amount("tokens", 2)),
    )
    assert restored(written(made)).entries == {"r": {"c:x#0": made}}


def test_names_with_any_character_are_slots_of_their_own() -> None:
    slots = ["s:a|b", "s:", "s:|", "s:é", "p:x y"]
    made = [entry(slot, "signal") for slot in slots]
    store = restored(*(written(each) for each in made))
    assert list(store.entries["r"]) == slots
    store.apply([written(Forget(slot=slot)) for slot in slots])
    assert store.entries == {}


def test_the_journal_is_what_the_attempt_in_work_has_recorded() -> None:
    mine = [entry(f"c:{kind}#0", kind, seq=2) for kind in JOURNALED]
    store = restored(
        checkpoint(RUN),
        *(written(each) for each in mine),
        written(entry("c:old#0", seq=1)),
        written(entry("c:epoch#0", seq=2, epoch=1)),
        written(entry("s:1", "signal", seq=2)),
        written(entry("b:0", "branch", seq=2)),
        written(entry("m:0", "message", seq=2)),
    )
    assert store.journal(RUN) == {each.slot: each for each in mine}


def test_the_thread_is_its_messages_in_their_order() -> None:
    run = RUN._replace(memory=Memory(thread=11))
    numbers = [*range(10, -1, -1)]
    store = restored(
        checkpoint(run), *(written(entry(f"m:{n}", "message", value=b"%d" % n)) for n in numbers)
    )
    assert store.messages(run) == tuple(b"%d" % n for n in range(11))
    assert store.messages(RUN) == ()


def test_a_run_that_is_over_has_no_entries_in_memory_but_names_those_of_the_log() -> None:
    run = over("r", 5)._replace(memory=Memory(thread=2))
    store = restored(
        checkpoint(RUN),
        written(entry("m:0", "message")),
        written(entry("m:1", "message")),
        checkpoint(run),
        written(entry("m:1", "message")),
    )
    assert store.entries == {}
    assert list(store.keys("r")) == [b"r|m:0", b"r|m:1", b"r"]


def test_all_that_is_left_of_a_failed_run_is_named_once() -> None:
    failed = over("r", 5, "failed")._replace(memory=Memory(thread=1))
    store = restored(
        checkpoint(failed), written(entry("m:0", "message")), written(entry("s:1", "signal"))
    )
    assert list(store.keys("r")) == [b"r|m:0", b"r|s:1", b"r"]


def test_an_entry_that_cannot_be_decoded_costs_its_run_until_the_run_is_forgotten() -> None:
    store = restored(state(b"r|c:x#0", b"garbage"), checkpoint(RUN))
    assert store.live == {}
    assert "entry c:x#0" in store.broken["r"]
    store.put(RUN)
    assert store.live == {}
    store.apply([state(b"r", None), checkpoint(RUN)])
    assert (store.live, store.broken) == ({"r": RUN}, {})


def test_a_value_that_a_later_one_of_its_key_replaces_is_not_decoded() -> None:
    store = restored(
        checkpoint(RUN), state(b"r|c:x#0", b"garbage"), written(entry("c:x#0", value=b"1"))
    )
    assert store.broken == {}
    assert [each.value for each in store.state("r", "x").entries.values()] == [b"1"]


def test_a_run_started_anew_has_no_entries_of_the_one_that_was_forgotten() -> None:
    store = restored(
        checkpoint(RUN), written(entry("s:1", "signal")), state(b"r", None), checkpoint(RUN)
    )
    assert store.state("r", "x").entries == {}


def test_signals_for_runs_that_never_began_are_told_by_their_age() -> None:
    store = restored(
        written(entry("s:1", "signal", "old", at_ms=10), "old"),
        written(entry("s:1", "signal", "new", at_ms=10), "new"),
        written(entry("s:2", "signal", "new", at_ms=30), "new"),
        written(entry("s:1", "signal", at_ms=10)),
        checkpoint(RUN),
    )
    assert store.early(20) == ["old"]
    assert list(store.keys("old")) == [b"old|s:1", b"old"]
    store.forget("old")
    assert store.early(20) == []
    assert store.early(40) == ["new"]


def test_what_is_told_of_a_run_that_there_is_not_has_its_name() -> None:
    told = decide(Rules(agent="x"), State(None), Cancel(id="1"), 5).records
    (out,) = [WIRE.out(record, "r", 0, (), 5) for record in told]
    kind, event = decode(out.value)
    assert (kind, event["run_id"], event["type"]) == ("Event", "r", "command.refused")


# Forgetting ----------------------------------------------------------------------------------


def test_a_key_that_is_no_text_breaks_nothing() -> None:
    store = restored(state(b"\xff\xfe", b"garbage"), checkpoint(RUN))
    assert store.live.keys() == {"r"}
    assert len(store.broken) == 1


def test_what_is_not_about_a_run_is_left_alone() -> None:
    store = restored(state(None, b"?"), state(b"@later", b"?"), state(b"@later", None))
    assert (store.live, store.receipts, store.broken) == ({}, {}, {})


def test_the_newest_applied_offsets_hold_and_offset_zero_is_one() -> None:
    def applied(commands: int | None, tasks: int | None) -> ConsumerRecord:
        out = WIRE.applied({"commands": commands, "tasks": tasks}, 0, ())
        assert out.key == APPLIED_KEY
        return state(out.key, out.value)

    assert restored().applied == {}
    store = restored(applied(None, None), applied(0, 4))
    assert store.applied == {"commands": 0, "tasks": 4}


def test_applied_offsets_that_cannot_be_read_are_not_guessed() -> None:
    known = WIRE.applied({"commands": 3, "tasks": 4}, 0, ())
    store = restored(state(known.key, known.value), state(APPLIED_KEY, b"garbage"))
    assert store.applied == {}
    assert restored(state(APPLIED_KEY, None)).applied == {}


def test_receipts_expire_in_the_order_in_which_runs_ended_and_not_before() -> None:
    store = restored(*(checkpoint(over(f"r{n}", n)) for n in range(10)))
    assert store.expired(0) == []
    assert store.expired(3) == ["r0", "r1", "r2"]
    assert store.expired(100, most=2) == ["r0", "r1"]
    for run_id in store.expired(3):
        store.forget(run_id)
    assert store.expired(4) == ["r3"]


def test_a_run_started_anew_under_an_old_name_expires_as_the_new_one() -> None:
    store = restored(
        checkpoint(over("r0", 1)),
        checkpoint(over("r1", 2)),
        state(b"r0", None),
        checkpoint(RUN._replace(run_id="r0", updated_ms=8)),
        checkpoint(over("r0", 9)),
    )
    assert store.expired(5) == ["r1"]


def test_a_live_run_never_expires() -> None:
    assert restored(checkpoint(RUN)).expired(1_000_000) == []


@pytest.mark.parametrize("field", ["version", "seq", "attempt", "epoch", "emit", "forks"])
@pytest.mark.parametrize("number", [-1, 2**31 - 1])
def test_counts_that_no_run_comes_to_cost_that_run_only(field: str, number: int) -> None:
    """One more would fit into no record, and the owner could commit nothing any more."""
    if field == "seq" and number > 0:
        number = 2**63 - 1
    counts: dict[str, Any] = {field: number}
    store = restored(
        checkpoint(RUN._replace(run_id="good")), checkpoint(RUN._replace(run_id="bad", **counts))
    )
    assert set(store.live) == {"good"}
    assert store.broken == {"bad": f"Checkpoint.{field} is {number}"}


def test_what_stands_under_another_runs_key_costs_the_run_of_that_key() -> None:
    good, other = RUN._replace(run_id="good"), RUN._replace(run_id="other")
    store = restored(checkpoint(good), state(b"bad", checkpoint(good).value))
    assert store.live == {"good": good}
    assert set(store.broken) == {"bad"}
    store = restored(
        checkpoint(good),
        checkpoint(other),
        state(b"other|m:0", written(entry("m:0", run_id="good")).value),
    )
    assert store.live == {"good": good}
    assert store.entries == {}
    assert set(store.broken) == {"other"}
