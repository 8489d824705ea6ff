"""What an operator looks at besides runs, over HTTP."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from surefoot import Agent, Context, Done, Next, Rate
from surefoot.schemas.payload import dump
from surefoot.state.declare.flow_control import Flow
from surefoot.state.machine.model import Failure, Run, State
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.dead_letters import dead_letter, what_to_do
from surefoot.state.reading.deliveries import Delivery
from surefoot.state.reading.lag import AgentStanding, Member, PartitionStanding
from surefoot.state.records.encoding import Wire, dead_headers
from surefoot.state.scheduling.book import BOOK, Book, Tick
from tests.unit.producers.test_gateway import RUN, FakeClock, Gateway, run, triage_agent

HOSTILE = '<img src=x onerror=alert(1)>"\x1b[2J'


def nightly_agent() -> Agent:
    agent = Agent("nightly", version=3, flow=Flow(concurrency=2, throttle=Rate(5, "1m")))

    @agent.step
    async def count(ctx: Context, day: str) -> Next:
        return Next(report, day)

    @agent.step(timeout="2m")
    async def report(ctx: Context, day: str) -> Done:
        return Done(day)

    @agent.schedule("0 2 * * *", tz="Europe/Berlin", name="at-two")
    def at_two(tick: Tick) -> str:
        return tick.at.date().isoformat()

    return agent


def schedule_run(agent: Agent, **changes: Any) -> Run:
    """The run of its schedule, as of 2023-11-14T22:13:20Z."""
    now_ms = FakeClock().now_ms()
    book = Book(name="at-two", spec=agent.schedules["at-two"].spec, until_ms=now_ms)
    return Run(
        run_id="at-two",
        agent="nightly.schedules",
        version=1,
        status="waiting",
        seq=1,
        step="tick",
        attempt=0,
        payload=b"",
        created_ms=0,
        updated_ms=0,
        input_digest=b"",
        carry=dump(BOOK, replace(book, **changes)),
    )


@pytest.fixture
def desk() -> Gateway:
    agent = nightly_agent()
    gateway = Gateway(triage_agent(), agent)
    gateway.overview.books["nightly"] = {"at-two": State(schedule_run(agent))}
    return gateway


async def get(gateway: Gateway, path: str) -> Any:
    answer = await gateway.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_agent_tells_its_steps_where_they_lead_and_its_limits(desk: Gateway) -> None:
    both = (await get(desk, "/agents"))["agents"]
    assert [(each["name"], each["version"]) for each in both] == [("triage", 1), ("nightly", 3)]
    told = await get(desk, "/agents/nightly")
    assert told["declared"] == both[1]["declared"]
    assert told["versions"] == {"1": {"running": 2}, "2": {"failed": 1, "running": 3}}
    declared = told["declared"]
    assert (declared["version"], declared["start"]) == (3, "count")
    assert [(each["name"], each["takes"], each["timeout_s"]) for each in declared["steps"]] == [
        ("count", "str", None),
        ("report", "str", 120.0),
    ]
    assert declared["flow"]["concurrency"] == 2
    assert declared["flow"]["throttle"] == {"limit": 5, "per_s": 60.0}
    assert declared["edges"] == [
        {"from": "count", "kind": "next", "to": "report", "agent": False},
        {"from": "report", "kind": "done", "to": None, "agent": False},
    ]
    [trigger] = declared["triggers"]
    assert (trigger["kind"], trigger["source"], trigger["tz"]) == (
        "schedule",
        "at-two",
        "Europe/Berlin",
    )
    assert (await desk.http.get("/agents/nobody")).status_code == 404


async def test_deliveries_are_told_with_why_and_without_bodies(desk: Gateway) -> None:
    refused = Delivery(
        id="2",
        source="github",
        at_ms=2,
        outcome="refused",
        status=401,
        reason=HOSTILE,
        body=b"secret",
        body_bytes=6,
        headers=(("x", "secret"),),
    )
    started = Delivery(
        id="1",
        source="github",
        at_ms=1,
        outcome="started",
        status=202,
        verified=True,
        runs=(("triage", RUN),),
    )
    desk.overview.delivered = [refused, started]
    answer = await desk.http.get("/deliveries")
    assert "secret" not in answer.text
    told = answer.json()["deliveries"]
    assert [each["reason"] for each in told] == [HOSTILE, None]
    assert told[1]["runs"] == [{"agent": "triage", "run_id": RUN}]
    assert (await get(desk, "/deliveries?outcome=started"))["deliveries"] == [told[1]]
    assert (await get(desk, "/deliveries?source=stripe"))["deliveries"] == []
    assert (await get(desk, "/deliveries?limit=1"))["deliveries"] == [told[0]]
    assert (await desk.http.get("/deliveries?outcome=bad")).status_code == 422


async def test_schedules_are_told_with_their_next_five_ticks(desk: Gateway) -> None:
    [told] = (await get(desk, "/schedules"))["schedules"]
    assert (told["agent"], told["schedule"], told["state"]) == ("nightly", "at-two", "active")
    assert told["coming"] == [f"2023-11-{day}T02:00:00+01:00" for day in range(15, 20)]
    assert (await get(desk, "/schedules?agent=triage"))["schedules"] == []
    paused = schedule_run(nightly_agent(), paused=True)
    desk.overview.books["nightly"] = {"at-two": State(paused)}
    [told] = (await get(desk, "/schedules"))["schedules"]
    assert (told["paused"], told["coming"]) == (True, [])
    desk.overview.books.clear()
    [told] = (await get(desk, "/schedules"))["schedules"]
    assert told["state"].startswith("not begun")


async def tell(gateway: Gateway, path: str, body: Any = None, **headers: str) -> Any:
    sent = {"Content-Type": "application/json", **headers}
    return await gateway.http.post(
        path, content=json.dumps({} if body is None else body), headers=sent
    )


async def test_a_schedule_is_paused_and_triggered_by_a_command_to_its_run(desk: Gateway) -> None:
    paused = await tell(desk, "/schedules/nightly/at-two/pause", {"by": "ann"})
    assert (paused.status_code, paused.json()["accepted"]) == (200, True)
    now = await tell(desk, "/schedules/nightly/at-two/trigger", **{"Idempotency-Key": "by-hand"})
    assert now.json()["run_id"] == "schedule~at-two~now~by-hand"
    asked = [
        (agent, run_id, kind, fields["payload"], fields["by"])
        for agent, run_id, kind, fields in desk.commands.sent
    ]
    assert asked == [
        ("nightly.schedules", "at-two", "signal", b'{"do":"pause"}', "ann"),
        ("nightly.schedules", "at-two", "signal", b'{"do":"trigger","id":"by-hand"}', None),
    ]


async def test_a_schedule_that_has_failed_is_resumed_by_trying_again(desk: Gateway) -> None:
    failed = schedule_run(nightly_agent())._replace(
        status="failed", failure=Failure(code="x", message="y")
    )
    desk.overview.books["nightly"] = {"at-two": State(failed)}
    await tell(desk, "/schedules/nightly/at-two/resume")
    assert [kind for _, _, kind, _ in desk.commands.sent] == ["retry"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/schedules/nightly/at-two/destroy", 404),
        ("/schedules/nightly/at-three/pause", 404),
        ("/schedules/nobody/at-two/pause", 404),
    ],
)
async def test_what_there_is_not_is_refused_and_nothing_is_sent(
    desk: Gateway, path: str, status: int
) -> None:
    assert (await tell(desk, path)).status_code == status
    assert desk.commands.sent == []


async def test_a_page_of_somebody_else_cannot_steer_a_schedule(desk: Gateway) -> None:
    plain = await desk.http.post(
        "/schedules/nightly/at-two/pause", content="{}", headers={"Content-Type": "text/plain"}
    )
    assert plain.status_code == 415
    foreign = await tell(desk, "/schedules/nightly/at-two/pause", Origin="http://evil.example")
    assert foreign.status_code == 403
    assert desk.commands.sent == []


async def test_dead_letters_are_paged_newest_first_with_what_to_do(desk: Gateway) -> None:
    out_of_attempts = ConsumerRecord(
        "app.dead",
        0,
        9,
        5,
        b"r",
        b"x",
        (("sf-src", b"timer"), *dead_headers("step_failed", HOSTILE, 5, RUN)),
    )
    wire = Wire("app", AgentTopics("app", "triage"), 2)
    bad = ConsumerRecord("app.triage.commands", 1, 44, 3, b"k", b"\xff", (("odd", None),))  # type: ignore[arg-type]
    out = wire.dead_input(bad, Failure(code="undecodable", message="no"), ())
    unusable = ConsumerRecord("app.dead", 0, 4, 5, out.key, out.value, out.headers)
    desk.overview.letters = [dead_letter(out_of_attempts), dead_letter(unusable)]
    desk.reader.runs[RUN] = run(status="failed")
    first = await get(desk, "/dead-letters?limit=1")
    [letter] = first["dead_letters"]
    assert (letter["agent"], letter["run_id"], letter["message"]) == ("triage", RUN, HOSTILE)
    assert letter["do"][1] == f"surefoot runs retry triage {RUN}"
    assert first["older"] == 9
    second = await get(desk, f"/dead-letters?limit=1&before={first['older']}")
    [letter] = second["dead_letters"]
    assert letter["source"] == {
        "topic": "app.triage.commands",
        "partition": 1,
        "offset": 44,
        "timestamp_ms": 3,
    }
    assert letter["do"][0] == "surefoot explain SF2003"
    assert second["older"] is None


@pytest.mark.parametrize(
    ("source", "agent"),
    [
        (b"app.triage.tasks/1/7", "triage"),
        (b"app.triage.big.tasks/1/7", "triage.big"),
        (b"timer", None),
        (b"app.triage.tasks", None),
        (b"\xff/", None),
    ],
)
def test_the_agent_of_a_dead_letter_is_that_whose_input_it_was(
    source: bytes, agent: str | None
) -> None:
    headers = (("sf-src", source), *dead_headers("step_failed", "", 5, "r"))
    assert dead_letter(ConsumerRecord("app.dead", 0, 9, 5, b"r", None, headers)).agent == agent


def test_a_run_id_that_a_shell_would_act_upon_is_in_no_command() -> None:
    headers = (("sf-dead-run", b"$(reboot)"), ("sf-dead-partition", b"\xc2\xb2"))
    letter = dead_letter(ConsumerRecord("app.dead", 0, 9, 5, None, None, headers))
    assert "reboot" not in json.dumps(what_to_do(letter))


async def test_topics_are_told_of_an_agent_with_its_pools_and_schedules(desk: Gateway) -> None:
    worker = Member(name="pod-0", host="10.0.0.7", partitions=frozenset({1}))
    place = PartitionStanding(
        topic="app.nightly.tasks",
        partition=1,
        start=0,
        end=12,
        stable=11,
        committed=9,
        lag=1,
        owner="pod-0",
    )
    desk.overview.standing = [
        AgentStanding(agent="nightly", group="app.nightly", members=(worker,), partitions=(place,)),
        AgentStanding(agent="nightly.schedules", group="app.nightly.schedules"),
        AgentStanding(agent="outbox", group="app.outbox"),
    ]
    every = (await get(desk, "/topics"))["agents"]
    assert [each["agent"] for each in every] == ["nightly", "nightly.schedules", "outbox"]
    some = (await get(desk, "/topics?agent=nightly"))["agents"]
    assert [each["agent"] for each in some] == ["nightly", "nightly.schedules"]
    assert (some[0]["lag"], some[0]["exact"]) == (1, True)
    assert some[0]["workers"] == [{"name": "pod-0", "host": "10.0.0.7", "partitions": [1]}]
    assert some[0]["topics"][0]["stable"] == 11
    assert (await desk.http.get("/topics?agent=nobody")).status_code == 404


@pytest.mark.parametrize("path", ["/deliveries", "/schedules", "/dead-letters", "/topics"])
async def test_a_log_that_is_away_is_503_and_says_nothing_of_it(desk: Gateway, path: str) -> None:
    desk.overview.away = True
    answer = await desk.http.get(path)
    assert answer.status_code == 503
    assert "secret-broker" not in answer.text
