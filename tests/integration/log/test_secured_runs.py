"""Whole runs on a secured cluster: every process with the rights of `surefoot acls plan`, and none
besides."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner, Result

from surefoot.cli import app as surefoot
from surefoot.consumers.deadlines import ConsumerDeadlines
from surefoot.consumers.partition.worker import Worker
from surefoot.infra.processes import worker as worker_process
from surefoot.state.records.encoding import start_out
from tests.integration.cli.test_cli_end_to_end import ROOT, Service
from tests.support.effect_target import Sink, sink
from tests.support.eventually import until
from tests.support.free_ports import unused_port
from tests.support.long_deadlines import PATIENT
from tests.support.secured_broker import Secured, unsecured_token

AGENT = """
from surefoot import Agent, Context, Done, Handoff, Next, Tick

orders = Agent("orders")

@orders.step
async def take(ctx: Context, order: str) -> Next | Handoff:
    if order == "abroad":
        return Handoff("strangers", order)
    async with ctx.stream("note") as note:
        await note.write("taken")
    return Next(ship, order)

@orders.step
async def ship(ctx: Context, order: str) -> Done:
    ctx.outbox.http("POST", "TARGET/" + order)
    return Done(order)

@orders.on_event(topic="TOPIC", start="earliest")
def on_order(event: str) -> str:
    return event

@orders.schedule("0 4 1 1 *")
def yearly(tick: Tick) -> str:
    return "yearly"

orders.subscribe("crm", url="TARGET/crm")
"""
ROLES = ("worker", "relay", "gateway", "trigger", "views", "archive", "topics", "doctor")
#: of effects that nobody delivers
NOWHERE = "http://127.0.0.1:1"
SECRET = "whsec_" + "c2VjcmV0" * 6


@dataclass(kw_only=True)
class Site:
    """An app of its own on the cluster, of which each process signs in as it is told."""

    secured: Secured
    app: str
    folder: Path
    target: Sink
    #: what each kind of process signs in with
    env: Callable[[str], dict[str, str]]
    stack: ExitStack = field(default_factory=ExitStack)
    port: int = field(default_factory=unused_port)
    services: list[Service] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = f"{self.app}-incoming"
        self.file = str(self.folder / "orders.py")
        self.archive = self.folder / "archive"
        self.archive.mkdir()
        text = AGENT.replace("TARGET", self.target.url).replace("TOPIC", self.topic)
        Path(self.file).write_text(text)

    def settings(self, role: str) -> dict[str, str]:
        own = {
            "SUREFOOT_APP": self.app,
            "SUREFOOT_PARTITIONS": "1",
            "SUREFOOT_INSTANCE": "here",
            "SUREFOOT_GATEWAY_PORT": str(self.port),
            "SUREFOOT_VIEWS_PORT": str(unused_port()),
            "SUREFOOT_ARCHIVE": f"file://{self.archive}",
            "SUREFOOT_HOOK_CRM_SECRET": SECRET,
        }
        patient = {f"SUREFOOT_{name.upper()}": str(value) for name, value in PATIENT.items()}
        return own | patient | self.env(role)

    def command(self, role: str, *args: str) -> Result:
        return CliRunner().invoke(surefoot, args, env=self.settings(role))

    def planned(self, *options: str) -> list[str]:
        done = self.command("topics", "acls", "plan", self.file, *options)
        assert done.exit_code == 0, done.output
        return done.stdout.splitlines()

    async def apply(self) -> None:
        """Create the topics, as soon as the rights have reached the broker."""

        async def applied() -> bool:
            args = ("topics", "topics", "apply", self.file)
            return (await asyncio.to_thread(self.command, *args)).exit_code == 0

        await until(applied, what="the rights on topics")

    def start(self, role: str) -> Service:
        """The process itself, without its supervisor."""
        args = {"relay": ["relay", "--slot", "0"]}.get(role, [role, self.file])
        if role in ("worker", "trigger"):
            args += ["--slot", "0"]
        env = {**os.environ, **self.settings(role), "PYTHONPATH": str(ROOT)}
        service = Service(tuple(args), env, self.folder)
        self.stack.callback(service.kill)
        self.services.append(service)
        return service

    async def until(self, true: Callable[[], Any], *, what: str) -> None:
        """Wait, as long as every process lives."""

        async def so() -> bool:
            for service in self.services:
                assert service.process.poll() is None, service.said()
            found = true()
            return bool(await found if isawaitable(found) else found)

        await until(so, what=what)

    async def view_opened(self, tries: int = 5) -> None:
        """Start views that read. One whose sign-in ends while Faust joins the group may be left
        without partitions: it is started again, as an operator would."""
        views = self.start("views")
        try:
            opened = partial(views.events, "view_opened")
            await until(opened, what="the view to be read", timeout_s=90.0)
        except AssertionError:
            if tries == 1:
                raise
            self.services.remove(views)
            views.kill()
            await self.view_opened(tries - 1)

    async def run(self, run_id: str) -> None:
        """Start a run over HTTP, and see its end and its effect."""
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=60) as http:

            async def started() -> bool:
                with suppress(httpx.TransportError):  # it does not listen yet
                    body = {"run_id": run_id, "payload": run_id}
                    return (await http.post("/runs/orders", json=body)).status_code == 202
                return False

            async def ended() -> bool:
                answer = await http.get(f"/runs/orders/{run_id}")
                return bool(answer.json().get("status") == "completed")

            await self.until(started, what="the gateway to take a start")
            await self.until(ended, what=f"{run_id} to end")
            await self.until(lambda: f"/{run_id}" in self.asked(), what="its effect")

            async def ready() -> bool:  # it commits a transaction, within a few seconds
                return (await http.get("/ready/orders")).status_code == 200

            await self.until(ready, what="the gateway to be ready")
            for path in ("/topics", "/deliveries", "/dead-letters", "/schedules"):
                answer = await http.get(path)
                assert answer.status_code == 200, answer.text

    def asked(self) -> list[str]:
        return [request.path for request in self.target.acted.values()]


@asynccontextmanager
async def site(
    secured: Secured, app: str, folder: Path, env: Callable[[str], dict[str, str]]
) -> AsyncIterator[Site]:
    async with sink() as target:
        made = Site(secured=secured, app=app, folder=folder, target=target, env=env)
        with made.stack:
            yield made


def connections(service: Service, bootstrap: str) -> set[int]:
    """The process's own ports of its connections to the broker."""
    port = int(bootstrap.rpartition(":")[2])
    found = psutil.Process(service.process.pid).net_connections("tcp")
    return {each.laddr[1] for each in found if each.raddr[1:] == (port,)}


async def test_each_process_needs_the_planned_rights_only_and_outlives_its_sign_ins(
    secured: Secured, tmp_path: Path
) -> None:
    """With SCRAM. A sign-in lasts a few seconds: the broker hangs up on whoever asks after that."""

    def env(role: str) -> dict[str, str]:
        return secured.with_scram(f"scram-{role}")

    async with site(secured, "scram", tmp_path, env) as ours:
        for role in ROLES:
            secured.register(f"scram-{role}")
        secured.create(ours.topic)
        secured.run(ours.planned())
        await ours.apply()
        worker = ours.start("worker")
        for role in ("relay", "gateway", "trigger"):
            ours.start(role)
        await ours.run("asked")
        await send(secured, ours.topic, b'"sent"')
        await ours.until(lambda: "/sent" in ours.asked(), what="the effect of the event")
        await ours.until(lambda: ours.asked().count("/crm") == 2, what="both webhooks")
        archive = ours.start("archive")
        await ours.view_opened()

        async def looked() -> bool:
            args = ("doctor", "doctor", ours.file, "--json")
            done = await asyncio.to_thread(ours.command, *args)
            blind = json.loads(done.stdout)["blind"]
            assert "SF3093" not in str(blind)  # a right is missing
            return not blind

        await ours.until(looked, what="each check of the doctor to look")
        first = connections(worker, secured.scram)
        await ours.until(
            lambda: len(first - connections(worker, secured.scram)) > 2, what="sign-ins to end"
        )
        await ours.run("later")
        await asyncio.to_thread(archive.stop)
        assert list(ours.archive.rglob("*.avro"))


@pytest.mark.parametrize("how", ["certificate", "token"])
async def test_a_whole_run_with_another_way_to_sign_in(
    secured: Secured, tmp_path: Path, how: str
) -> None:
    token = tmp_path / "token"
    token.write_text(unsecured_token("bob", lasts_s=3600))
    env = {"certificate": secured.with_certificate(), "token": secured.with_token(token)}[how]
    principal = {"certificate": "User:CN=ann", "token": "User:bob"}[how]
    async with site(secured, how, tmp_path, lambda _: env) as ours:
        secured.run(ours.planned("--principal", principal))
        await ours.apply()
        for role in ("worker", "relay", "gateway"):
            ours.start(role)
        await ours.run("asked")


async def send(secured: Secured, topic: str, value: bytes | None, **place: Any) -> None:
    """A record from elsewhere."""
    producer = AIOKafkaProducer(bootstrap_servers=secured.plain)
    await producer.start()
    try:
        await producer.send_and_wait(topic, value, **place)
    finally:
        await producer.stop()


async def begin(secured: Secured, app: str, order: str) -> None:
    """A run that is named as its order, in partition 0."""
    out = start_out(app, 1, "orders", order, f'"{order}"'.encode(), sent_ms=1)
    headers = list(out.headers)
    await send(secured, out.topic, out.value, key=out.key, partition=0, headers=headers)


@pytest.mark.parametrize(
    ("without", "missing"),
    [
        ("--operation Read --group APP.orders", "Read on group APP.orders"),
        ("--operation Read --operation Write --topic APP.orders.tasks", "Read on topic"),
    ],
)
def test_one_planned_right_less_ends_the_process_which_names_it(
    secured: Secured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    without: str,
    missing: str,
) -> None:
    soon = ConsumerDeadlines(denied_s=2.0)
    monkeypatch.setattr(worker_process, "Worker", partial(Worker, deadlines=soon))
    app, token = f"less-{secrets.token_hex(4)}", tmp_path / "token"
    token.write_text(unsecured_token(app, lasts_s=3600))
    env = secured.with_token(token)
    ours = Site(secured=secured, app=app, folder=tmp_path, target=Sink(NOWHERE), env=lambda _: env)
    secured.create(ours.topic)
    secured.run(ours.planned("--principal", f"User:{app}", "--process", "topics"))
    planned = ours.planned("--principal", f"User:{app}", "--process", "worker")
    left = [line for line in planned if not line.endswith(without.replace("APP", app))]
    assert len(left) == len(planned) - 1
    secured.run(left)
    asyncio.run(ours.apply())
    asyncio.run(send(secured, f"{app}.orders.commands", b"no command"))
    done = ours.command("worker", "worker", ours.file, "--slot", "0")
    assert done.exit_code == 77, done.output
    line = next(line for line in done.stderr.splitlines() if "surefoot: SF3093" in line)
    assert f"lacks {missing.replace('APP', app)}" in line
    assert "; grant it: kafka-acls --bootstrap-server" in line


async def test_a_topic_that_may_not_be_written_is_waited_for_or_costs_the_run_that_needs_it(
    secured: Secured, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(unsecured_token("carl", lasts_s=3600))
    env = secured.with_token(token)
    async with site(secured, "unwritable", tmp_path, lambda _: env) as ours:
        planned = ours.planned("--principal", "User:carl")
        (missing,) = [
            line for line in planned if "--operation Write --topic unwritable.dead" in line
        ]
        secured.run(line for line in planned if line != missing)
        await ours.apply()
        worker = ours.start("worker")
        await send(secured, "unwritable.orders.commands", b"no command")

        def named() -> bool:
            told = [str(each) for each in worker.events("commit_unknown")]
            return any("SF3093" in line and "lacks Write on topic" in line for line in told)

        await ours.until(named, what="the missing right to be named")
        secured.run([missing])
        await ours.until(lambda: worker.events("dead_letter"), what="the dead letter")
        await ours.until(lambda: worker.events("commit_settled"), what="its commit")
        # What only one run needs to write to costs that run, and not its partition.
        secured.create("unwritable.strangers.commands")
        await begin(secured, "unwritable", "abroad")
        await ours.until(lambda: worker.events("run_attention"), what="the run to be parked")
        (told,) = worker.events("run_attention")
        assert (told["run_id"], told["code"]) == ("abroad", "topic_denied")
        assert "cannot write to unwritable.strangers.commands" in told["error"]
        await begin(secured, "unwritable", "next")

        async def ended() -> bool:
            args = ("worker", "runs", "show", "orders", "next")
            return "completed" in (await asyncio.to_thread(ours.command, *args)).stdout

        await ours.until(ended, what="the next run to end")
