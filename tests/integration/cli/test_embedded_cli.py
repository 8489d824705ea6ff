"""The embedded log through the real command line: one process, one file, no Kafka."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cli.test_cli_end_to_end import TRIAGE, Cli, Service
from tests.integration.gateway.test_operations import AGENT, shown, start, told
from tests.support.eventually import until_sync
from tests.support.free_ports import unused_port

#: for a command whose answer is looked at
PATIENT = ("--wait", "60", "--json")

CHAIN = """
from pathlib import Path

from surefoot import Agent, Context, Done, Next, Wait

chain = Agent("chain")


@chain.step
async def step(ctx: Context, n: int) -> Next | Wait:
    with Path("journal").open("a") as journal:
        journal.write(f"{ctx.run_id} {ctx.seq}\\n")
    if n < 8:
        return Next(step, n + 1)
    return Wait("go", then=last)


@chain.step
async def last(ctx: Context, said: str) -> Done:
    return Done(said)
"""


@pytest.fixture
def port() -> int:
    return unused_port()


@pytest.fixture
def cli(tmp_path: Path, port: int) -> Iterator[Cli]:
    env = {
        "SUREFOOT_LOG": "sqlite:///runs.db",
        "SUREFOOT_PARTITIONS": "2",
        "SUREFOOT_GATEWAY_PORT": str(port),
    }
    cli = Cli(env, tmp_path)
    yield cli
    cli.close()


def serve(cli: Cli, agent: str) -> Service:
    service = cli.start("serve", agent)
    service.wait_for("gateway_ready")
    return service


def until_shown(port: int, run_id: str, agent: str = "ops", **fields: Any) -> dict[str, Any]:
    """Wait until the gateway shows the run with these fields: it is asked more cheaply than a
    command is started, which shows the same."""
    url = f"http://127.0.0.1:{port}/runs/{agent}/{run_id}"

    def there() -> dict[str, Any] | None:
        answer = httpx.get(url, timeout=60)
        found: dict[str, Any] = answer.json() if answer.is_success else {}
        return found if fields.items() <= found.items() else None

    found = until_sync(there, what=f"{run_id} to be {fields}")
    assert found is not None
    return found


def test_runs_are_steered_from_another_terminal(cli: Cli, port: int) -> None:
    service = serve(cli, AGENT)
    start(cli, "w", do="wait")
    until_shown(port, "w", status="waiting")
    assert told(cli.run("runs", "signal", "ops", "w", "go", '"yes"', *PATIENT))["accepted"]
    assert until_shown(port, "w", status="completed")["result"] == "yes"
    start(cli, "a", do="ask")
    until_shown(port, "a", status="waiting")
    cli.ok("runs", "approve", "ops", "a", "--yes", "--by", "ann", "--wait", "60")
    until_shown(port, "a", status="completed")
    start(cli, "h", do="hang")
    until_shown(port, "h", step="hang", status="running")
    [seen] = json.loads(cli.ok("top", AGENT, "--json"))["agents"]
    assert seen["statuses"] == {"completed": 2, "running": 1}
    lines = [line.split() for line in cli.ok("topics", "lag", AGENT).splitlines()]
    assert sorted(line[:3] for line in lines[1:] if line[0] == "ops") == [
        ["ops", "0", "serve"],
        ["ops", "1", "serve"],
    ]
    assert told(cli.run("runs", "pause", "ops", "h", *PATIENT))["run"]["status"] == "paused"
    assert told(cli.run("runs", "cancel", "ops", "h", *PATIENT))["accepted"]
    start(cli, "c", do="count", to=3)
    until_shown(port, "c", status="completed")
    versions = [
        json.loads(line)
        for line in cli.ok("runs", "versions", "ops", "c", "--json").split("\n")[:-1]
    ]
    assert [version["seq"] for version in versions] == [0, 1, 2, 3]
    assert told(cli.run("runs", "rewind", "ops", "c", "--to", "2", *PATIENT))["accepted"]
    until_shown(port, "c", status="completed", epoch=1)
    assert "dry run" in cli.ok("replay", "ops", "--from", "2020-01-01T00:00:00Z", "--dry-run")
    listed = [json.loads(line) for line in cli.ok("runs", "list", "ops", "--json").split("\n")[:-1]]
    assert {run["run_id"] for run in listed} == {"w", "a", "h", "c"}
    told_of = httpx.get(f"http://127.0.0.1:{port}/runs/ops/c", timeout=60).json()
    assert told_of["status"] == "completed"
    assert service.stop() == 0


def lives(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


def test_killed_in_the_middle_it_goes_on_after_the_last_committed_step(
    cli: Cli, tmp_path: Path, port: int
) -> None:
    (tmp_path / "chain.py").write_text(CHAIN)
    journal = tmp_path / "journal"
    cli.ok("topics", "apply", "chain.py")
    run_ids = [f"r{n}" for n in range(3)]
    for run_id in run_ids:  # nobody runs agents yet
        cli.ok("runs", "start", "chain", "--run-id", run_id, "--payload", "0")
    for kill in range(3):
        service = serve(cli, "chain.py")
        until_sync(lambda: len(lives(journal)) > 6 * (kill + 1), what="some steps")  # noqa: B023
        service.kill()
    cli.run("runs", "signal", "chain", "r0", "go", '"early"', "--wait", "0.1")
    service = serve(cli, "chain.py")
    for run_id in run_ids:
        until_shown(port, run_id, "chain", status="waiting" if run_id != "r0" else "completed")
    service.kill()
    page = cli.ok("runs", "show", "chain", "r1")
    assert "No worker of agent chain" in page
    assert "surefoot serve AGENT.py" in page
    service = serve(cli, "chain.py")
    for run_id in run_ids[1:]:
        cli.ok("runs", "signal", "chain", run_id, "go", '"on"', "--wait", "60")
        assert until_shown(port, run_id, "chain", status="completed")["seq"] == 10
    begun = lives(journal)
    assert {f"{run_id} {seq}" for run_id in run_ids for seq in range(9)} == set(begun)
    # an attempt more for a step that was in work when it was killed, and never for another
    assert len(begun) <= 9 * len(run_ids) + 3 * len(run_ids)
    assert service.stop() == 0


def test_what_needs_several_processes_says_what_to_do_instead(cli: Cli) -> None:
    for command in (("worker", AGENT), ("relay",), ("gateway", AGENT)):
        done = cli.run(*command)
        assert done.returncode == 2
        assert "surefoot serve" in done.stderr
    service = serve(cli, AGENT)
    second = cli.run("serve", AGENT)
    assert second.returncode == 2
    assert f"process {service.process.pid} runs agents on runs.db already" in second.stderr
    assert service.stop() == 0
    assert shown(cli, "nobody")["status"] == "unknown"


def test_dev_is_one_process_and_goes_on_after_it_was_killed(cli: Cli, tmp_path: Path) -> None:
    port = unused_port()
    several = cli.run("dev", AGENT, "--port", str(port), "--processes", "2")
    assert several.returncode == 2
    assert "--processes 2 needs Kafka" in several.stderr
    dev = cli.start("dev", AGENT, "--port", str(port))
    until_sync(lambda: "Ctrl-C stops everything" in dev.said(), what="the welcome")
    assert "embedded log, one process; not Kafka" in dev.said()
    assert f"SUREFOOT_LOG=sqlite:///{tmp_path}/runs.db surefoot runs list ops" in dev.said()
    assert dev.children() == []
    start(cli, "r", do="wait")
    until_shown(port, "r", status="waiting")
    dev.kill()
    dev = cli.start("dev", AGENT, "--port", str(port))
    until_sync(lambda: "Ctrl-C stops everything" in dev.said(), what="the welcome")
    cli.ok("runs", "signal", "ops", "r", "go", '"on"', "--wait", "60")
    until_shown(port, "r", status="completed")
    until_sync(lambda: "run.completed" in dev.said(), what="the event")
    assert dev.stop(signal.SIGINT) == 0


def test_a_demo_on_a_file_that_is_killed_loses_and_doubles_nothing(cli: Cli) -> None:
    done = cli.run("demo", TRIAGE, "--deliveries", "15", "--kills", "2", "--seed", "3")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["runs"] == figures["completed"] == 15
    assert len(figures["recovery_first_step_s"]) == figures["worker_kills"] == 2
    assert figures["effects_received"] == figures["effects_expected"] > 0
    assert figures["broker"] == "embedded"


@pytest.mark.parametrize("log", ["sqlite:///runs.db", "kafka"])
def test_the_same_agent_and_commands_whatever_the_one_setting_says(
    cli: Cli, bootstrap: str, app: str, port: int, log: str
) -> None:
    """Everything else is set alike, the broker's address too."""
    cli._env |= {
        "SUREFOOT_LOG": log,
        "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap,
        "SUREFOOT_APP": app,
    }
    service = serve(cli, AGENT)
    start(cli, "r", do="wait")
    until_shown(port, "r", status="waiting")
    assert told(cli.run("runs", "signal", "ops", "r", "go", '"yes"', *PATIENT))["accepted"]
    assert until_shown(port, "r", status="completed")["result"] == "yes"

    def told_from_beginning_to_end() -> bool:
        seen = httpx.get(f"http://127.0.0.1:{port}/runs/ops/r/events", timeout=60).text
        return "run.started" in seen and "run.completed" in seen

    until_sync(told_from_beginning_to_end, what="the events of the run")
    assert service.stop() == 0


def test_a_log_that_is_none_is_told_with_what_to_write(cli: Cli) -> None:
    cli._env["SUREFOOT_LOG"] = "postgres://db"
    done = cli.run("serve", AGENT)
    assert done.returncode == 2
    assert "sqlite:///runs.db" in done.stderr
