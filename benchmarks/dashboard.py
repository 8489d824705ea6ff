"""How soon a page of the dashboard shows something, and how soon what it is for.

One gateway process on an agent that has many runs, one of which has as many events; in headless
Chromium, on the same machine, each time with an empty cache. From the navigation to the first paint
of content, and to when the page's rows are there.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from playwright.async_api import Browser

from benchmarks.records import AGENT, run_name
from benchmarks.site import create_topics, process, producer, quantile, until_ready
from surefoot.infra.broker.config import free_ports
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.state.machine.model import EventRecord, Run
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.encoding import Wire
from tests.support.browser import chromium

_KNOWN_S = 300.0
#: pages by their address, and what they are for
_PAGES = {
    "now": "main svg",
    "runs": "main tbody tr:nth-child(100)",
    f"run?agent={AGENT}&id={run_name(0)}": "ol.steps > li:nth-child(100)",
}
_PAINTED = """() => {
    const [entry] = performance.getEntriesByName("first-contentful-paint");
    return entry?.startTime ?? null;
}"""
_THERE = "shown => document.querySelector(shown) === null ? null : performance.now()"


async def measure(settings: Settings, *, runs: int, looks: int) -> list[dict[str, Any]]:
    """A row a page; each page is opened so often."""
    await create_topics(settings)
    await _write(settings, runs)
    (port,) = free_ports(1)
    args = ["surefoot", "gateway", "benchmarks/agents.py"]
    extra = {"SUREFOOT_GATEWAY_PORT": str(port)}
    with process(args, settings, extra) as gateway:
        await until_ready(port, gateway)
        await _until_known(port, runs)
        async with chromium() as browser:
            found = [
                (page, [await _look(browser, port, page) for _ in range(looks)]) for page in _PAGES
            ]
        gateway.check()
    return [
        {
            "page": page.partition("?")[0],
            "runs": runs,
            "looks": looks,
            "painted_ms_p50": quantile([painted for painted, _ in times], 0.5),
            "painted_ms_max": max(painted for painted, _ in times),
            "rows_ms_p50": quantile([there for _, there in times], 0.5),
            "rows_ms_max": max(there for _, there in times),
        }
        for page, times in found
    ]


async def _look(browser: Browser, port: int, page: str) -> tuple[float, float]:
    context = await browser.new_context(base_url=f"http://127.0.0.1:{port}/ui/")
    try:
        tab = await context.new_page()
        await tab.goto(page, wait_until="commit")
        there = await tab.wait_for_function(_THERE, arg=_PAGES[page])
        painted = await tab.wait_for_function(_PAINTED)
        return float(await painted.json_value()), float(await there.json_value())
    finally:
        await context.close()


async def _until_known(port: int, runs: int) -> None:
    """The gateway has read the state of all."""
    async with httpx.AsyncClient() as client, asyncio.timeout(_KNOWN_S):
        while True:
            answer = await client.get(f"http://127.0.0.1:{port}/runs/{AGENT}", params={"limit": 1})
            if answer.json().get("matches") == runs:
                return
            await asyncio.sleep(0.1)


async def _write(settings: Settings, runs: int) -> None:
    wire = Wire(settings.app, AgentTopics(settings.app, AGENT), settings.partitions)
    now_ms = SystemClock().now_ms()
    async with producer(settings, linger_ms=5, max_batch_size=262_144) as client:

        async def write(out: ProducerRecord) -> None:
            await client.send(out.topic, out.value, out.key, out.partition)

        for number in range(runs):
            run_id = run_name(number)
            home = partition_of(run_id, settings.partitions)
            run = Run(
                run_id=run_id,
                agent=AGENT,
                version=1,
                status="completed",
                seq=2,
                step="work",
                attempt=0,
                payload=b"",
                created_ms=now_ms - 9,
                updated_ms=now_ms,
                input_digest=b"",
            )
            await write(wire.checkpoint(run, 1, (), home))
            event = EventRecord(
                run_id=run_name(0),
                agent=AGENT,
                version=1,
                type="step.completed",
                status="running",
                seq=number,
                step="work",
                next_step="work",
                at_ms=now_ms,
                started_ms=now_ms - 5,
                payload=b'"tea"',
            )
            first = partition_of(run_name(0), settings.partitions)
            await write(wire.out(event, run_name(0), first, (), now_ms))
        await client.flush()
