"""Run every process from a container image against a broker, as `make image-check` does.

    python -m tests.packaging.image_check surefoot:local

Each container has a read-only root file system, no capabilities and no way to gain any, as in
compose.yaml. The check ends with an error unless every process becomes healthy and ready, a run
passes through gateway, worker and relay to its target exactly once, and each process ends with 0
within its drain after SIGTERM. Needs a Docker engine on this machine, as the containers use its
network, and a broker: SUREFOOT_TEST_BOOTSTRAP, or one that is started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import typer

from surefoot.infra.broker.find import start_broker
from tests.support.free_ports import unused_port

AGENT = """
import os
from surefoot import Agent, Context, Done

shop = Agent("shop")

@shop.step
async def sell(ctx: Context, item: str) -> Done:
    ctx.outbox.http("POST", os.environ["TARGET"], json={"item": item})
    return Done({"sold": item})
"""
DRAIN_S, GRACE_S = 20, 10
WAIT_S = 180.0
CONFINED = (
    *("--network", "host", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--mount", "type=volume,target=/var/lib/surefoot"),
)


def docker(*arguments: str) -> str:
    ran = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"docker {' '.join(arguments)}:\n{ran.stdout}{ran.stderr}")
    return ran.stdout.strip()


def until(told: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {WAIT_S:.0f} s: {told}")
        time.sleep(0.5)


def get(url: str, token: str | None = None) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return json.loads(answer.read() or b"null")


def answers(url: str) -> bool:
    try:
        get(url)
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Process:
    """A container with one process; `port` has its metrics and its health."""

    role: str
    container: str
    port: int

    def state(self) -> dict[str, Any]:
        (told,) = json.loads(docker("inspect", self.container))
        return told["State"]  # type: ignore[no-any-return]

    def healthy(self) -> bool:
        state = self.state()
        if not state["Running"]:
            raise SystemExit(f"{self.role} ended:\n{docker('logs', self.container)}")
        return bool(state["Health"]["Status"] == "healthy")

    def check_confinement(self) -> None:
        told = "import os, pathlib; print(os.getuid()); pathlib.Path('/opt/x').write_text('')"
        tried = subprocess.run(
            ["docker", "exec", self.container, "python3", "-c", told],
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.stdout != "10001\n" or "Read-only file system" not in tried.stderr:
            raise SystemExit(f"{self.role} is not confined: {tried.stdout}{tried.stderr}")

    def stop(self) -> tuple[int, float]:
        """Send SIGTERM; return the exit status, and the seconds that it took."""
        began = time.monotonic()
        docker("stop", "--time", str(DRAIN_S + GRACE_S), self.container)
        return int(self.state()["ExitCode"]), time.monotonic() - began


@contextmanager
def target() -> Iterator[tuple[str, list[str]]]:
    """An HTTP server; yields its URL, and the idempotency keys that it was sent."""
    keys: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            keys.append(self.headers["Idempotency-Key"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", keys
    finally:
        server.shutdown()
        server.server_close()


def check(image: str) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(start_broker(os.environ.get("SUREFOOT_TEST_BOOTSTRAP")))
        url, keys = stack.enter_context(target())
        agents = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        agents.chmod(0o755)
        (agents / "shop.py").write_text(AGENT)
        gateway, views = unused_port(), unused_port()
        env = {
            "SUREFOOT_APP": f"image-{os.getpid()}",
            "SUREFOOT_BOOTSTRAP_SERVERS": broker.bootstrap,
            "SUREFOOT_DRAIN_TIMEOUT_S": str(DRAIN_S),
            "SUREFOOT_PARTITIONS": "2",
            "SUREFOOT_AUTH": "tokens",
            "SUREFOOT_ARCHIVE": "file:///var/lib/surefoot/archive",
            "SUREFOOT_OUT_ALLOW": url.removeprefix("http://").rstrip("/"),
            "SUREFOOT_GATEWAY_PORT": str(gateway),
            "SUREFOOT_VIEWS_PORT": str(views),
            "SUREFOOT_VIEWS_URL": f"http://127.0.0.1:{views}",
            "TARGET": url,
        }

        def options(**more: str) -> list[str]:
            given = {**env, **more}
            variables = [f"--env={name}={value}" for name, value in given.items()]
            return [*CONFINED, *variables, "--volume", f"{agents}:/agents:ro"]

        def start(role: str, *arguments: str) -> Process:
            port = unused_port()
            more = {"SUREFOOT_METRICS_PORT": str(port), "SUREFOOT_INSTANCE": role}
            if role == "views":  # as in compose.yaml: only the gateway asks it
                more["SUREFOOT_AUTH"] = "off"
            container = docker("run", "--detach", *options(**more), image, role, *arguments)
            stack.callback(docker, "rm", "--force", "--volumes", container)
            return Process(role, container, port)

        typer.echo(docker("run", "--rm", *options(), image, "topics", "apply", "shop.py"))
        started = [
            start("relay"),
            *(start(role, "shop.py") for role in ("worker", "gateway", "views", "archive")),
        ]
        for process in started:
            until(f"{process.role} is healthy", process.healthy)
            process.check_confinement()
            ready = gateway if process.role == "gateway" else process.port
            if process.role in {"worker", "relay", "gateway"}:
                until(
                    f"{process.role} is ready", partial(answers, f"http://127.0.0.1:{ready}/ready")
                )
            typer.echo(f"{process.role}: healthy, user 10001, read-only")

        (door,) = (each.container for each in started if each.role == "gateway")
        made = docker("exec", door, "surefoot", "tokens", "create", "ann", "--role", "admin")
        token = made.splitlines()[0]
        run_id = docker("exec", door, "surefoot", "runs", "start", "shop.py", '"book"')
        until(
            "the run is completed",
            lambda: (
                get(f"http://127.0.0.1:{gateway}/runs/shop/{run_id}", token)["status"]
                == "completed"
            ),
        )
        until("its effect is delivered", lambda: bool(keys))
        for process in started:
            status, took_s = process.stop()
            typer.echo(f"{process.role}: SIGTERM, {took_s:.1f} s, status {status}")
            if status != 0 or took_s > DRAIN_S + GRACE_S:
                raise SystemExit(docker("logs", process.container))
        if len(keys) != 1:
            raise SystemExit(f"the effect was delivered {len(keys)} times")
        typer.echo("one run, one effect")


if __name__ == "__main__":
    check(*sys.argv[1:])
