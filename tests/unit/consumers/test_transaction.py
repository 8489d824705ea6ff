"""What a transaction would do, without a log to do it."""

from __future__ import annotations

from surefoot.consumers.partition.transaction import (
    PendingInput,
    RunChange,
    Transaction,
    answered_after,
    offsets_after,
)
from surefoot.state.machine.decision import Rules
from surefoot.state.machine.model import StartRun
from surefoot.state.machine.operations import Cancel
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import InputKind
from surefoot.state.records.encoding import Wire
from surefoot.state.records.offset_tracker import OffsetTracker
from surefoot.state.records.run_store import RunStore

TOPICS = AgentTopics("app", "a")
START = StartRun(run_id="r", agent="a", version=1, step="s", payload=b"1", input_digest=b"12345678")


def transaction(store: RunStore, record_bytes: int = 100_000) -> Transaction:
    return Transaction(
        txn=b"t",
        now_ms=1,
        rules=Rules(agent="a", steps=frozenset({"s"})),
        wire=Wire("app", TOPICS, 1),
        partition=0,
        record_bytes=record_bytes,
        store=store,
    )


def test_memory_is_as_it_was_until_the_drafts_are_applied() -> None:
    store = RunStore()
    outs, (draft,) = transaction(store).build([PendingInput(run_id="r", inputs=(START,))])

    assert [out.topic for out in outs] == [TOPICS.state, TOPICS.events]
    assert store.live == {}
    change = draft.apply_to(store)
    assert change == RunChange("r", None, store.live["r"])


def test_inputs_of_one_run_are_decided_one_on_the_other_and_leave_one_checkpoint() -> None:
    cancel = PendingInput(run_id="r", inputs=(Cancel(id="c", by="ann"),))
    outs, (draft,) = transaction(RunStore()).build(
        [PendingInput(run_id="r", inputs=(START,)), cancel]
    )

    assert draft.after.run is not None
    assert draft.after.run.status == "cancelled"
    assert [out.topic for out in outs].count(TOPICS.state) == 1
    assert cancel.refused is None


def test_offsets_move_up_to_the_lowest_input_that_is_still_in_work() -> None:
    progress: dict[InputKind, OffsetTracker] = {
        "commands": OffsetTracker(5),
        "tasks": OffsetTracker(0),
    }
    for offset in (5, 6, 7):
        progress["commands"].begin(offset)
    done = [
        PendingInput(sources=(("commands", 5),)),
        PendingInput(sources=(("commands", 7),), answers=True),
    ]

    offsets = offsets_after(progress, done)
    assert offsets == {"commands": 6, "tasks": 0}
    assert answered_after({("commands", 4)}, done, offsets) == {("commands", 7)}
