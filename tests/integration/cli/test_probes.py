"""The probes of a platform, on processes as it runs them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.integration.cli.test_cli_end_to_end import ROOT, Cli, Service
from tests.support.eventually import until_sync
from tests.support.free_ports import unused_port
from tests.support.long_deadlines import PATIENT
from tests.support.secured_broker import kafka

AGENT = """
import asyncio
from pathlib import Path
from surefoot import Agent, Context, Done

slow = Agent("NAME")

@slow.step
async def hold(ctx: Context, folder: str) -> Done:
    Path(folder, "begun").touch()
    while not Path(folder, "over").exists():
        await asyncio.sleep(0.05)
    return Done()

@slow.on_event(topic="NAME.source")
def never(event: dict) -> None:
    return None
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def asked(port: int, path: str) -> int:
    """The status; 0: nobody listens yet."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=60, trust_env=False).status_code
    except httpx.TransportError:
        return 0


def ready(port: int) -> bool:
    return asked(port, "/ready") == 200


def create(bootstrap: str, topic: str) -> None:
    admin = kafka.AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics([kafka.NewTopic(topic, 1, 1)]).values():
        done.result(timeout=60)


def test_every_process_is_ready_once_it_serves_and_no_longer_as_it_drains(
    bootstrap: str, app: str, agent_name: str, tmp_path: Path, stack: ExitStack
) -> None:
    file = tmp_path / "slow.py"
    file.write_text(AGENT.replace("NAME", agent_name))
    env = {
        "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap,
        "SUREFOOT_APP": app,
        "SUREFOOT_PARTITIONS": "1",
        "SUREFOOT_REPLICATION_FACTOR": "1",
        "SUREFOOT_DRAIN_TIMEOUT_S": "120",
        **{f"SUREFOOT_{name.upper()}": str(value) for name, value in PATIENT.items()},
    }
    cli = Cli(env, tmp_path)
    stack.callback(cli.close)
    assert cli.here("topics", "apply", str(file)).returncode == 0
    create(bootstrap, f"{agent_name}.source")

    def start(instance: str, *args: str) -> tuple[Service, int]:
        port = unused_port()
        own = {"SUREFOOT_METRICS_PORT": str(port), "SUREFOOT_INSTANCE": instance}
        whole = {**os.environ, **env, **own, "PYTHONPATH": str(ROOT)}
        service = Service((*args, "--slot", "0"), whole, tmp_path / instance)
        stack.callback(service.kill)
        return service, port

    for name in ("owner", "standby", "relay", "trigger"):
        (tmp_path / name).mkdir()
    owner, at = start("owner", "worker", str(file))
    until_sync(partial(ready, at), what="the owner to be ready")
    others = [
        start("standby", "worker", str(file)),
        start("relay", "relay"),
        start("trigger", "trigger", str(file)),
    ]
    for _, port in others:
        until_sync(partial(ready, port), what="the others to be ready")

    cli.here("runs", "start", agent_name, "--payload", f'"{tmp_path}"')
    until_sync((tmp_path / "begun").exists, what="the step to begin")
    owner.process.send_signal(signal.SIGTERM)
    until_sync(lambda: asked(at, "/ready") == 503, what="the owner to drain")
    assert asked(at, "/health") == 200
    (tmp_path / "over").touch()
    assert owner.process.wait(120) == 0
