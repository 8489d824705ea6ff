"""How long a webhook's sender waits for its 202: signed deliveries of GitHub's kind at a fixed
rate, whatever the gateway makes of them, to one gateway process.

From when a delivery was due, so that one that had to wait for those before it counts in full. The
sender is this process, and shares the machine with gateway and broker.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from benchmarks.site import cpu_s, process, quantile, until_ready
from surefoot import Agent, Context, Done, Webhook
from surefoot.infra.broker.config import free_ports
from surefoot.infra.kafka_client.topics import Topics, specs_for
from surefoot.infra.runtime.settings import Settings

FILE = Path(__file__).resolve()
AGENT = "hooked"
SECRET = "benchmarks-are-known-to-all"  # noqa: S105  (of a gateway on loopback, while it is measured)
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
#: connections, each with one delivery at a time
_SENDERS = 64

agent = Agent(AGENT)


@agent.webhook("github", event="issues")
def opened(delivery: Webhook) -> str:
    return str(delivery.json["issue"]["title"])


@agent.step
async def read(ctx: Context, title: str) -> Done:  # noqa: ARG001  (a step takes both)
    return Done()


async def measure(
    settings: Settings, *, rate: int, seconds: float, broker_pid: int | None
) -> dict[str, Any]:
    """Milliseconds to the answer, of all deliveries after the first second; and milliseconds of CPU
    that each process has used for one. Those of a gateway that falls behind are fewer: what waits
    together goes to the broker together."""
    async with Topics(settings) as topics:
        await topics.apply(specs_for([AGENT], settings))
    (port,) = free_ports(1)
    args = ["surefoot", "gateway", str(FILE)]
    extra = {
        "SUREFOOT_GATEWAY_PORT": str(port),
        "SUREFOOT_WEBHOOK_GITHUB_SECRET": SECRET,
    }
    with process(args, settings, extra) as gateway:
        await until_ready(port, gateway)
        pids = {"": gateway.pid, "sender_": os.getpid(), "broker_": broker_pid}
        watched = {name: pid for name, pid in pids.items() if pid is not None}
        before_s = {name: cpu_s(pid) for name, pid in watched.items()}
        answers = await _send(port, rate, round(rate * seconds))
        gateway.check()
        used_s = {name: cpu_s(pid) - before_s[name] for name, pid in watched.items()}
    counted = [took_ms for _, took_ms in answers[rate:]]
    refused = sum(status != 202 for status, _ in answers)  # noqa: PLR2004
    return {
        "rate": rate,
        "deliveries": len(counted),
        "not_202": refused,
        "ms_p50": quantile(counted, 0.5),
        "ms_p99": quantile(counted, 0.99),
        "ms_max": max(counted),
        **{f"{name}cpu_ms": each_s * 1000 / len(answers) for name, each_s in used_s.items()},
    }


async def _send(port: int, rate: int, count: int) -> list[tuple[int, float]]:
    """(status, milliseconds) of each, in the order in which they were due. Written to sockets as it
    stands: an HTTP client of Python's would be what is measured."""
    body = json.dumps({"action": "opened", "issue": {"title": "It crashes", "body": "x" * 6_000}})
    content = body.encode()
    signature = hmac.new(SECRET.encode(), content, hashlib.sha256).hexdigest()
    head = (
        "POST /webhooks/github HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nX-GitHub-Event: issues\r\n"
        f"X-Hub-Signature-256: sha256={signature}\r\nX-GitHub-Delivery: d-"
    ).encode()
    answers: list[tuple[int, float]] = [(0, 0.0)] * count
    left = iter(range(count))
    begin_s = time.perf_counter()

    async def send_on() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in left:
            due_s = begin_s + number / rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            writer.write(b"%b%d\r\n\r\n%b" % (head, number, content))
            told = await reader.readuntil(b"\r\n\r\n")
            length = int(_LENGTH.search(told)[1])  # type: ignore[index]
            await reader.readexactly(length)
            answers[number] = (int(told[9:12]), (time.perf_counter() - due_s) * 1000)
        writer.close()

    await asyncio.gather(*(send_on() for _ in range(_SENDERS)))
    return answers
