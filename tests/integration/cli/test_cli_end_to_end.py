"""Everything through the real command line, in processes of their own, on a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from surefoot.cli import app as surefoot
from surefoot.infra.demo.deliveries import signature
from surefoot.infra.demo.tracker import Tracker, read_book
from tests.support.eventually import until, until_sync
from tests.support.free_ports import unused_port
from tests.support.long_deadlines import PATIENT

ROOT = Path(__file__).parents[3]
TRIAGE = str(ROOT / "examples" / "triage.py")
SECRET = "an-own-secret-of-this-test-0123456789"
RUNS = 40


class Cli:
    """`surefoot ...` with the settings of this test."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self._env = {**os.environ, **env, "PYTHONPATH": str(ROOT)}
        self._folder = folder
        self._stack = ExitStack()

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.support.patient_cli", *args],
            env=self._env,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    def here(self, *args: str) -> subprocess.CompletedProcess[str]:
        """What a command comes to, without a process of its own: quicker, for all that is not what
        is tested."""
        with chdir(self._folder):
            done = CliRunner().invoke(surefoot, args, env=self._env)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(args, done.exit_code, done.stdout, done.stderr)

    def ok(self, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *args: str) -> Service:
        service = Service(args, self._env, self._folder)
        self._stack.callback(service.kill)
        return service

    def close(self) -> None:
        self._stack.close()


class Service:
    """A command that runs until it is stopped. What it says is in a file."""

    def __init__(self, args: tuple[str, ...], env: dict[str, str], folder: Path) -> None:
        self._out = folder / f"{'-'.join(Path(arg).name for arg in args)}.log"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "surefoot", *args],
                env=env,
                cwd=folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def said(self) -> str:
        return self._out.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        whole = self.said().split("\n")[:-1]  # what stands behind is still being written
        lines = [json.loads(line) for line in whole if line.startswith('{"')]
        return [line for line in lines if line["event"] == name]

    def wait_for(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        def there() -> list[dict[str, Any]]:
            assert self.process.poll() is None, self.said()
            found = self.events(name)
            return found if len(found) >= count else []

        return until_sync(there, what=f"{count} x {name}")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def stop(self, number: int = signal.SIGTERM) -> int:
        children = self.children()
        self.process.send_signal(number)
        code = self.process.wait(240)
        assert not any(child.is_running() for child in children)
        return code

    def kill(self) -> None:
        """At the end of a test that failed: leave nothing behind."""
        if self.process.poll() is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            self.process.wait()
            for child in children:
                if child.is_running():
                    child.kill()


@pytest.fixture
def cli(bootstrap: str, app: str, tmp_path: Path) -> Iterator[Cli]:
    env = {
        "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap,
        "SUREFOOT_APP": app,
        "SUREFOOT_GATEWAY_PORT": str(unused_port()),
        "SUREFOOT_WEBHOOK_GITHUB_SECRET": SECRET,
        "TRIAGE_THINK_S": "0.05",
        **{f"SUREFOOT_{name.upper()}": str(value) for name, value in PATIENT.items()},
    }
    cli = Cli(env, tmp_path)
    yield cli
    cli.close()


def until_taken(post: Callable[[], httpx.Response]) -> httpx.Response:
    """The 202 of what is sent again, as its sender would, for as long as the log is too slow."""

    def taken() -> httpx.Response | None:
        answer = post()
        assert answer.status_code in (202, 503), answer.text
        return answer if answer.status_code == 202 else None

    answer = until_sync(taken, what="a request to be taken")
    assert answer is not None
    return answer


def until_ok(cli: Cli, *args: str) -> str:
    """What a command says that is typed again, as it advises, while the log is too slow for it."""

    def done() -> subprocess.CompletedProcess[str] | None:
        ended = cli.run(*args)
        return ended if ended.returncode == 0 else None

    ended = until_sync(done, what=f"surefoot {' '.join(args)}")
    assert ended is not None
    return ended.stdout


def listed(cli: Cli) -> list[dict[str, Any]]:
    done = cli.here("runs", "list", "triage", "--json", "--limit", "500")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def shown(cli: Cli, agent: str, run_id: str) -> dict[str, Any]:
    """The run as `runs show` tells it; nothing, when there is none yet."""
    found = cli.here("runs", "show", agent, run_id, "--json")
    return json.loads(found.stdout) if found.returncode == 0 else {}


def test_topics_are_created_once_and_verified(cli: Cli, app: str) -> None:
    missing = cli.run("topics", "verify", TRIAGE)
    assert missing.returncode == 2
    assert "surefoot topics apply" in missing.stderr
    refused = cli.run("worker", TRIAGE)
    assert refused.returncode == 2
    assert "surefoot topics apply" in refused.stderr
    assert cli.ok("topics", "apply", TRIAGE).count(f"created {app}.") == 12
    assert "created" not in cli.ok("topics", "apply", TRIAGE)
    cli.ok("topics", "verify", TRIAGE)


def test_an_agent_that_nobody_has_made_topics_for_is_unknown(cli: Cli) -> None:
    unknown = cli.run("runs", "list", "nobody")
    assert unknown.returncode == 2
    assert "nobody" in unknown.stderr


def test_a_killed_worker_comes_back_and_no_run_is_lost(cli: Cli) -> None:
    cli.ok("topics", "apply", TRIAGE)
    worker = cli.start("worker", TRIAGE, "--processes", "2")
    worker.wait_for("worker_ready", 2)
    gateway = cli.start("gateway", TRIAGE)
    url = gateway.wait_for("gateway_ready")[0]["url"]
    payload = {"repository": "acme/widgets", "number": 1, "title": "It crashes"}
    with httpx.Client(base_url=url, trust_env=False, timeout=90) as client:
        for number in range(RUNS):
            body = {"run_id": f"r{number}", "payload": payload}
            until_taken(partial(client.post, "/runs/triage", json=body))
            if number == RUNS // 2:
                worker.children()[0].kill()
    worker.wait_for("process_exited")
    finished = ("runs", "list", "triage", "--json", "--limit", "500", "--status", "completed")
    until_sync(
        lambda: len(cli.here(*finished).stdout.splitlines()) == RUNS,
        what="all runs to be completed",
    )
    done = listed(cli)
    assert {run["run_id"] for run in done} == {f"r{number}" for number in range(RUNS)}
    assert {run["seq"] for run in done} == {5}
    assert shown(cli, "triage", "r0")["result"] == {"labels": ["bug"], "duplicate_of": None}
    assert "completed" in until_ok(cli, "runs", "show", "triage", "r0")
    assert cli.run("runs", "show", "triage", "nobody").returncode == 1
    assert worker.events("process_exited")[0]["code"] == -signal.SIGKILL
    assert worker.stop() == 0
    assert gateway.stop() == 0


async def test_a_signed_delivery_becomes_one_run_whose_effects_reach_the_world(
    cli: Cli, tmp_path: Path
) -> None:
    cli.ok("topics", "apply", TRIAGE)
    services = [
        cli.start("worker", TRIAGE),
        cli.start("relay"),
        cli.start("gateway", TRIAGE),
    ]
    url = services[2].wait_for("gateway_ready")[0]["url"]
    async with (
        Tracker(tmp_path / "book", seed=None) as tracker,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=90) as client,
    ):
        body = delivery(tracker.url)
        headers = {"X-GitHub-Event": "issues", "X-GitHub-Delivery": "d1"}
        forged = await client.post("/webhooks/github", content=body, headers=headers)
        assert forged.status_code == 401
        headers["X-Hub-Signature-256"] = signature(SECRET, body)

        async def taken() -> httpx.Response | None:
            answer = await client.post("/webhooks/github", content=body, headers=headers)
            assert answer.status_code in (202, 503), answer.text
            return answer if answer.status_code == 202 else None

        answers = [await until(taken, what="a delivery to be taken") for _ in range(3)]
        run = {"agent": "triage", "run_id": "github-d1"}
        assert [answer and answer.json() for answer in answers] == [{"runs": [run]}] * 3
        await until(lambda: len(read_book(tmp_path / "book")) == 3, what="three effects")
    book = read_book(tmp_path / "book")
    assert [(r.method, r.path, r.key) for r in book] == [
        ("PUT", "/repos/acme/widgets/issues/7/labels", "triage:github-d1:2:0"),
        ("POST", "/repos/acme/widgets/issues/7/comments", "triage:github-d1:3:0"),
        ("PATCH", "/repos/acme/widgets/issues/7", "triage:github-d1:4:0"),
    ]
    assert [service.stop() for service in services] == [0, 0, 0]
    runs = await asyncio.to_thread(listed, cli)
    assert [run["run_id"] for run in runs] == ["github-d1"]


def delivery(tracker_url: str) -> bytes:
    issue = {
        "url": f"{tracker_url}/repos/acme/widgets/issues/7",
        "number": 7,
        "title": "It crashes",
        "body": "Duplicate of #3",
        "labels": [],
    }
    repository = {"full_name": "acme/widgets"}
    event = {"action": "opened", "issue": issue, "repository": repository}
    return json.dumps(event).encode()


def test_a_run_can_be_started_without_a_gateway(cli: Cli) -> None:
    cli.ok("topics", "apply", TRIAGE)
    payload = '{"repository": "acme/widgets", "number": 1, "title": "How do I?"}'
    until_ok(cli, "runs", "start", TRIAGE, "--payload", payload, "--run-id", "mine")
    until_ok(cli, "runs", "start", "triage", "--payload", payload, "--run-id", "mine")
    worker = cli.start("worker", TRIAGE)
    until_sync(
        lambda: shown(cli, "triage", "mine").get("status") == "completed",
        what="the run to be completed",
    )
    assert [run["run_id"] for run in listed(cli)] == ["mine"]
    assert worker.stop(signal.SIGINT) == 0


@pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("openssl")), reason="needs curl and openssl"
)
def test_dev_prints_commands_that_work_and_stops_on_ctrl_c(cli: Cli, tmp_path: Path) -> None:
    dev = cli.start("dev", TRIAGE, "--port", str(unused_port()))
    until_sync(lambda: "Ctrl-C stops everything" in dev.said(), what="the welcome")
    (page,) = re.findall(r"^look at  (\S+/ui/)", dev.said(), re.MULTILINE)
    assert "<html" in httpx.get(page, timeout=60, follow_redirects=True).text
    commands = [line for line in dev.said().splitlines() if line.startswith(("curl", "BODY="))]
    assert len(commands) == 2
    for command in commands:

        def typed(command: str = command) -> bool:
            done = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=240
            )
            return '"run_id":' in done.stdout

        until_sync(typed, what=f"{command} to be taken")
    until_sync(lambda: dev.said().count("run.completed close_out") >= 2, what="two runs")
    until_sync(lambda: "sample tracker got POST" in dev.said(), what="the comment to arrive")
    assert dev.stop(signal.SIGINT) == 0


SUPERVISE = """
import asyncio, pathlib, sys
from surefoot.infra.runtime.supervisor import Child, Supervisor

child = Child(name="g", args=["gateway", sys.argv[1]], log_path=pathlib.Path(sys.argv[2]))
asyncio.run(Supervisor([child], grace_s=5).run())
"""


def test_a_gateway_whose_supervisor_was_killed_ends_and_leaves_its_port(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    env = os.environ | {
        "SUREFOOT_BOOTSTRAP_SERVERS": "127.0.0.1:1",  # it comes up without Kafka
        "SUREFOOT_GATEWAY_PORT": str(unused_port()),
        "SUREFOOT_WEBHOOK_GITHUB_SECRET": "s" * 32,
    }
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISE, TRIAGE, str(log)], env=env)
    try:
        until_sync(lambda: log.exists() and "gateway_ready" in log.read_text(), what="the gateway")
        [gateway] = psutil.Process(supervisor.pid).children()
    finally:
        supervisor.kill()
        supervisor.wait()
    gone, _ = psutil.wait_procs([gateway], timeout=90)
    if not gone:
        gateway.kill()
    assert gone == [gateway]


POOLED = """
from surefoot import Agent, Context, Done, Next

studio = Agent("studio")


@studio.step
async def prepare(ctx: Context, prompt: str) -> Next:
    return Next(render, prompt)


@studio.step(pool="gpu", concurrency=2)
async def render(ctx: Context, prompt: str) -> Done:
    return Done(f"a picture of {prompt}")
"""


def test_a_pool_is_a_group_of_workers_of_its_own(cli: Cli, tmp_path: Path, app: str) -> None:
    file = tmp_path / "studio.py"
    file.write_text(POOLED)
    assert f"created {app}.studio.gpu.commands" in cli.ok("topics", "apply", str(file))
    unknown = cli.run("worker", str(file), "--pool", "tpu")
    assert unknown.returncode == 2
    assert "existing pools: gpu" in unknown.stderr
    worker = cli.start("worker", str(file))
    worker.wait_for("worker_ready")
    until_ok(cli, "runs", "start", str(file), "--payload", '"a cat"', "--run-id", "cat")

    def told() -> dict[str, Any]:
        return shown(cli, "studio", "cat")

    until_sync(
        lambda: (told().get("wait") or {}).get("kind") == "pool",
        what="the run to wait for its pool",
    )
    pool = cli.start("worker", str(file), "--pool", "gpu")
    until_sync(lambda: told().get("result") == "a picture of a cat", what="the picture")
    assert pool.stop() == worker.stop() == 0
