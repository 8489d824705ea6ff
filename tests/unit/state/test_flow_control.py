"""When runs may begin: how many of a key at a time, how often, which first."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from surefoot import Agent, ConfigError, Context, Done, Ended, Flow, Next, Rate, Wait
from surefoot.state.admission.lanes import Lanes
from surefoot.state.machine.model import Action, jsonable
from surefoot.state.names.partitioner import partition_of
from surefoot.testing import Simulation, check_crashes

Job = dict[str, Any]


def by_who(job: Job) -> str:
    return str(job["who"])


def jobs(flow: Flow, seconds: float = 10.0) -> tuple[Agent, list[tuple[str, str, int]]]:
    """An agent whose runs take so long, and what began and ended: (what, who, n)."""
    agent, told = Agent("jobs", flow=flow), list[tuple[str, str, int]]()

    @agent.step
    async def work(ctx: Context, job: Job) -> Next:
        told.append(("begin", job["who"], job["n"]))
        await asyncio.sleep(seconds)
        return Next(last, job)

    @agent.step
    async def last(ctx: Context, job: Job) -> Done:
        told.append(("end", job["who"], job["n"]))
        return Done(job["n"])

    return agent, told


def begun(told: list[tuple[str, str, int]], who: str = "a") -> list[int]:
    return [n for what, whose, n in told if (what, whose) == ("begin", who)]


def most_at_once(told: list[tuple[str, str, int]]) -> Counter[str]:
    now, most = Counter[str](), Counter[str]()
    for what, who, _ in told:
        now[who] += 1 if what == "begin" else -1
        most[who] = max(most[who], now[who])
    return most


# How many at a time --------------------------------------------------------------------------


def test_runs_of_a_key_are_no_more_at_a_time_and_every_key_gets_its_turn() -> None:
    agent, told = jobs(Flow(key=by_who, concurrency=2))
    with Simulation(agent) as sim:
        for n in range(6):
            for who in "abc":
                sim.start({"who": who, "n": n})
        sim.settle()
        assert {run.status for run in sim.runs()} == {"completed"}
    assert most_at_once(told) == {"a": 2, "b": 2, "c": 2}
    assert [begun(told, who) for who in "abc"] == [list(range(6))] * 3


@pytest.mark.parametrize(
    "told_of_the_first",
    [
        {"actions": [jsonable(Action(run_id="r", step="work", call="pay#0", digest=b""))]},
        {"messages": [b'"hello"']},
    ],
    ids=["actions", "thread"],
)
def test_a_copy_of_a_run_waits_for_its_turn_as_any_start_does(
    told_of_the_first: dict[str, Any],
) -> None:
    agent, told = jobs(Flow(key=by_who, concurrency=1))
    with Simulation(agent) as sim:
        sim.start({"who": "a", "n": 0}, run_id="r0")
        for n in (1, 2):
            payload = b'{"who": "a", "n": %d}' % n
            name = agent.name_run(f"r{n}", payload)
            sim._send(name, "start", agent="jobs", payload=payload, **told_of_the_first)
        sim.settle()
    assert most_at_once(told) == {"a": 1}
    assert len(told) == 6


def test_a_run_that_waits_counts_and_one_that_needs_a_person_does_not() -> None:
    agent = Agent("a", flow=Flow(concurrency=1))

    @agent.step
    async def ask(ctx: Context, what: str) -> Wait:
        if what == "bad":
            raise RuntimeError
        return Wait("go", then=told)

    @agent.step
    async def told(ctx: Context, signal: Any) -> Done:
        return Done()

    with Simulation(agent) as sim:
        sim.start("first", run_id="first")
        sim.start("second", run_id="second")
        assert sim.look("all=second").status == "pending"
        sim.signal("go", run_id="all=first")
        sim.settle()
        assert sim.look("all=second").status == "waiting"


def test_without_a_key_all_runs_of_the_agent_share_a_partition() -> None:
    agent, _ = jobs(Flow(concurrency=1))
    names = {agent.name_run(f"r{n}", b'{"who": "a", "n": 1}') for n in range(50)}
    assert len({partition_of(name, 6) for name in names}) == 1


@pytest.mark.parametrize(
    "flow",
    [
        Flow(key=by_who, concurrency=1),
        Flow(key=by_who, throttle=Rate(1, "5s")),
        Flow(key=by_who, debounce="30s"),
        Flow(key=by_who, singleton="cancel"),
    ],
    ids=["concurrency", "throttle", "debounce", "singleton"],
)
def test_what_waits_and_what_is_under_way_survive_a_crash_at_every_commit(flow: Flow) -> None:
    agent, told = jobs(flow, seconds=1.0)

    def life(sim: Simulation) -> None:
        told.clear()
        for n in range(4):
            sim.start({"who": "a", "n": n})
        sim.settle()
        assert {run.status for run in sim.runs()} <= {"completed", "cancelled"}
        assert sim.look("a=run-4").status == "completed"
        if flow.concurrency:
            assert [run.status for run in sim.runs()] == ["completed"] * 4

    check_crashes(agent, scenario=life)


# How often -----------------------------------------------------------------------------------


def times_of(flow: Flow, count: int, **declared: Any) -> list[float]:
    """When runs of one key that are asked for at once began, in seconds."""
    agent, began = Agent("a", flow=flow), list[float]()

    @agent.step(**declared)
    async def work(ctx: Context, n: int) -> Done:
        began.append(asyncio.get_running_loop().time())
        return Done()

    with Simulation(agent) as sim:
        for n in range(count):
            sim.start(n)
        sim.settle()
    return [round(at - began[0], 1) for at in began]


def test_no_more_runs_begin_within_a_time() -> None:
    assert times_of(Flow(throttle=Rate(2, "10s")), 6) == [0, 0, 10, 10, 20, 20]


def test_a_step_is_run_no_more_often() -> None:
    assert times_of(Flow(), 5, rate=Rate(2, "10s")) == [0, 0, 10, 10, 20]


def test_a_takeover_does_not_forget_how_often_runs_began() -> None:
    agent, told = jobs(Flow(throttle=Rate(1, "60s")), seconds=0.1)
    with Simulation(agent) as sim:
        sim.start({"who": "a", "n": 0})
        sim.settle()
        sim.start({"who": "a", "n": 1})
        sim.crash()
        sim.advance("50s")
        assert begun(told) == [0]
        sim.advance("20s")
        assert begun(told) == [0, 1]


def test_a_takeover_keeps_the_order_of_those_that_were_asked_for_at_once() -> None:
    agent, told = jobs(Flow(key=by_who, concurrency=1), seconds=1.0)
    with Simulation(agent) as sim:
        sim.start({"who": "a", "n": 0}, run_id="r0")
        for n in range(1, 12):  # r10 is called so that it would go before r2
            payload = json.dumps({"who": "a", "n": n}).encode()
            sim._send(agent.name_run(f"r{n}", payload), "start", agent="jobs", payload=payload)
        sim._now()
        sim.crash()
        sim.settle()
    assert [n for what, _, n in told if what == "end"] == list(range(12))


def test_a_takeover_does_not_forget_how_often_a_step_was_run() -> None:
    agent, began = Agent("a", flow=Flow()), list[float]()

    @agent.step(rate=Rate(1, "60s"))
    async def work(ctx: Context, n: int) -> Done:
        began.append(asyncio.get_running_loop().time())
        return Done()

    with Simulation(agent) as sim:
        sim.start(0)
        sim.settle()
        sim.crash()
        sim.start(1)
        sim.advance("50s")
        assert len(began) == 1
        sim.advance("20s")
        assert len(began) == 2


# Which ---------------------------------------------------------------------------------------


def test_the_more_important_one_goes_first() -> None:
    agent, told = jobs(Flow(concurrency=1, priority=lambda job: job["n"] % 3))
    with Simulation(agent) as sim:
        for n in range(6):
            sim.start({"who": "a", "n": n})
        sim.settle()
    assert begun(told) == [0, 2, 5, 1, 4, 3]


def test_of_many_in_a_short_time_the_last_one_is_run() -> None:
    agent, told = jobs(Flow(key=by_who, debounce="30s"))
    with Simulation(agent) as sim:
        for n in range(3):
            sim.start({"who": "a", "n": n})
            sim.advance("20s")
        sim.start({"who": "b", "n": 7})
        assert begun(told) == []
        sim.settle()
        assert [run.status for run in sim.runs()] == [
            "cancelled",
            "cancelled",
            "completed",
            "completed",
        ]
    assert (begun(told), begun(told, "b")) == ([2], [7])


def test_of_a_single_run_the_second_is_skipped_and_can_be_asked_for_again() -> None:
    agent, told = jobs(Flow(singleton="skip"))
    with Simulation(agent) as sim:
        sim.start({"who": "a", "n": 0}, run_id="first")
        sim.start({"who": "a", "n": 1}, run_id="second")
        history: list[Any] = sim._view.history("jobs", "all=second")
        assert [event["type"] for event in history] == ["start.ignored"]
        assert history[0]["failure"]["code"] == "skipped"
        sim.settle()
        assert begun(told) == [0]
        sim.start({"who": "a", "n": 1}, run_id="second")
        sim.settle()
    assert begun(told) == [0, 1]


def test_of_a_single_run_the_second_takes_the_place_of_the_first() -> None:
    agent, told = jobs(Flow(singleton="cancel"))
    compensated: list[str] = []

    @agent.on_cancel
    async def undo(ctx: Context, ended: Ended) -> Done:
        compensated.append(ended.step)
        return Done()

    with Simulation(agent) as sim:
        for n in range(3):
            sim.start({"who": "a", "n": n}, run_id=str(n))
        sim.settle()
        assert [sim.look(f"all={n}").status for n in range(3)] == [
            "cancelled",
            "cancelled",
            "completed",
        ]
    assert ("end", "a", 2) in told
    assert compensated == ["work"]  # one that has not begun has nothing to be undone


# Names ---------------------------------------------------------------------------------------


def name(flow: Flow, value: str, run_id: str = "r", *, given: bool = False) -> str:
    agent, _ = jobs(flow)
    return agent.name_run(run_id, b'{"who": %s, "n": 1}' % value.encode(), given=given)


def test_a_key_stands_in_front_of_the_name_once() -> None:
    flow = Flow(key=by_who)
    assert name(flow, '"a"') == name(flow, '"a"', "a=r") == "a=r"
    strange = name(flow, '"what ever"')
    assert strange.startswith("k")
    assert strange.endswith("=r")
    assert strange != name(flow, '"whatever"')


def test_an_id_makes_two_starts_one_run_unless_a_name_is_given() -> None:
    flow = Flow(id=by_who)
    assert name(flow, '"order-7"', "delivery-1") == name(flow, '"order-7"', "delivery-2")
    assert name(flow, '"order-7"', "mine", given=True) == "all=mine"


def test_a_key_that_fails_is_told() -> None:
    agent = Agent("a", flow=Flow(key=lambda job: job["nope"]))

    @agent.step
    async def work(ctx: Context, job: Job) -> Done:
        return Done()

    with pytest.raises(ValueError, match="flow of agent 'a': KeyError: 'nope'"):
        agent.name_run("r", b'{"who": "a", "n": 1}')


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"concurrency": 0}, "1 or more"),
        ({"singleton": "maybe"}, "skip"),
        ({"singleton": "skip", "concurrency": 2}, "cannot be combined"),
        ({"priority": by_who}, "needs concurrency or throttle"),
        ({"debounce": "soon"}, "duration"),
    ],
)
def test_a_flow_that_makes_no_sense_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Flow(**fields)


def test_a_rate_needs_a_flow() -> None:
    agent = Agent("a")
    with pytest.raises(ConfigError, match="flow=Flow"):
        agent.step(rate=Rate(1, "1s"))(by_who)
    with pytest.raises(ConfigError, match="1 or more"):
        Rate(0, "1s")


# Lanes ---------------------------------------------------------------------------------------


def test_lanes_in_which_nothing_moves_are_forgotten() -> None:
    lanes = Lanes(Flow(throttle=Rate(1, "1s")))
    now_ms = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    for n in range(1_000):
        lanes.begin(f"k{n}", f"k{n}=r", now_ms)
        lanes.leave(f"k{n}", f"k{n}=r")
    lanes.tidy(now_ms + 999)
    assert len(lanes.names()) == 1_000
    lanes.tidy(now_ms + 1_000)
    assert lanes.names() == []
