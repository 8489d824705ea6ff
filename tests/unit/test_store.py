"""The runs of a partition as its state topic tells them."""

from __future__ import annotations

from dataclasses import replace

from surefoot.state.model import Run, Status
from surefoot.state.partitioner import partition_of
from surefoot.state.ports import In
from surefoot.state.store import RunStore
from surefoot.state.topics import APPLIED_KEY, AgentTopics
from surefoot.state.wire import Wire

WIRE = Wire("app", AgentTopics("app", "x"), 1)
RUN = Run(
    run_id="r", agent="x", version=1, status="running", seq=2, step="a", attempt=0, payload=b"1",
    created_ms=10, updated_ms=20, input_digest=b"d",
)  # fmt: skip


def over(run_id: str, updated_ms: int, status: Status = "completed") -> Run:
    return replace(RUN, run_id=run_id, status=status, payload=b"", updated_ms=updated_ms)


def state(key: bytes | None, value: bytes | None) -> In:
    return In("app.x.state", 0, 0, 0, key, value)


def checkpoint(run: Run) -> In:
    out = WIRE.outs(run, (), (), partition_of(run.run_id, 1), 0)[0]
    return state(out.key, out.value)


def restored(*records: In) -> RunStore:
    store = RunStore()
    store.apply(records)
    return store


def test_a_run_that_goes_on_is_live_with_all_that_its_checkpoint_says() -> None:
    store = restored(checkpoint(replace(RUN, seq=1)), checkpoint(RUN))
    assert store.live == {"r": RUN}
    assert store.receipts == {}


def test_a_run_that_is_over_is_a_receipt_without_its_payload() -> None:
    for status in ("completed", "failed", "cancelled"):
        store = restored(checkpoint(RUN), checkpoint(over("r", 30, status)))
        assert store.live == {}
        receipt = store.receipts["r"]
        assert (receipt.status, receipt.seq, receipt.input_digest) == (status, 2, b"d")
        assert not hasattr(receipt, "payload")


def test_a_tombstone_forgets_the_run_whatever_it_was() -> None:
    for record in (checkpoint(RUN), checkpoint(over("r", 1)), state(b"r", b"garbage")):
        store = restored(record, state(b"r", None))
        assert (store.live, store.receipts, store.broken) == ({}, {}, {})


def test_a_checkpoint_that_cannot_be_decoded_costs_that_run_only() -> None:
    store = restored(
        checkpoint(RUN), checkpoint(replace(RUN, run_id="bad")), state(b"bad", b"garbage")
    )
    assert store.live == {"r": RUN}
    assert store.broken.keys() == {"bad"}
    assert store.broken["bad"]


def test_a_broken_run_is_whole_again_with_its_next_checkpoint() -> None:
    store = restored(state(b"r", b"garbage"), checkpoint(RUN))
    assert store.broken == {}
    assert store.live == {"r": RUN}
    store = restored(state(b"r", b"garbage"))
    store.put(over("r", 5))
    assert store.broken == {}


def test_a_key_that_is_no_text_breaks_nothing() -> None:
    store = restored(state(b"\xff\xfe", b"garbage"), checkpoint(RUN))
    assert store.live.keys() == {"r"}
    assert len(store.broken) == 1


def test_what_is_not_about_a_run_is_left_alone() -> None:
    store = restored(state(None, b"?"), state(b"@later", b"?"), state(b"@later", None))
    assert (store.live, store.receipts, store.broken) == ({}, {}, {})


def test_the_newest_applied_offsets_hold_and_offset_zero_is_one() -> None:
    def applied(commands: int | None, tasks: int | None) -> In:
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
        checkpoint(replace(RUN, run_id="r0", updated_ms=8)),
        checkpoint(over("r0", 9)),
    )
    assert store.expired(5) == ["r1"]


def test_a_live_run_never_expires() -> None:
    assert restored(checkpoint(RUN)).expired(1_000_000) == []
