"""The events topic as somebody sees it who has kcat and does not know Avro."""

from __future__ import annotations

import asyncio
import subprocess
from datetime import datetime
from pathlib import Path

from surefoot import Agent, Context, Done, Next, Retry
from surefoot.state.records.encoding import start_out
from tests.support.cluster import cluster, headers_of
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT
from tests.support.required_programs import program

DOCS = Path(__file__).parents[3] / "docs"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
RUN = "order=1:a~b"


def printed() -> str:
    """The command on the pages, which is one."""
    pages = "\n".join((DOCS / name).read_text() for name in ("events.md", "operations.md"))
    lines = [line.strip() for line in pages.splitlines() if line.strip().startswith("kcat ")]
    (command,) = set(lines)
    assert len(lines) == 2
    return command


async def test_the_command_on_the_pages_shows_the_events_as_text(
    bootstrap: str, app: str, agent_name: str
) -> None:
    program("kcat")
    command = printed()
    agent = Agent(agent_name)

    @agent.step(start=True, retry=Retry(attempts=2, initial_s=0.01))
    async def first(ctx: Context, payload: str) -> Next:
        if ctx.attempt == 0:
            raise ValueError(payload)
        return Next(last, payload)

    @agent.step
    async def last(ctx: Context, payload: str) -> Done:
        return Done(payload)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        for example, ours in (
            ("localhost:9092", bootstrap),
            ("surefoot.triage.events", kafka.topics(agent).events),
        ):
            assert example in command
            command = command.replace(example, ours)
        await kafka.work(agent)
        start = start_out(
            app,
            kafka.settings.partitions,
            agent.name,
            RUN,
            '"größer"'.encode(),
            sent_ms=kafka.clock.now_ms(),
            traceparent=TRACE,
        )
        await kafka.send(start)
        await kafka.until_status(agent, RUN, "completed")

        async def shown() -> list[str]:
            """What kcat shows, once that is all; it gives up on a broker that takes its time."""
            done = await asyncio.to_thread(
                subprocess.run, ["bash", "-c", command], capture_output=True, check=False
            )
            lines = done.stdout.decode("utf-8").splitlines()
            return lines if "run.completed" in "".join(lines[-1:]) else []

        lines = await until(shown, what="kcat to show the run to its end")
        events = await kafka.events(agent)
        for record in await kafka.read(kafka.topics(agent).events):
            assert all(value.decode("utf-8") for value in headers_of(record).values())

    told = []
    for line, event in zip(lines, events, strict=True):
        key, _, pairs = line.partition(" ")
        headers = dict(pair.split("=", 1) for pair in pairs.split(","))
        assert key == headers["ce_subject"] == headers["sf-run"] == RUN
        assert headers["ce_source"] == f"/surefoot/{app}/{agent.name}"
        at = datetime.fromisoformat(headers["ce_time"])
        assert round(at.timestamp() * 1_000) == event["at_ms"]
        assert headers["traceparent"] == TRACE
        assert headers["content-type"] == "application/avro"
        assert headers["ce_specversion"] == "1.0"
        told.append((headers["ce_type"], headers["sf-seq"], headers["ce_id"]))
    assert [each[:2] for each in told] == [
        ("surefoot.run.started", "0"),
        ("surefoot.step.retrying", "0"),
        ("surefoot.step.completed", "0"),
        ("surefoot.run.completed", "1"),
    ]
    assert len({each[2] for each in told}) == len(told)
