"""What a process says on stderr."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import structlog
from pydantic import SecretStr

from surefoot import Agent, Context, Done, Next
from surefoot.consumers.attempts.threads import in_thread
from surefoot.infra.runtime.logging import configure
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.machine.model import MESSAGE_MAX, Failure
from surefoot.state.telemetry import log_context
from surefoot.testing import Simulation
from tests.support.fake_engine import a_run


def test_a_traceback_tells_the_line_and_no_local_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure(json=True)
    secret = "hunter2"
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        structlog.get_logger("t").exception("went_wrong", run_id="r1")
    told = capsys.readouterr().err
    entry = json.loads(told)
    assert (entry["event"], entry["run_id"]) == ("went_wrong", "r1")
    assert entry["exception"][0]["exc_type"] == "ZeroDivisionError"
    assert secret not in told


CANARY = "canary-4f1c"


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("password", CANARY),
        ("db_passwd", CANARY),
        ("client_secret", CANARY),
        ("token", CANARY),
        ("Authorization", CANARY),
        ("api_key", CANARY),
        ("x-api-key", CANARY),
        ("cookie", CANARY),
        ("headers", {"Set-Cookie": CANARY}),
        ("config", [{"private_key": CANARY}]),
        ("payload", {"a": CANARY}),
        ("input", CANARY),
        ("output", CANARY),
        ("value", [CANARY]),
        ("body", CANARY.encode()),
        ("raw", CANARY.encode()),
        ("held", SecretStr(CANARY)),
        ("error", f"got Bearer {CANARY}"),
        ("error", f"Authorization: basic {CANARY}"),
        ("url", f"https://user:{CANARY}@host/path"),
        ("url", f"https://{CANARY}@host/path"),
        ("url", f"https://h/p?a=1&access_token={CANARY}&b=2"),
        ("settings", {"a": {"b": {"c": {"d": {"e": {"f": {"g": CANARY}}}}}}}),
        ("request", SimpleNamespace(url=f"kafka://u:{CANARY}@h", at="noon")),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("level", ["debug", "info", "error"])
def test_secrets_and_payloads_are_not_shown(
    capsys: pytest.CaptureFixture[str], field: str, value: object, as_json: bool, level: str
) -> None:
    configure(json=as_json, level="DEBUG")
    getattr(structlog.get_logger("t"), level)("it_happened", run_id="r1", **{field: value})
    logging.getLogger("somebody.else").error("from %s", f"https://u:{CANARY}@h")
    told = capsys.readouterr().err
    assert CANARY not in told
    assert "it_happened" in told
    assert "r1" in told


#: clears the screen, begins a line, turns the direction of text, begins a sequence in one byte
STEERS = "a\x1b[2Jb\nok \u202ec\r\x07\x9b31m\u200bd"


@pytest.mark.parametrize("as_json", [True, False])
def test_no_text_from_outside_steers_the_terminal_or_begins_a_line(
    capsys: pytest.CaptureFixture[str], as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    configure(json=as_json)
    structlog.get_logger("t").warning(
        STEERS, run_id=STEERS, word="\x1b[2J", told={STEERS: [STEERS]}
    )
    logging.getLogger("somebody.else").warning("from %s", STEERS)
    told = capsys.readouterr().err
    assert [len(line.split("ok")) - 1 for line in told.splitlines()] == [4, 1]
    try:
        fail(STEERS)
    except ConnectionError:
        structlog.get_logger("t").exception("went_wrong")
    told += capsys.readouterr().err
    assert all(each.isprintable() or each == "\n" for each in told)


@pytest.mark.parametrize("before", ["", "x" * (MESSAGE_MAX - 20)])
@pytest.mark.parametrize(
    "text",
    [f"https://u:{CANARY}@host", f"https://host/?api_key={CANARY}", f"sent Bearer {CANARY}"],
)
def test_a_failure_keeps_none_either_wherever_it_is_cut(before: str, text: str) -> None:
    told = Failure(code="step_raised", message=f"{before} {text}").message
    assert CANARY[:6] not in told
    assert len(told) <= MESSAGE_MAX


def test_what_is_no_secret_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    configure(json=True)
    shown = {
        "tokens": 7,
        "max_tokens": 9,
        "url": "https://host/path?a=1",
        "keys": ["k"],
        "ok": True,
        "none": None,
        "took_ms": 1.5,
        "error": "ValueError: no bearer",
        "mail": "ann@x.test",
    }
    structlog.get_logger("t").info("it_happened", **shown)
    (line,) = lines(capsys)
    assert {name: line[name] for name in shown} == shown


def fail(message: str) -> NoReturn:
    raise ConnectionError(message)


@pytest.mark.parametrize("as_json", [True, False])
def test_an_exception_is_scrubbed_too(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    configure(json=as_json)
    try:
        fail(f"cannot reach redis://:{CANARY}@cache:6379")
    except ConnectionError:
        structlog.get_logger("t").exception("went_wrong")
        logging.getLogger("redis").exception("went wrong")
    told = capsys.readouterr().err
    assert CANARY not in told
    assert told.count("cache:6379") >= 2


def test_every_line_of_a_step_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    agent = Agent("logs")

    @agent.step(start=True)
    async def on_loop(ctx: Context, payload: int) -> Next:
        structlog.get_logger("author").info("thinking")
        logging.getLogger("author").warning("thinking too")
        return Next(in_thread, payload)

    @agent.step
    def in_thread(ctx: Context, payload: int) -> Done:
        structlog.get_logger("author").info("in a thread")
        logging.getLogger("author").warning("in a thread too")
        return Done()

    configure(json=True)
    with Simulation(agent) as sim:
        sim.run(1, run_id="r7")
    told = {line["event"]: line for line in lines(capsys)}
    assert told.keys() >= {"thinking", "thinking too", "in a thread", "in a thread too"}
    for event, (step, seq) in {
        "thinking": ("on_loop", 0),
        "thinking too": ("on_loop", 0),
        "in a thread": ("in_thread", 1),
        "in a thread too": ("in_thread", 1),
    }.items():
        line = told[event]
        assert (line["agent"], line["run_id"], line["step"], line["seq"]) == (
            "logs",
            "r7",
            step,
            seq,
        )
        assert isinstance(line["partition"], int)
        assert line["attempt"] == 0
    assert log_context.ATTEMPT.get() is None


async def test_a_thread_sees_the_context_of_its_step() -> None:
    token = log_context.ATTEMPT.set((a_run(run_id="r8"), 3))
    told = await in_thread(log_context.fields)
    log_context.ATTEMPT.reset(token)
    assert (told["run_id"], told["partition"]) == ("r8", 3)


def test_settings_show_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings(
        security_protocol="SASL_SSL", sasl_username="u", sasl_password=CANARY, registry_token=CANARY
    )
    configure(json=True, level="DEBUG")
    structlog.get_logger("t").debug("started", settings=settings, more={"registry": settings})
    assert CANARY not in repr(settings) + str(settings) + capsys.readouterr().err
