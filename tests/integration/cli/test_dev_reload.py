"""`surefoot dev` runs what `surefoot new` wrote, and takes in what is changed."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cli.test_cli_end_to_end import Cli, Service, until_taken
from tests.support.eventually import until_sync
from tests.support.free_ports import unused_port

WELCOME = "Ctrl-C stops everything"
RESTARTED = "hello restarted"


@pytest.fixture
def port() -> int:
    return unused_port()


@pytest.fixture(params=["sqlite:///runs.db", "kafka"])
def cli(tmp_path: Path, request: pytest.FixtureRequest, bootstrap: str) -> Iterator[Cli]:
    env = {
        "SUREFOOT_LOG": request.param,
        "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap,
        "SUREFOOT_APP": f"t{uuid.uuid4().hex[:12]}",
        "SUREFOOT_PARTITIONS": "2",
        "TMPDIR": str(tmp_path / "temporary"),
    }
    (tmp_path / "temporary").mkdir()
    cli = Cli(env, tmp_path)
    yield cli
    cli.close()


class Dev:
    """A `surefoot dev` on the agent that `surefoot new hello` has written."""

    def __init__(self, cli: Cli, folder: Path, port: int) -> None:
        cli.ok("new", "hello")
        self.folder = folder / "hello"
        self.url = f"http://127.0.0.1:{port}/runs/hello"
        self.service: Service = cli.start("dev", "hello/agent.py", "--port", str(port))
        self.until_said(WELCOME)

    def until_said(self, text: str, times: int = 1) -> None:
        def there() -> bool:
            assert self.service.process.poll() is None, self.service.said()
            return self.service.said().count(text) >= times

        until_sync(there, what=f"{times} x {text!r}")

    def change(self, file: str, *pairs: tuple[str, str], in_the_same_second: bool = False) -> None:
        """At once, as an editor does: what is in between would be another change."""
        path = self.folder / file
        text = path.read_text()
        for was, now in pairs:
            assert was in text
            text = text.replace(was, now, 1)
        made = self.folder / "written"
        made.write_text(text)
        if in_the_same_second:
            then = path.stat().st_mtime_ns
            os.utime(made, ns=(then, then - then % 10**9 + (then + 1) % 10**9))
        made.replace(path)

    def result(self, payload: str) -> Any:
        post = partial(httpx.post, self.url, json={"payload": payload}, timeout=60)
        started = until_taken(post).json()

        def run() -> dict[str, Any] | None:
            found = httpx.get(f"{self.url}/{started['run_id']}", timeout=60)
            told: dict[str, Any] = json.loads(found.text)
            return told if told.get("status") == "completed" else None

        completed = until_sync(run, what="the run to complete")
        assert completed is not None
        return completed["result"]


def test_what_is_changed_runs_and_what_does_not_load_changes_nothing(
    cli: Cli, tmp_path: Path, port: int
) -> None:
    dev = Dev(cli, tmp_path, port)
    assert dev.result("Ann") == "Hello, Ann!"

    dev.change("agent.py", ("return Done(text)", "return Done(text"))
    dev.until_said("does not load; the agents run on unchanged")
    assert "SyntaxError" in dev.service.said()
    assert dev.result("Bob") == "Hello, Bob!"

    dev.change("agent.py", ("return Done(text", "return Done(text)"), ("Hello", "Good day"))
    dev.until_said(RESTARTED)
    assert dev.result("Cid") == "Good day, Cid!"
    assert dev.service.stop(signal.SIGINT) == 0


@pytest.mark.parametrize("cli", ["sqlite:///runs.db"], indirect=True)
def test_what_the_agent_imports_is_taken_in_and_what_cannot_run_is_waited_with(
    cli: Cli, tmp_path: Path, port: int
) -> None:
    dev = Dev(cli, tmp_path, port)
    (dev.folder / "words").mkdir()
    (dev.folder / "words" / "english.py").write_text('GREETING = "Ahoy"\n')
    dev.change(
        "agent.py",
        ("from surefoot", "from words import english\nfrom surefoot"),
        ("Hello", "{english.GREETING}"),
    )
    dev.until_said(RESTARTED)
    assert dev.result("Ann") == "Ahoy, Ann!"

    # As long as before: what Python has compiled would count as up to date.
    dev.change("words/english.py", ("Ahoy", "Haha"), in_the_same_second=True)
    dev.until_said(RESTARTED, times=2)
    assert dev.result("Bob") == "Haha, Bob!"

    two_senders = "".join(
        f'@agent.webhook("in", provider="{sender}")\ndef {sender}(delivery): ...\n\n\n'
        for sender in ("github", "stripe")
    )
    loads_and_cannot_run = f"{two_senders}@agent.step"
    dev.change("agent.py", ("@agent.step", loads_and_cannot_run))
    dev.until_said("nothing runs until the file is changed again")
    assert "SF1124" in dev.service.said()
    dev.change("agent.py", (loads_and_cannot_run, "@agent.step"))
    dev.until_said(RESTARTED, times=3)
    assert dev.result("Cid") == "Haha, Cid!"
    assert dev.service.stop(signal.SIGINT) == 0


@pytest.mark.parametrize("cli", ["sqlite:///runs.db"], indirect=True)
def test_a_dev_that_is_killed_leaves_no_temporary_files(
    cli: Cli, tmp_path: Path, port: int
) -> None:
    dev = Dev(cli, tmp_path, port)
    dev.service.kill()
    assert list((tmp_path / "temporary").iterdir()) == []
