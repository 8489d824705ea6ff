"""What is promised of every life, whatever is killed and whoever asks for what."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surefoot.state.records.run_store import RunStore
from surefoot.testing.simulation import SimulatedRun

if TYPE_CHECKING:
    from tests.property.generated_agents import Life

_ENDS = ("run.completed", "run.cancelled")
_COMMITTED = ("step.completed", "run.completed")
_NO_ANSWER = frozenset({"signal.unread"})


def broken_promises(life: Life) -> list[str]:
    """Each in words."""
    runs = life.runs()
    wrong = [*life.wrong, *life.world.wrong]
    wrong += [f"{key} was done {n} times" for key, n in life.world.done.items() if n > 1]
    for run in runs:
        wrong += [f"{run.agent} {run.run_id}: {each}" for each in _of_a_run(run)]
    wrong += _effects(life, runs)
    wrong += _answers(life)
    wrong += [] if life.wild else _orphans(runs)
    wrong += _memory(life)
    return wrong


def _of_a_run(run: SimulatedRun) -> Iterator[str]:
    steps = Counter((e["epoch"], e["seq"]) for e in run.history if e["type"] in _COMMITTED)
    yield from (f"step {at} was committed {n} times" for at, n in steps.items() if n > 1)
    ends = [e["type"] for e in run.history if e["type"] in _ENDS]
    if len(ends) > 1:
        yield f"it ended more than once: {ends}"
    if ends and run.status not in ("completed", "cancelled"):
        yield f"it was over ({ends}), and is {run.status}"
    cancelling = [e["type"] for e in run.history]
    if "run.cancelling" in cancelling and "run.completed" in cancelling:
        yield "it completed though it was cancelled"
    told = Counter(e["name"] for e in run.history if e["type"] == "child.finished")
    yield from (f"it was told {n} times of {child}" for child, n in told.items() if n > 1)
    places = [tuple(map(int, effect.key.split(":")[-2:])) for effect in run.effects]
    if places != sorted(places):
        yield f"its effects were delivered in the order {places}"
    numbers = [e["seq"] for e in run.history if e["type"] in _COMMITTED]
    if numbers != sorted(numbers):
        yield f"its steps were committed in the order {numbers}"


def _effects(life: Life, runs: list[SimulatedRun]) -> Iterator[str]:
    """Each is delivered, with one content, and none that was not committed."""
    asked = Counter(key for run in runs for e in run.history for key in e["effects"])
    content = defaultdict(set)
    for request in life.sim.requests:
        key = dict(request.headers)["Idempotency-Key"]
        content[key].add((request.method, request.url, request.body))
    yield from (f"effect {key} was committed {n} times" for key, n in asked.items() if n > 1)
    yield from (f"effect {key} has {len(c)} contents" for key, c in content.items() if len(c) > 1)
    yield from (f"effect {key} was sent, not committed" for key in content.keys() - asked.keys())
    acted = {effect.key for effect in life.sim.delivered}
    yield from (f"effect {key} was never delivered" for key in asked.keys() - acted)
    dropped = {
        f"{run.agent}:{run.run_id}:{e['seq']}:"
        for run in runs
        for e in run.history
        if e["type"] in ("run.cancelling", "run.cancelled")
    }
    yield from (
        f"effect {key} of a step that was cancelled was sent"
        for key in content
        if f"{key.rpartition(':')[0]}:" in dropped
    )


def _answers(life: Life) -> Iterator[str]:
    """One event answers each command."""
    sent = Counter((c.agent, c.run_id, c.id) for c in life.sent)
    for (agent, run_id, identity), times in sent.items():
        history = life.sim._view.history(agent, run_id)
        told = [e["type"] for e in history if e["id"] == identity and e["type"] not in _NO_ANSWER]
        moved = [each for each in told if each not in ("command.repeated", "command.refused")]
        # A killed process may not have committed what it had read: then it is answered again.
        enough = len(told) >= times if life.kills else len(told) == times
        if not enough or len(moved) > 1:
            yield f"{agent} {run_id}: command {identity} was sent {times} times; answers: {told}"


def _orphans(runs: list[SimulatedRun]) -> Iterator[str]:
    """A run that is cancelled takes with it the children that it waits for."""
    for run in runs:
        at_ms = [
            e["at_ms"] for e in run.history if e["type"] in ("run.cancelling", "run.cancelled")
        ]
        prefix = f"{run.run_id}~"
        for child in runs if at_ms else ():
            own = child.run_id.startswith(prefix) and child.run_id[len(prefix) :].count("~") == 1
            ends = [e["at_ms"] for e in child.history if e["type"] == "run.completed"]
            again = any(e["type"] == "run.retried" for e in child.history)
            if own and ends and ends[0] > at_ms[0] and not again:
                yield f"{child.run_id} completed after {run.run_id} was cancelled"


def _memory(life: Life) -> Iterator[str]:
    """What the owners have in memory is what a fresh restore gives."""
    process = life.sim._alive()
    for worker, _ in process._workers:
        topic = life.sim._world.topics(worker.agent.name).state
        for partition, owner in worker.owners.items():
            fresh = RunStore()
            fresh.apply(life.sim._world.broker.partition(topic, partition).read(0)[0])
            for one, other in zip(_contents(owner.store), _contents(fresh), strict=True):
                if one != other:
                    yield f"memory of {topic} {partition} has {one}, its topic {other}"


def _contents(store: RunStore) -> tuple[Any, ...]:
    entries = {run_id: list(slots.items()) for run_id, slots in store.entries.items()}
    return store.live, list(store.receipts.items()), entries, store.broken


# The same end -------------------------------------------------------------------------------


def differences(plain: Life, crashed: Life) -> list[str]:
    """What is not as it is without a crash."""
    raced = _cancelled_by_parents(plain) | _cancelled_by_parents(crashed)
    want, have = _end(plain, raced), _end(crashed, raced)
    return [
        f"{key} is {have.get(key)}, not {want.get(key)}"
        for key in sorted(want.keys() | have.keys())
        if want.get(key) != have.get(key)
    ]


def _cancelled_by_parents(life: Life) -> set[str]:
    """A branch that fails has the others cancelled: how far they have come by then is a race."""
    return {
        run.run_id for run in life.runs() if any(event["id"] == "parent" for event in run.history)
    }


def _raced(run_id: str, raced: set[str]) -> bool:
    return any(run_id == each or run_id.startswith(f"{each}~") for each in raced)


def _end(life: Life, raced: set[str]) -> dict[str, Any]:
    deeds = sorted(life.world.deeds.items())
    made: dict[str, Any] = {
        "deeds": {key: deed for key, deed in deeds if not _raced(key.split(":")[1], raced)}
    }
    for run in life.sim.runs():
        if _raced(run.run_id, raced):
            continue
        failure = run.failure["code"] if run.failure is not None else None
        steps = [(e["seq"], e["step"]) for e in run.history if e["type"] in _COMMITTED]
        effects = [(e.key, e.url, e.body) for e in run.effects]
        made[f"{run.agent} {run.run_id}"] = (run.status, run.result, failure, steps, effects)
    return made
