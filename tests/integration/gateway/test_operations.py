"""What an operator does to runs: over the command line as typed, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cli.test_cli_end_to_end import Cli
from tests.integration.gateway.test_gateway_kafka import gateway
from tests.support.cluster import Cluster, cluster
from tests.support.eventually import until, until_sync
from tests.support.long_deadlines import PATIENT
from tests.support.operable_agent import ops

AGENT = str(Path(__file__).parents[2] / "support" / "operable_agent.py")


# The command line ---------------------------------------------------------------------------


#: commands to runs: they wait for an answer
_ANSWERED = {
    "pause",
    "resume",
    "cancel",
    "retry",
    "signal",
    "approve",
    "resolve",
    "rewind",
    "fork",
}


class Quick(Cli):
    """Only what runs on has a process of its own. (Commands in processes: test_embedded_cli.py.)"""

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        waits = args[:1] == ("runs",) and args[1] in _ANSWERED and "--wait" not in args
        return self.here(*args, *(("--wait", "90") if waits else ()))


@pytest.fixture
def cli(bootstrap: str, app: str, tmp_path: Path) -> Iterator[Cli]:
    env = {
        "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap,
        "SUREFOOT_APP": app,
        "SUREFOOT_PARTITIONS": "2",
    }
    cli = Quick(env, tmp_path)
    cli.ok("topics", "apply", AGENT)
    yield cli
    cli.close()


@pytest.fixture
def worked(cli: Cli) -> Cli:
    """With a worker that is ready."""
    cli.start("worker", AGENT).wait_for("worker_ready")
    return cli


def start(cli: Cli, run_id: str, **payload: Any) -> None:
    cli.ok("runs", "start", AGENT, "--run-id", run_id, "--payload", json.dumps(payload))


def shown(cli: Cli, run_id: str) -> dict[str, Any]:
    told = cli.here("runs", "show", "ops", run_id, "--json")
    return json.loads(told.stdout) if told.returncode == 0 else {"status": "unknown"}


def until_shown(cli: Cli, run_id: str, **fields: Any) -> dict[str, Any]:
    """Wait until the run has these fields."""

    def there() -> dict[str, Any] | None:
        found = shown(cli, run_id)
        return found if fields.items() <= found.items() else None

    found = until_sync(there, what=f"{run_id} to be {fields}")
    assert found is not None
    return found


def told(done: subprocess.CompletedProcess[str], status: int = 0) -> Any:
    """The JSON that a command has printed."""
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def test_a_hanging_run_is_paused_resumed_and_cancelled_by_hand(worked: Cli) -> None:
    start(worked, "r", do="hang")
    until_shown(worked, "r", step="hang", status="running")
    paused = told(worked.run("runs", "pause", "ops", "r", "--by", "ann", "--json"))
    assert (paused["accepted"], paused["event"], paused["run"]["status"]) == (
        True,
        "run.paused",
        "paused",
    )
    page = worked.ok("runs", "show", "ops", "r")
    assert "Paused since" in page
    assert "surefoot runs resume ops r" in page
    assert "run.resumed: r is running at step 'hang'" in worked.ok("runs", "resume", "ops", "r")
    cancelled = told(worked.run("runs", "cancel", "ops", "r", "--id", "c1", "--json"))
    assert cancelled["run"]["status"] == "cancelled"
    again = told(worked.run("runs", "cancel", "ops", "r", "--id", "c1", "--json"))
    assert (again["accepted"], again["event"]) == (True, "command.repeated")
    late = worked.run("runs", "pause", "ops", "r")
    assert late.returncode == 1
    assert "too_late" in late.stderr
    assert "Cancelled" in worked.ok("runs", "show", "ops", "r")


def test_a_signal_is_kept_until_its_wait_and_show_says_what_is_waited_for(worked: Cli) -> None:
    early = told(worked.run("runs", "signal", "ops", "early", "go", '{"n": 1}', "--json"))
    assert (early["accepted"], early["run"]) == (True, None)
    start(worked, "early", do="wait")
    start(worked, "r", do="wait", timeout="1h")
    until_shown(worked, "early", status="completed", result={"n": 1})
    until_shown(worked, "r", status="waiting")
    page = worked.ok("runs", "show", "ops", "r")
    assert "Waits for signal 'go' since" in page
    assert "it times out: the run fails" in page
    assert "do          surefoot runs signal ops r go PAYLOAD" in page
    worked.ok("runs", "signal", "ops", "r", "go", "[1, 2]", "--id", "s1")
    worked.run("runs", "signal", "ops", "r", "go", "[1, 2]", "--id", "s1")
    until_shown(worked, "r", status="completed", result=[1, 2])


def test_a_question_is_answered_by_whoever_may_and_the_first_answer_holds(worked: Cli) -> None:
    start(worked, "r", do="ask", by=["ann"])
    until_shown(worked, "r", status="waiting")
    refused = worked.run("runs", "approve", "ops", "r", "--yes", "--by", "bob")
    assert refused.returncode == 1
    assert "not_allowed: only ann may approve" in refused.stderr
    question = shown(worked, "r")["wait"]["question"]
    yes = worked.run("runs", "approve", "ops", "r", "--yes", "--by", "ann", "--note", "fine")
    assert yes.returncode == 0, yes.stderr
    assert f"question {question}" in yes.stderr
    result = {"approved": True, "by": "ann", "note": "fine", "pay": 7}
    until_shown(worked, "r", status="completed", result=result)
    no = worked.run("runs", "approve", "ops", "r", "--no", "--by", "ann", "--question", question)
    assert no.returncode == 1
    nothing = worked.run("runs", "approve", "ops", "r", "--no")
    assert nothing.returncode == 1
    assert "no open question" in nothing.stderr


def test_a_failed_run_is_tried_again_and_a_call_in_doubt_is_resolved(
    worked: Cli, tmp_path: Path
) -> None:
    flag, book = tmp_path / "flag", tmp_path / "book"
    start(worked, "f", do="fail", flag=str(flag))
    start(worked, "d", do="doubt", flag=str(book))
    until_shown(worked, "f", status="failed")
    page = worked.ok("runs", "show", "ops", "f")
    assert "the flag is not there" in page
    assert "surefoot runs retry ops f" in page
    flag.touch()
    assert told(worked.run("runs", "retry", "ops", "f", "--json"))["event"] == "run.retried"
    until_shown(worked, "f", status="completed", result="mended")
    until_shown(worked, "d", status="attention")
    assert "surefoot runs resolve ops d --did-not" in worked.ok("runs", "show", "ops", "d")
    wrong = worked.run("runs", "resolve", "ops", "d", "--did-not", "--give-up")
    assert wrong.returncode == 2
    answer = told(worked.run("runs", "resolve", "ops", "d", "--happened", '"receipt 1"', "--json"))
    assert answer["event"] == "run.resolved"
    until_shown(worked, "d", status="completed", result="receipt 1")
    assert book.read_text() == "paid\n"


def test_what_was_paid_is_not_paid_again_by_sending_back_or_branching(
    worked: Cli, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    start(worked, "d", do="doubt", flag=str(book))
    until_shown(worked, "d", status="attention")
    worked.ok("runs", "resolve", "ops", "d", "--happened", '"receipt 1"')
    until_shown(worked, "d", status="completed", result="receipt 1")
    back = worked.ok("runs", "rewind", "ops", "d", "--to", "1")
    assert "of step 'charge': does not run again" in back
    until_shown(worked, "d", status="completed", epoch=1, result="receipt 1")
    copy = worked.run("runs", "fork", "ops", "d", "--at", "1", "--run-id", "copy", "--json")
    (kept,) = told(copy)["kept"]
    assert kept.endswith("of step 'charge'")
    shown = until_shown(worked, "copy", status="attention")
    assert "done or begun by run d" in shown["failure"]["message"]
    assert book.read_text() == "paid\n"
    name = kept.partition("#")[0]
    worked.ok("runs", "rewind", "ops", "d", "--to", "1", "--repeat", name)
    until_shown(worked, "d", status="completed", epoch=2, result="receipt 2")
    assert book.read_text() == "paid\npaid\n"


def test_a_run_is_sent_back_and_branched_from_its_versions(worked: Cli) -> None:
    start(worked, "r", do="count", to=3)
    lines = ["line 1", "line 2", "line 3"]
    until_shown(worked, "r", status="completed", result=lines)
    versions = [
        json.loads(line)
        for line in worked.ok("runs", "versions", "ops", "r", "--json").splitlines()
    ]
    assert [(v["seq"], v["step"], v["epoch"]) for v in versions] == [
        (0, "begin", 0),
        (1, "count", 0),
        (2, "count", 0),
        (3, "count", 0),
    ]
    back = told(worked.run("runs", "rewind", "ops", "r", "--to", "2", "--id", "b1", "--json"))
    assert (back["event"], back["run"]["epoch"]) == ("run.rewound", 1)
    done = until_shown(worked, "r", status="completed", epoch=1)
    assert (done["result"], done["memory"]["thread"], done["seq"]) == (lines, 3, 4)
    again = told(worked.run("runs", "rewind", "ops", "r", "--to", "2", "--id", "b1", "--json"))
    assert (again["event"], again["run"]["epoch"]) == ("command.repeated", 1)
    forked = worked.run("runs", "fork", "ops", "r", "--at", "3", "--run-id", "new", "--json")
    assert told(forked)["event"] == "run.started"
    assert until_shown(worked, "new", status="completed")["result"] == lines
    assert "r" in worked.ok("runs", "fork", "ops", "r", "--at", "3", "--run-id", "new")
    gone = worked.run("runs", "rewind", "ops", "r", "--to", "9")
    assert (gone.returncode, "no_such_version" in gone.stderr) == (1, True)
    assert worked.run("runs", "versions", "ops", "nobody").returncode == 1
    counts = json.loads(worked.ok("runs", "count", "ops", "--json"))
    assert counts == {"runs": 2, "statuses": {"completed": 2}, "versions": {"1": {"completed": 2}}}
    assert "completed" in worked.ok("runs", "count", AGENT)


def test_without_a_worker_a_command_is_on_its_way_and_can_be_repeated(cli: Cli) -> None:
    start(cli, "r", do="wait")
    start(cli, "z", do="sleep")
    silent = cli.run("runs", "signal", "ops", "r", "go", "7", "--id", "s1", "--wait", "1")
    assert (silent.returncode, silent.stdout) == (3, "")
    assert "--id s1" in silent.stderr
    worker = cli.start("worker", AGENT)
    worker.wait_for("worker_ready")
    until_shown(cli, "r", status="completed", result=7)
    again = cli.run("runs", "signal", "ops", "r", "go", "7", "--id", "s1", "--json")
    assert told(again)["event"] == "command.repeated"
    until_shown(cli, "z", status="waiting")
    assert worker.stop() == 0
    page = cli.ok("runs", "show", "ops", "z")
    assert "Sleeps until" in page
    # At once when it has said that it leaves, else when its session is over.
    nobody = "No worker of agent ops runs: its consumer group is empty"
    until_sync(lambda: nobody in cli.ok("runs", "show", "ops", "z"), what="the group to be empty")
    page = cli.ok("runs", "show", "ops", "z")
    assert "surefoot worker AGENT.py" in page


# HTTP ---------------------------------------------------------------------------------------


@pytest.fixture
async def kafka(bootstrap: str, app: str) -> AsyncIterator[Cluster]:
    async with cluster(bootstrap, app, ops, gateway_port=0, **PATIENT) as made:
        yield made


@pytest.fixture
async def http(kafka: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway(kafka.settings, ops, monkeypatch) as client:
        yield client


async def begin(http: httpx.AsyncClient, run_id: str, **payload: Any) -> None:
    answer = await http.post("/runs/ops", json={"run_id": run_id, "payload": payload})
    assert answer.status_code == 202


async def status(http: httpx.AsyncClient, run_id: str) -> str:
    answer = await http.get(f"/runs/ops/{run_id}")
    return str(answer.json().get("status"))


async def until_status(http: httpx.AsyncClient, run_id: str, wanted: str) -> None:
    async def reached() -> bool:
        return await status(http, run_id) == wanted

    await until(reached, what=f"{run_id} to be {wanted}")


async def test_every_operation_over_http_is_answered_with_the_resulting_state(
    kafka: Cluster, http: httpx.AsyncClient
) -> None:
    await kafka.work(ops)
    await begin(http, "r", do="ask")
    await until_status(http, "r", "waiting")
    shown = (await http.get("/runs/ops/r")).json()
    question = shown["wait"]["question"]
    told = []
    for number, (verb, body) in enumerate(
        [
            ("pause", {}),
            ("pause", {}),
            ("approve", {"question": question, "approved": True}),
            ("resume", {}),
            ("retry", {}),
            ("resolve", {"choice": "did_not"}),
            ("approve", {"question": "0" * 32, "approved": True}),
            ("signal", {"name": "extra"}),
            ("approve", {"question": question, "approved": True}),
        ]
    ):
        answer = await http.post(f"/runs/ops/r/{verb}", json={"id": f"c{number}", **body})
        said = answer.json()
        assert (said["id"], said["run"]["run_id"]) == (f"c{number}", "r")
        told.append((answer.status_code, said.get("code") or said["event"]))
    assert told == [
        (200, "run.paused"),
        (200, "command.repeated"),
        (409, "not_possible"),
        (200, "run.resumed"),
        (409, "not_possible"),
        (409, "not_possible"),
        (404, "unknown_question"),
        (200, "signal.received"),
        (200, "approval.decided"),
    ]
    await until_status(http, "r", "completed")
    answer = await http.post("/runs/ops/nobody/cancel", json={})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_run")
    answer = await http.post("/runs/ops/r/cancel", json={})
    assert (answer.status_code, answer.json()["code"]) == (409, "too_late")
    counted = (await http.get("/agents/ops")).json()
    assert (counted["statuses"], counted["versions"]) == ({"completed": 1}, {"1": {"completed": 1}})
    await kafka.check_history(ops)


async def test_cancelling_reaches_a_running_step_and_the_children_of_a_run(
    kafka: Cluster, http: httpx.AsyncClient
) -> None:
    """All of them would hang for ever."""
    await kafka.work(ops)
    await begin(http, "r", do="hang")
    await begin(http, "p", do="fork", children=3)
    await until_status(http, "p", "waiting")
    children = [f"p~1~{branch}" for branch in range(3)]
    for run_id in ("r", *children):
        await until_status(http, run_id, "running")
    why = (await http.get("/runs/ops/p/why")).json()
    assert "Waits for its 3 children, runs p~1~0 to p~1~2 of ops" in why["because"][0]
    assert why["backlog"]["workers"] == 1
    for run_id in ("r", "p"):
        answer = await http.post(f"/runs/ops/{run_id}/cancel", json={})
        assert (answer.status_code, answer.json()["run"]["status"]) == (200, "cancelled")
    await asyncio.gather(*(until_status(http, child, "cancelled") for child in children))


async def test_the_same_command_sent_many_times_at_once_is_done_once(
    kafka: Cluster, http: httpx.AsyncClient
) -> None:
    await kafka.work(ops)
    await begin(http, "r", do="wait")
    await until_status(http, "r", "waiting")
    body = {"name": "go", "payload": "x"}
    answers = await asyncio.gather(
        *(
            http.post("/runs/ops/r/signal", json=body, headers={"Idempotency-Key": "s1"})
            for _ in range(20)
        )
    )
    assert {answer.json()["id"] for answer in answers} == {"s1"}
    assert {answer.status_code for answer in answers} == {200}
    await until_status(http, "r", "completed")
    received = [e for e in await kafka.events(ops, "r") if e["type"] == "signal.received"]
    assert len(received) == 1


async def test_cancel_and_completion_have_one_winner_and_the_answer_names_it(
    kafka: Cluster, http: httpx.AsyncClient
) -> None:
    await kafka.work(ops)
    runs = [f"r{number}" for number in range(30)]
    for run_id in runs:
        await begin(http, run_id, do="wait")
    for run_id in runs:
        await until_status(http, run_id, "waiting")

    async def race(run_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        verbs = [
            http.post(f"/runs/ops/{run_id}/signal", json={"name": "go"}),
            http.post(f"/runs/ops/{run_id}/cancel", json={}),
            http.post(f"/runs/ops/{run_id}/cancel", json={}),
        ]
        _, one, other = await asyncio.gather(*verbs)
        return one.json(), other.json()

    winners = {}
    for run_id, replies in zip(runs, await asyncio.gather(*map(race, runs)), strict=True):
        won = {reply["accepted"] for reply in replies}
        assert len(won) == 1, replies
        winners[run_id] = "cancelled" if won == {True} else "completed"
        await until_status(http, run_id, winners[run_id])
    ends = [
        (event["run_id"], event["type"])
        for event in await kafka.events(ops)
        if event["type"] in ("run.completed", "run.cancelled")
    ]
    assert sorted(ends) == sorted((run_id, f"run.{won}") for run_id, won in winners.items())


async def test_without_an_owner_a_202_says_so_and_the_command_is_obeyed_later(
    kafka: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(kafka.settings.within(answer_s=1.0), ops, monkeypatch) as http:

        async def cancelled() -> dict[str, Any] | None:
            answer = await http.post("/runs/ops/r/cancel", json={"id": "c1"})
            assert answer.status_code in (200, 202), answer.text
            said: dict[str, Any] = answer.json()
            assert (said["id"], said["accepted"] is None) == ("c1", answer.status_code == 202)
            return said if said["accepted"] else None

        await begin(http, "r", do="hang")
        assert await cancelled() is None
        await kafka.work(ops)
        await until_status(http, "r", "cancelled")
        said = await until(cancelled, what="the command to be answered")
        assert said["event"] == "command.repeated"


def test_a_run_is_watched_from_its_start_to_its_end(worked: Cli) -> None:
    payload = json.dumps({"do": "count", "to": 3})
    done = worked.run("runs", "start", AGENT, "--run-id", "c", "--payload", payload, "--watch")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert shown[0] == "c"
    assert "run.started" in shown[1]
    assert sum("step.completed" in line for line in shown) == 3
    assert shown[-1].startswith("c is completed")
    told = [
        json.loads(line)
        for line in worked.ok("runs", "watch", "ops", "c", "--json").split("\n")[:-1]
    ]
    assert [event["type"] for event in told][-1] == "run.completed"
    start(worked, "h", do="hang")
    until_shown(worked, "h", step="hang", status="running")
    worked.ok("runs", "cancel", "ops", "h")
    assert worked.run("runs", "watch", "ops", "h").returncode == 1
