"""The front door: help, errors and exit statuses; and what `surefoot dev` makes up by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter
from typer.main import get_command
from typer.testing import CliRunner

import surefoot
from surefoot.cli import app
from surefoot.client import Handle
from surefoot.commands import asking
from surefoot.commands.groups import LazyGroup
from surefoot.commands.readers import resolve_agent
from surefoot.commands.runs import operate, show, start
from surefoot.infra.dev.sample import sample
from surefoot.infra.runtime.terminal import plain_console, printable
from surefoot.producers.commands.operations import Operator
from surefoot.state.errors import ConfigError, NotAllowed
from surefoot.state.machine.commands import BODIES, COMMANDS
from surefoot.state.machine.model import EntryKind, Failure, Park
from surefoot.testing import Simulation
from tests.support.fake_runs import AWAY, World
from tests.support.run_driver import wait_for
from tests.unit.state.test_operations import FakeClock

#: nobody listens there
NOWHERE = "127.0.0.1:1"

AGENT = """
from surefoot import Agent, Context, Done

greeter = Agent("greeter")

@greeter.step
async def greet(ctx: Context, name: str) -> Done:
    return Done(f"hello {name}")
"""


@pytest.fixture
def agent_file(tmp_path: Path) -> str:
    path = tmp_path / "greeter.py"
    path.write_text(AGENT)
    return str(path)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUREFOOT_BOOTSTRAP_SERVERS", raising=False)


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, args)
    return result.exit_code, result.stdout, result.stderr


def test_help_names_every_command_and_the_exit_statuses() -> None:
    code, told, _ = run("--help")
    assert code == 0
    for command in (
        "worker",
        "relay",
        "gateway",
        "topics",
        "runs",
        "schedules",
        "webhooks",
        "replay",
        "dev",
        "demo",
        "broker",
    ):
        assert f"  {command} " in told
    for status in (
        "0 done",
        "2 wrong usage",
        "69 Kafka",
        "70 a worker",
        "77 Kafka denies",
        "130 interrupted",
    ):
        assert status in " ".join(told.split())


@pytest.mark.parametrize("asked", ["--help", "--version", "nonsense"])
def test_help_is_instant_as_it_imports_no_command_and_no_client(asked: str) -> None:
    code = (
        "import sys, typer.testing, surefoot.cli\n"
        f"typer.testing.CliRunner().invoke(surefoot.cli.app, [{asked!r}])\n"
        "print(*sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(told.stdout.split())
    assert not imported & {"aiokafka", "fastapi", "httpx", "rich", "uvicorn"}
    assert {each for each in imported if each.startswith("surefoot.commands.")} == {
        "surefoot.commands.groups"
    }


def test_the_list_says_of_each_command_what_its_own_help_begins_with() -> None:
    front = get_command(app)
    assert isinstance(front, LazyGroup)
    listed = [path.rpartition(".")[2] for path in front.table]
    assert [*front.commands] == listed
    for name, told in zip(listed, front.table.values(), strict=True):
        assert front.commands[name].get_short_help_str(1_000) == told


def test_a_mistyped_command_has_its_neighbour_named() -> None:
    code, _, told = run("worke")
    assert (code, "Did you mean 'worker'?" in told) == (2, True)


def test_every_command_that_a_run_takes_is_to_be_had_everywhere() -> None:
    _, told, _ = run("runs", "--help")
    assert {line.split()[0] for line in told.splitlines() if line.strip()} >= COMMANDS.keys()
    assert set(dir(Simulation)) >= COMMANDS.keys()
    assert set(dir(Handle)) >= BODIES.keys()


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_version_is_that_of_the_package(asked: str) -> None:
    assert run(asked) == (0, f"{surefoot.__version__}\n", "")


@pytest.mark.parametrize("command", [(), ("runs",), ("runs", "list"), ("dev",)])
def test_help_has_a_short_name(command: tuple[str, ...]) -> None:
    code, told, _ = run(*command, "-h")
    assert (code, told) == (0, run(*command, "--help")[1])


@pytest.mark.parametrize(
    "command",
    [
        ("runs", "list", "greeter"),
        ("runs", "show", "greeter", "r1"),
        ("runs", "start", "greeter", "--payload", "1"),
        ("runs", "cancel", "greeter", "r1"),
        ("schedules", "list", "greeter"),
        ("webhooks", "deliveries"),
        ("topics", "lag", "AGENT"),
        ("topics", "verify", "AGENT"),
        ("top", "--json", "AGENT"),
    ],
)
def test_a_log_that_is_not_there_is_told_and_not_made(
    command: tuple[str, ...], agent_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistyped = tmp_path / "rusn.db"
    monkeypatch.setenv("SUREFOOT_LOG", f"sqlite:///{mistyped}")
    code, _, told = run(*(agent_file if each == "AGENT" else each for each in command))
    assert (code, "SF3186" in told, str(mistyped) in told) == (2, True, True), told
    assert not list(tmp_path.glob("rusn*"))


def test_an_agent_is_given_by_its_name_its_file_or_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    for name in ("__init__", "bots"):
        (tmp_path / "shop" / f"{name}.py").write_text(AGENT if name == "bots" else "")
    monkeypatch.chdir(tmp_path)
    assert resolve_agent("shop") == ("shop", None)
    assert resolve_agent("shop.schedules") == ("shop.schedules", None)
    for given in ("shop.bots", "shop/bots.py", str(tmp_path / "shop" / "bots.py")):
        name, agent = resolve_agent(given)
        assert (name, agent and agent.name) == ("greeter", "greeter")
    code, _, told = run("runs", "show", "shop.gone", "r")
    assert (code, "SF1101: no such file or module: shop.gone" in told) == (2, True)


@pytest.mark.parametrize("command", ["worker", "gateway", "dev", "demo"])
def test_a_missing_agent_file_is_told_without_a_traceback(command: str) -> None:
    code, _, told = run(command, "nowhere.py")
    assert code == 2
    assert told.splitlines() == [
        "surefoot: SF1101: no such file: nowhere.py",
        "surefoot: `surefoot explain SF1101` tells more",
    ]


def test_a_missing_address_is_told_with_what_to_set(agent_file: str) -> None:
    code, _, told = run("worker", agent_file)
    assert code == 2
    assert "SUREFOOT_BOOTSTRAP_SERVERS" in told


@pytest.mark.parametrize(
    "command",
    [["worker"], ["topics", "apply"], ["topics", "verify"], ["runs", "list"], ["runs", "count"]],
)
def test_kafka_away_is_status_69(
    command: list[str], agent_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_BOOTSTRAP_SERVERS", NOWHERE)
    code, _, told = run(*command, agent_file)
    assert code == 69
    assert NOWHERE in told


def test_a_right_that_is_denied_is_status_77(
    agent_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise NotAllowed("SF3093", "User:ann lacks Read on topic surefoot.x.tasks")

    monkeypatch.setattr("surefoot.commands.services.worker.load_agents", denied)
    code, _, told = run("worker", agent_file)
    assert (code, told.splitlines()[0].split(": ")[1]) == (77, "SF3093")


def test_a_gateway_without_the_secret_of_its_webhook_does_not_start(
    agent_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_BOOTSTRAP_SERVERS", NOWHERE)
    hook = "@greeter.webhook('github')\ndef on(delivery): return delivery.id\n"
    Path(agent_file).write_text(AGENT + hook)
    code, _, told = run("gateway", agent_file)
    assert code == 2
    assert "SUREFOOT_WEBHOOK_GITHUB_SECRET" in told


@pytest.mark.parametrize(
    ("payload", "told"),
    [("{", "JSON"), ("17", "string"), ("NaN", "JSON")],
)
def test_a_payload_that_cannot_be_is_refused_before_anything_is_sent(
    payload: str, told: str, agent_file: str
) -> None:
    code, _, message = run("runs", "start", agent_file, "--payload", payload)
    assert code == 2
    assert told in message


@pytest.mark.parametrize("given", [['"x"'], ["--payload", '"x"']])
def test_a_start_takes_its_payload_as_the_docs_say_or_as_an_option(
    given: list[str], agent_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(start, "start_run", lambda *said: started.append(said))
    assert run("runs", "start", agent_file, *given)[0] == 0
    assert started == [(agent_file, '"x"', None)]


@pytest.mark.parametrize("given", [[], ['"x"', "--payload", '"x"']])
def test_a_start_takes_one_payload(given: list[str], agent_file: str) -> None:
    code, _, told = run("runs", "start", agent_file, *given)
    assert (code, "once, as JSON" in told) == (2, True)


def test_a_run_id_that_cannot_be_is_refused(agent_file: str) -> None:
    code, _, told = run("runs", "start", agent_file, "--payload", '"x"', "--run-id", "a b")
    assert code == 2
    assert "run_id must be" in told


def test_an_unknown_status_is_refused_with_those_that_exist(agent_file: str) -> None:
    code, _, told = run("runs", "list", agent_file, "--status", "done")
    assert code == 2
    assert "completed" in told


# Steering runs ------------------------------------------------------------------------------


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Runs of the agent `x`, and their owners, in place of Kafka's."""
    made = World()

    @contextlib.asynccontextmanager
    async def operator(_: str, run_ids: list[str], wait_s: float) -> AsyncIterator[Any]:
        assert run_ids
        one = Operator(
            commands=made, reader=made, clock=FakeClock(), send_s=1, answer_s=min(wait_s, 0.2)
        )
        yield one, made, None

    @contextlib.asynccontextmanager
    async def run_reader(_: str, run_ids: list[str]) -> AsyncIterator[World]:
        assert run_ids
        yield made

    monkeypatch.setattr(asking, "operator", operator)
    monkeypatch.setattr(operate, "run_reader", run_reader)
    monkeypatch.setattr(show, "run_reader", run_reader)
    return made


def asks(world: World) -> str:
    """Have run r ask; returns the question."""
    life = world.started()
    world.lead("r", lambda: life.returned(wait_for(about=b"pay")))
    wait = world.run().wait
    assert wait is not None
    assert wait.question is not None
    return wait.question


def test_a_failed_run_is_shown_with_the_class_and_the_lines_of_the_code(
    world: World,
) -> None:
    frames = ("agent.py:12 in pay", "agent.py:4 in charge")
    failure = Failure(code="step_raised", message="'tea'", kind="KeyError", frames=frames)
    world.started().legal(Park(failure=failure))
    code, said, _ = run("runs", "show", "x", "r")
    assert code == 0
    assert "SF1201 step_raised: KeyError: 'tea'" in said
    assert [line.split(maxsplit=1)[1] for line in said.splitlines() if line.startswith("at ")] == [
        *frames
    ]
    assert json.loads(run("runs", "show", "x", "r", "--json")[1])["failure"]["frames"] == [*frames]


@pytest.mark.parametrize(
    ("verb", "args", "event"),
    [
        ("pause", [], "run.paused"),
        ("resume", [], "command.repeated"),
        ("cancel", [], "run.cancelled"),
        ("signal", ["go"], "signal.received"),
        ("signal", ["go", '{"n": 1}'], "signal.received"),
        ("rewind", ["--to", "0", "--effects", "re-emit"], "run.rewound"),
        ("fork", ["--at", "0", "--run-id", "new"], "run.started"),
    ],
)
def test_each_verb_prints_what_came_of_it(
    world: World, verb: str, args: list[str], event: str
) -> None:
    world.started()
    code, told, _ = run("runs", verb, "x", "r", *args)
    assert code == 0
    assert told.startswith(f"{event}: ")
    assert len(world.sent) == 1


@pytest.mark.parametrize(
    ("kind", "args", "told"),
    [
        ("call", ["rewind", "x", "r", "--to", "0"], "pay#0 of step 'a': does not run again"),
        ("intent", ["rewind", "x", "r", "--to", "0"], "in doubt: the run asks its probe first"),
        (
            "call",
            ["fork", "x", "r", "--at", "0"],
            "pay#0 of step 'a': the run asks its probe first",
        ),
    ],
)
def test_what_has_been_done_once_is_told_and_repeated_if_it_is_named(
    world: World, kind: EntryKind, args: list[str], told: str
) -> None:
    life = world.started()
    life.journaled("c:pay#0", kind, value=b"1", digest=b"d", action=True)
    life.goes("b")
    code, said, _ = run("runs", *args)
    assert code == 0
    assert told in said
    assert "--repeat NAME" in said
    assert "pay#0" not in run("runs", *args, "--repeat", "pay")[1]
    code, _, said = run("runs", *args, "--repeat", "pya")
    assert (code, said.startswith("surefoot: SF4164 no_such_action: ")) == (1, True)


def test_approve_answers_the_question_that_is_asked_now_and_prints_it(world: World) -> None:
    question = asks(world)
    code, told, said = run("runs", "approve", "x", "r", "--no", "--note", "too dear", "--by", "ann")
    assert (code, said) == (0, f"question {question}\n")
    assert told.startswith("approval.decided: r is running at step 'b'")
    decision = json.loads(world.run().payload)
    assert (decision["approved"], decision["note"], decision["by"]) == (False, "too dear", "ann")


def test_approve_needs_an_answer_and_a_question_that_is_asked(world: World) -> None:
    assert run("runs", "approve", "x", "r")[0] == 2
    assert run("runs", "approve", "x", "r", "--yes")[::2] == (
        1,
        "surefoot: SF4101: agent 'x' has no run 'r'\n",
    )
    world.started()
    code, _, told = run("runs", "approve", "x", "r", "--yes")
    assert (code, told) == (1, "surefoot: SF4111: run r has no open question; it is running\n")
    assert world.sent == []


def test_an_answer_to_another_question_is_refused(world: World) -> None:
    question = asks(world)
    code, _, told = run("runs", "approve", "x", "r", "--yes", "--question", "other")
    assert code == 1
    assert told.startswith("surefoot: SF4111 unknown_question: ")
    assert question in told


def test_retry_and_resolve_say_what_came_of_it(world: World) -> None:
    life = world.started()
    for args, slot, event in (
        (["retry"], None, "run.retried"),
        (["resolve", "--did-not"], "c:charge#0", "run.resolved"),
        (["resolve", "--happened", '{"receipt": 7}'], "c:charge#0", "run.resolved"),
        (["resolve", "--give-up"], "c:charge#0", "run.resolved"),
    ):
        if slot is not None:
            life.journaled(slot, "intent", digest=b"d", value=b"null")
        life.legal(Park(failure=Failure(code="x", message="y")))
        code, told, _ = run("runs", args[0], "x", "r", *args[1:])
        assert (code, told.partition(":")[0]) == (0, event), args
    assert world.run().status == "failed"
    assert json.loads(world.sent[2].payload) == {"receipt": 7}


@pytest.mark.parametrize(
    "args",
    [
        ["resolve", "x", "r"],
        ["resolve", "x", "r", "--did-not", "--give-up"],
        ["resolve", "x", "r", "--happened", "{"],
        ["signal", "x", "r", "go", "NaN"],
        ["signal", "x", "r", ""],
        ["signal", "x", "r", "a\x1b"],
        ["pause", "x", "r", "--by", ""],
        ["pause", "x", "r", "--id", ""],
        ["pause", "x", "r", "--id", "*"],
        ["pause", "x", "r", "--id", "x" * 10_000],
        ["rewind", "x", "r"],
        ["rewind", "x", "r", "--to", "-1"],
        ["rewind", "x", "r", "--to", "0", "--effects", "maybe"],
        ["rewind", "x", "r", "--to", "0", "--id", "a b"],
        ["fork", "x", "r", "--at", "0", "--run-id", ""],
        ["pause", "x", "r", "--wait", "0"],
    ],
)
def test_what_cannot_be_asked_is_wrong_usage_and_nothing_is_sent(
    world: World, args: list[str]
) -> None:
    world.started()
    code, _, told = run("runs", *args)
    assert code == 2
    assert told
    assert world.sent == []


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "retry", "signal", "approve"])
@pytest.mark.parametrize("run_id", ["", "*", "a b", "@ready", "\uff41", "x" * 10_000, "a\n"])
def test_a_run_id_that_cannot_be_one_is_wrong_usage_and_never_another_run(
    world: World, verb: str, run_id: str
) -> None:
    args = {"signal": ["go"], "approve": ["--yes"]}.get(verb, [])
    code, _, told = run("runs", verb, "x", run_id, *args)
    assert code == 2
    assert "run_id must be" in told
    assert world.sent == []


def test_a_refusal_is_status_1_with_its_code(world: World) -> None:
    life = world.started()
    world.lead("r", life.ends)
    code, told, said = run("runs", "cancel", "x", "r")
    assert (code, told) == (1, "")
    assert said == "surefoot: SF4102 too_late: cancel comes too late: the run is completed\n"
    code, told, _ = run("runs", "cancel", "x", "r", "--json")
    assert (code, json.loads(told)["code"]) == (1, "too_late")


def test_no_answer_is_status_3_with_how_to_go_on(world: World) -> None:
    world.started()
    world.asleep = True
    code, told, said = run("runs", "cancel", "x", "r", "--id", "c1")
    assert (code, told) == (3, "")
    assert "surefoot runs show x r" in said
    assert "--id c1" in said
    code, told, _ = run("runs", "cancel", "x", "r", "--id", "c1", "--json")
    assert (code, json.loads(told)["accepted"]) == (3, None)


def test_an_id_is_made_and_told_and_kafka_away_tells_it_too(world: World) -> None:
    world.started()
    _, told, _ = run("runs", "pause", "x", "r")
    made = world.sent[0].id
    assert told.splitlines()[1] == f"command {made}"
    world.away = AWAY
    code, _, said = run("runs", "cancel", "x", "r")
    assert code == 69
    assert "repeat it with --id " in said
    world.away = NotAllowed("SF3093", "User:ann lacks Write on topic surefoot.x.commands")
    code, _, said = run("runs", "cancel", "x", "r")
    assert (code, "repeat it with --id " in said) == (77, True)
    assert asyncio.run(world.get("x", "r")) is not None


def test_a_fork_tells_the_name_of_the_new_run(world: World) -> None:
    world.started()
    code, told, _ = run("runs", "fork", "x", "r", "--at", "0")
    [new] = [run_id for run_id in world.lives if run_id != "r"]
    assert (code, told) == (0, f"run.started: {new} is running at step 'a' (seq 0)\n")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--from", "yesterday"], "zone"),
        (["--from", "5"], "--partition"),
        (["--from", "5", "--to", "4", "--partition", "0"], "after"),
        (["--from", "5", "--partition", "6"], "0 to 5"),
        (["--from", "2026-01-31T12:00:00Z", "--step", "a"], "--mode rerun"),
        (["--from", "2026-01-31T12:00:00Z", "--effects", "re-emit"], "--mode rerun"),
        (["--from", "2026-01-31T12:00:00Z", "--mode", "again"], "--mode"),
        ([], "--from"),
    ],
)
def test_a_replay_that_cannot_be_is_wrong_usage(args: list[str], told: str) -> None:
    code, _, said = run("replay", "x", *args)
    assert code == 2
    assert told in said


def test_a_replay_of_an_agent_s_file_knows_its_steps(agent_file: str) -> None:
    start = ["--from", "2026-01-31T12:00:00Z", "--mode", "rerun", "--step", "gree"]
    code, _, told = run("replay", agent_file, *start)
    assert code == 2
    assert "greet" in told


def test_the_demo_refuses_an_agent_that_takes_no_issues(agent_file: str) -> None:
    code, _, told = run("demo", agent_file)
    assert code == 2
    assert "issues" in told


def test_text_from_outside_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("a\x1b[31mb\nc\u202e") == r"a\x1b[31mb\nc\u202e"
    plain_console().print("[red]not markup[/red] :warning:")
    assert capsys.readouterr().out == "[red]not markup[/red] :warning:\n"


def test_an_error_cannot_steer_it_either(agent_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ConfigError("SF1001", "it said:\n\x1b]0;owned\x07\u202e")

    monkeypatch.setattr("surefoot.commands.services.worker.load_agents", refused)
    _, _, told = run("worker", agent_file)
    assert told.splitlines()[:2] == ["surefoot: SF1001: it said:", r"\x1b]0;owned\x07\u202e"]


@dataclass
class Inner:
    kind: Literal["b", "a"]
    note: str = "none"


@dataclass
class Outer:
    name: str
    count: int
    inner: Inner
    pair: tuple[int, bool]
    maybe: float | None
    many: list[Inner] = field(default_factory=list)


@pytest.mark.parametrize("kind", [str, int, Outer, list[Outer], dict[str, int], Inner | None])
def test_the_sample_payload_of_dev_is_one_that_the_step_takes(kind: type) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    adapter.validate_python(sample(adapter.json_schema()))
