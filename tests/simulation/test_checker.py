"""The checker bites: faults planted in the history of a good life are found, each by name."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.simulation.checker import History, Record, _schemas, check, decoded

ROOT = Path(__file__).parents[2]
#: a life with signals, timers, branches, effects, an action that happens once, nonsense, and a
#: commit that was not made
SEED = 3

_LIVE = """
import os, pickle, sys
from tests.simulation.world import Life
life = Life(int(sys.argv[1]))
assert life.live() == []
life.history.wrong.clear()
with open(sys.argv[2], "wb") as file:
    pickle.dump(life.history, file)
os._exit(0)
"""


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """In a process of its own: what a life leaves behind cannot be collected."""
    file = tmp_path_factory.mktemp("history") / "history"
    subprocess.run([sys.executable, "-c", _LIVE, str(SEED), str(file)], cwd=ROOT, check=True)
    return file.read_bytes()


@pytest.fixture
def history(lived: bytes) -> History:
    found = pickle.loads(lived)
    assert isinstance(found, History)
    return found


def changed(record: Record, **fields: Any) -> Record:
    """The same with other fields in its value."""
    assert record.value is not None
    schema = _schemas()[record.value[2:10]]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {**decoded(record.value), **fields})
    return replace(record, value=record.value[:10] + out.getvalue())


def events(history: History, kind: str) -> list[tuple[int, dict[str, Any]]]:
    """(place in the list of records, event) of that type."""
    return [
        (at, event)
        for at, record in enumerate(history.records)
        if record.committed and record.topic.endswith("walk.events")
        for event in [decoded(record.value)]
        if event["type"] == kind
    ]


def checkpoints(history: History) -> list[int]:
    return [
        at
        for at, record in enumerate(history.records)
        if record.committed and record.topic.endswith("walk.state") and record.value
        and b"|" not in (record.key or b"") and not (record.key or b"").startswith(b"@")
    ]  # fmt: skip


def _drop(history: History) -> None:
    at, _ = next(e for e in events(history, "step.completed") if e[1]["seq"] == 0)
    del history.records[at]


def _double(history: History) -> None:
    at, _ = events(history, "step.completed")[0]
    record = history.records[at]
    history.records.append(
        replace(record, offset=10_000, headers={**record.headers, "sf-src": b"timer"})
    )


def _answered_twice(history: History) -> None:
    at, _ = next(e for e in events(history, "step.completed")
                 if history.records[e[0]].headers["sf-src"] != b"timer")  # fmt: skip
    history.records.append(changed(replace(history.records[at], offset=10_000), seq=99))


def _unfounded(history: History) -> None:
    at, _ = events(history, "run.completed")[0]
    record = history.records[at]
    headers = {**record.headers, "sf-src": b"sim.walk.tasks/0/77777"}
    history.records[at] = replace(record, headers=headers)


def _never_done(history: History) -> None:
    at = next(
        n for n, r in enumerate(history.records) if r.topic.endswith("walk.tasks") and r.value
    )
    record = next(
        r for r in history.records
        if r.topic.endswith("walk.tasks") and r.committed and r.place not in history.poison
    )  # fmt: skip
    history.records.insert(at, changed(replace(record, offset=10_000), run_id="nobody"))


def _torn(history: History) -> None:
    at = next(n for n in checkpoints(history) if decoded(history.records[n].value)["records"] > 1)
    number = decoded(history.records[at].value)["records"]
    history.records[at] = changed(history.records[at], records=number + 1)


def _marker(history: History) -> None:
    at, _ = events(history, "step.completed")[0]
    history.records[at] = replace(history.records[at], committed=False)


def _lie(history: History) -> None:
    history.told = [*history.told, ("01nothing", True)]


def _denied(history: History) -> None:
    told = next(txn for txn, landed in history.told if landed)
    history.told = [*history.told, (told, False)]


def _offset_back(history: History) -> None:
    group, place, offset = next(sample for sample in history.samples if sample[2] > 0)
    history.samples = [*history.samples, (group, place, offset - 1)]


def _offset_beyond(history: History) -> None:
    group, place, _ = history.samples[0]
    history.samples = [*history.samples, (group, place, history.ends[place] + 1)]


def _other_result(history: History) -> None:
    at, _ = events(history, "run.completed")[-1]
    run_id = decoded(history.records[at].value)["run_id"]
    at = next(n for n, e in events(history, "run.completed") if "~" not in e["run_id"])
    run_id = decoded(history.records[at].value)["run_id"]
    assert run_id in history.promised
    history.records[at] = changed(history.records[at], result=json.dumps("other").encode())


def _unfinished(history: History) -> None:
    at = next(n for n, e in events(history, "run.completed") if "~" not in e["run_id"])
    del history.records[at]


def _step_back(history: History) -> None:
    ats = checkpoints(history)
    key = history.records[ats[0]].key
    mine = [n for n in ats if history.records[n].key == key]
    first, last = mine[0], mine[-1]
    records = history.records
    records[first], records[last] = records[last], records[first]


def _fence(history: History) -> None:
    record = next(r for r in reversed(history.records) if r.producer is not None)
    assert record.producer is not None
    name, epoch = record.producer
    history.records.append(replace(record, offset=10_000, producer=(name, epoch + 1)))
    history.records.append(replace(record, offset=10_001))


def _effect_lost(history: History) -> None:
    key = history.requests[0].key
    history.requests = [r for r in history.requests if r.key != key]


def _effect_twice(history: History) -> None:
    done = next(r for r in history.requests if r.acted)
    history.requests = [*history.requests, done]


def _other_body(history: History) -> None:
    done = next(r for r in history.requests if r.acted)
    history.requests = [*history.requests, replace(done, body=b"other", acted=False)]


def _phantom(history: History) -> None:
    history.requests = [*history.requests, replace(history.requests[0], key="walk:r9:0:0")]


def _once_twice(history: History) -> None:
    history.done = {**history.done, ("r0", 0, "a0"): 2}


def _called_again(history: History) -> None:
    record = next(
        r for r in history.records
        if r.committed and r.topic.endswith("walk.state") and b"|c:" in (r.key or b"") and r.value
        and decoded(r.value)["kind"] == "call"
    )  # fmt: skip
    run_id, _, slot = (record.key or b"").decode().partition("|c:")
    entry = decoded(record.value)
    history.zombies = False
    history.calls = [*history.calls, (run_id, entry["seq"], slot.partition("#")[0], 10**6)]


def _early(history: History) -> None:
    due = {
        (e["run_id"], e["seq"] + 1): e["due_ms"]
        for _, e in events(history, "step.completed") if e["due_ms"] and e["wait"] is None
    }  # fmt: skip
    history.one_time = True
    for kind in ("step.completed", "run.completed"):
        for at, event in events(history, kind):
            due_ms = due.get((event["run_id"], event["seq"]))
            if due_ms is not None:
                history.records[at] = changed(history.records[at], started_ms=due_ms - 1)
                return
    raise AssertionError("no timer in this life")


def _buried_twice(history: History) -> None:
    record = next(r for r in history.records if r.topic == "sim.dead" and r.committed)
    history.records.append(replace(record, offset=10_000))


def _not_buried(history: History) -> None:
    at = next(n for n, r in enumerate(history.records) if r.topic == "sim.dead" and r.committed)
    del history.records[at]


def _other_state(history: History) -> None:
    at = next(
        n for n in reversed(checkpoints(history))
        if decoded(history.records[n].value)["status"] == "completed"
    )  # fmt: skip
    history.records[at] = changed(history.records[at], status="failed")


PLANTED: dict[str, tuple[str, Callable[[History], None]]] = {
    "a result is dropped": ("I2", _drop),
    "a result is doubled": ("I2", _double),
    "an input is answered twice": ("I3", _answered_twice),
    "a task is never done": ("I3", _never_done),
    "a decision has lost a record": ("I4", _torn),
    "a marker is flipped": ("I4", _marker),
    "a commit that was told as made is gone": ("I5", _lie),
    "a commit that was told as not made is there": ("I5", _denied),
    "an input that never was is answered": ("I6", _unfounded),
    "an offset goes back": ("I7", _offset_back),
    "an offset lies beyond the end": ("I7", _offset_beyond),
    "a run comes to another result": ("I8", _other_result),
    "a run goes a step back": ("I9", _step_back),
    "an older epoch writes after a newer one": ("I10", _fence),
    "an effect is lost": ("I11", _effect_lost),
    "an effect is acted upon twice": ("I11", _effect_twice),
    "an effect is requested with another body": ("I11", _other_body),
    "an effect that nobody asked for": ("I12", _phantom),
    "a timer fires early": ("I13", _early),
    "a run is never completed": ("I15", _unfinished),
    "the state says something else": ("I16", _other_state),
    "nonsense is buried twice": ("I19", _buried_twice),
    "nonsense is not buried": ("I19", _not_buried),
    "what happens once happens twice": ("once", _once_twice),
    "a recorded call is made again": ("call", _called_again),
}


def test_a_good_life_is_clean(history: History) -> None:
    assert check(history) == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_by_name(history: History, name: str) -> None:
    invariant, plant = PLANTED[name]
    before = copy.deepcopy(history.records)
    plant(history)
    found = check(history)
    assert any(each.startswith(f"{invariant}:") for each in found), (
        found,
        before == history.records,
    )
