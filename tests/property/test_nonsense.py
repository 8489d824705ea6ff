"""Whatever stands in an agent's topics, its owners go on, and what makes sense is done."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from surefoot import Agent, Approval, Approve, Context, Done, Next, Parallel, Sleep, Wait
from surefoot.schemas.codec.codec import UndecodableError, decode, encode
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics, dead_topic
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.encoding import command_out
from surefoot.testing import Simulation
from tests.property.test_codec_property import SCHEMAS, values_of

PARTITIONS = 2
#: the partition of r1, which is never over
HERE = partition_of("r1", PARTITIONS)
#: runs that nonsense is about; those that can be are in a state of their own when it comes
RUNS = ["wait", "ask", "sleep", "fork", "r2", "r3"]
EDGES = [-(2**31), -1, 0, 1, 2**31 - 1]
EXAMPLES = settings(
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


def made() -> Agent:
    agent = Agent("a")

    @agent.step(start=True)
    async def one(ctx: Context, payload: Any) -> Any:
        if payload == "held":
            await asyncio.get_running_loop().create_future()
        if payload == "wait":
            return Wait("go", then=last)
        if payload == "ask":
            return Approve({"a": 1}, then=told)
        if payload == "sleep":
            return Sleep("10s", last, payload)
        if payload == "fork":
            return Parallel([(last, 1), (last, 2)], join=last)
        return Next(last, payload)

    @agent.step
    async def told(ctx: Context, approval: Approval, what: Any) -> Done:
        return Done(approval.approved)

    @agent.step
    async def last(ctx: Context, payload: Any) -> Done:
        ctx.thread.append(1)
        return Done(payload)

    return agent


def values(of: str, /, **known: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Records of that kind, of any values; those of some fields often make sense."""
    any_values = values_of(SCHEMAS[of], {})
    sense = st.fixed_dictionaries(known)
    return st.builds(lambda record, some: encode(of, record | some), any_values, sense)


def hurt(data: bytes, at: int, what: bytes, kind: str) -> bytes:
    at %= len(data) + 1
    match kind:
        case "flip":
            return data[:at] + what[:1] + data[at + 1 :]
        case "insert":
            return data[:at] + what + data[at:]
    return data[:at]


run_ids = st.sampled_from(RUNS)
steps = st.sampled_from(["one", "told", "last", "nope", ""])
payloads = st.sampled_from(
    [b"null", b'{"approved": true}', b'{"approved": 1}', b'"wait"', b'"fork"', b"{", b"NaN"]
) | st.binary(max_size=8)
COMMANDS = values(
    "Command",
    run_id=run_ids,
    kind=st.sampled_from(
        [
            "start",
            "start",
            "start",
            "signal",
            "approve",
            "pause",
            "resume",
            "cancel",
            "retry",
            "resolve",
            "rewind",
            "child",
            "explode",
        ]
    ),
    step=st.none() | steps,
    payload=payloads,
    name=st.sampled_from([None, "", "go", "happened", "give_up"]),
    id=st.sampled_from([None, "", "c1", "c2", "x" * 128]),
    seq=st.none() | st.integers(-1, 3),
    epoch=st.none() | st.sampled_from(EDGES),
)
TASKS = values("Task", run_id=run_ids, seq=st.integers(-1, 2))
CHECKPOINTS = values(
    "Checkpoint",
    run_id=run_ids,
    agent=st.just("a"),
    version=st.just(1),
    step=steps,
    seq=st.integers(-1, 3),
    attempt=st.sampled_from(EDGES),
    **{name: st.sampled_from([0, *EDGES]) for name in ("epoch", "emit", "forks")},
    memory=st.none(),
)
ENTRIES = values("Entry", run_id=run_ids, slot=st.sampled_from(["m:0", "s:c1", "c:fn#0", "x"]))


def wounded(good: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    kinds = st.sampled_from(["flip", "insert", "cut"])
    return st.builds(hurt, good, st.integers(0, 2**16), st.binary(min_size=1, max_size=9), kinds)


ANY = COMMANDS | TASKS | wounded(COMMANDS) | wounded(TASKS) | st.binary(max_size=20)


def begin() -> Simulation:
    sim = Simulation(made, partitions=PARTITIONS)
    # Never over: what comes behind it in its partition is read again after every crash.
    sim.start("held", run_id="r1")
    for run_id in ("wait", "ask", "sleep", "fork"):
        sim.start(run_id, run_id=run_id)
    return sim


def write(sim: Simulation, *outs: ProducerRecord) -> list[int]:
    offsets = sim._world.broker.write(outs)
    sim._now()
    return offsets


def check_others(sim: Simulation) -> None:
    """Good runs of every partition are done."""
    good = [f"good{number}" for number in range(8)]
    assert {partition_of(run_id, PARTITIONS) for run_id in good} == set(range(PARTITIONS))
    for run_id in good:
        write(sim, start(run_id))
    for run_id in good:
        run = sim._view.run("a", run_id)
        assert run is not None
        assert run.status == "completed"


def start(run_id: str, payload: bytes = b"1") -> ProducerRecord:
    return command_out(
        "surefoot", PARTITIONS, "a", run_id=run_id, kind="start", payload=payload, sent_ms=0
    )


@EXAMPLES
@given(st.lists(st.tuples(st.sampled_from(["commands", "tasks"]), ANY, st.booleans()), min_size=3))
def test_nonsense_in_the_inputs_is_buried_once_and_stops_nothing(
    records: list[tuple[str, bytes, bool]],
) -> None:
    topics = AgentTopics("surefoot", "a")
    bad: set[tuple[bytes, bytes]] = set()
    with capture_logs() as logs, begin() as sim:
        for kind, value, crash in records:
            topic = getattr(topics, kind)
            (offset,) = write(sim, ProducerRecord(topic, HERE, b"k", value))
            try:
                decode(value, {"commands": "Command", "tasks": "Task"}[kind])
            except UndecodableError:
                bad.add((topic.encode(), b"%d" % offset))
            if crash:
                sim.crash()
        check_others(sim)
        letters, _ = sim._world.broker.read((dead_topic("surefoot"), 0), 0, 10_000)
    told = [dict(letter.headers) for letter in letters]
    buried = Counter(
        (headers["sf-dead-topic"], headers["sf-dead-offset"])
        for headers in told
        if headers.get("sf-dead-partition") == b"%d" % HERE
    )
    assert bad <= set(buried)
    assert set(buried.values()) <= {1}
    assert not [line for line in logs if line["event"] == "owner_failed"]


@EXAMPLES
@given(
    st.lists(
        st.tuples(
            run_ids,
            st.sampled_from(["", "|m:0", "|s:c1", "|c:fn#0"]),
            CHECKPOINTS | ENTRIES | wounded(CHECKPOINTS) | st.binary(max_size=12),
        ),
        min_size=1,
    )
)
def test_nonsense_in_the_state_costs_the_runs_that_it_is_about(
    records: list[tuple[str, str, bytes]],
) -> None:
    topics = AgentTopics("surefoot", "a")
    with capture_logs() as logs, begin() as sim:
        for run_id, slot, value in records:
            key = f"{run_id}{slot}".encode()
            write(sim, ProducerRecord(topics.state, partition_of(run_id, PARTITIONS), key, value))
        sim.crash()
        for run_id in RUNS:
            ask: dict[str, Any] = {"run_id": run_id, "sent_ms": 0}
            write(
                sim,
                start(run_id),
                *(
                    command_out("surefoot", PARTITIONS, "a", kind=kind, id=kind, **ask)
                    for kind in ("pause", "resume", "retry", "cancel")
                ),
            )
        check_others(sim)
    assert not [line for line in logs if line["event"] == "owner_failed"]
