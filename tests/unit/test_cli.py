"""The front door: help, errors and exit statuses; and what `surefoot dev` makes up by itself."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

import surefoot
from surefoot.cli import app
from surefoot.infra.dev import sample
from surefoot.infra.terminal import plain_console, printable

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
    for command in ("worker", "relay", "gateway", "topics", "runs", "dev", "demo", "broker"):
        assert f"  {command} " in told
    for status in ("0 done", "2 wrong usage", "69 Kafka", "70 a worker", "130 interrupted"):
        assert status in " ".join(told.split())


def test_help_is_instant_as_it_imports_no_client() -> None:
    heavy = ("aiokafka", "fastapi", "httpx", "rich", "uvicorn")
    code = f"import sys, surefoot.cli; print([m for m in {heavy} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_version_is_that_of_the_package() -> None:
    assert run("version") == (0, f"{surefoot.__version__}\n", "")


@pytest.mark.parametrize("command", ["worker", "gateway", "dev", "demo"])
def test_a_missing_agent_file_is_told_without_a_traceback(command: str) -> None:
    code, _, told = run(command, "nowhere.py")
    assert code == 2
    assert told == "surefoot: no such file: nowhere.py\n"


def test_a_missing_address_is_told_with_what_to_set(agent_file: str) -> None:
    code, _, told = run("worker", agent_file)
    assert code == 2
    assert "SUREFOOT_BOOTSTRAP_SERVERS" in told


@pytest.mark.parametrize(
    "command", [["worker"], ["topics", "apply"], ["topics", "verify"], ["runs", "list"]]
)
def test_kafka_away_is_status_69(
    command: list[str], agent_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_BOOTSTRAP_SERVERS", NOWHERE)
    code, _, told = run(*command, agent_file)
    assert code == 69
    assert NOWHERE in told


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
    [("{", "JSON"), ("17", "string"), ("NaN", "JSON"), ('"\\ud800"', "JSON")],
)
def test_a_payload_that_cannot_be_is_refused_before_anything_is_sent(
    payload: str, told: str, agent_file: str
) -> None:
    code, _, message = run("runs", "start", agent_file, "--payload", payload)
    assert code == 2
    assert told in message


def test_a_run_id_that_cannot_be_is_refused(agent_file: str) -> None:
    code, _, told = run("runs", "start", agent_file, "--payload", '"x"', "--run-id", "a b")
    assert code == 2
    assert "run_id must be" in told


def test_an_unknown_status_is_refused_with_those_that_exist(agent_file: str) -> None:
    code, _, told = run("runs", "list", agent_file, "--status", "done")
    assert code == 2
    assert "completed" in told


def test_the_demo_refuses_an_agent_that_takes_no_issues(agent_file: str) -> None:
    code, _, told = run("demo", agent_file)
    assert code == 2
    assert "issues" in told


def test_text_from_outside_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("a\x1b[31mb\nc\u202e") == r"a\x1b[31mb\nc\u202e"
    plain_console().print("[red]not markup[/red] :warning:")
    assert capsys.readouterr().out == "[red]not markup[/red] :warning:\n"


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
