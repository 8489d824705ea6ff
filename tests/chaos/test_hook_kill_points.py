"""What makes webhooks is killed at points of its commits: each event stays one webhook."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from standardwebhooks import Webhook

from surefoot import Retry
from surefoot.consumers.builtin.outbox import HttpDelivery, outbox_agent
from surefoot.consumers.builtin.signing import signers_of
from surefoot.consumers.builtin.webhooks_out import WebhookDelivery
from surefoot.infra.http.deliver import HttpDeliver
from surefoot.infra.processes.webhooks_out import new_secret
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import decode
from surefoot.state.declare.agent import Agent
from surefoot.state.egress.policy import parse_allowed
from tests.chaos.processes.agents import JOURNAL
from tests.chaos.processes.hook_child import telling
from tests.chaos.processes.lives import ROOT, Life
from tests.support.cluster import Cluster, cluster
from tests.support.effect_target import Reply, sink
from tests.support.long_deadlines import PATIENT

POINTS = ("all-sent", "offsets-sent", "end-written")
RUNS = 8


def relay(secret: str) -> Agent:
    clock, deliver = SystemClock(), HttpDeliver(parse_allowed("127.0.0.1"), timeout_s=90.0)
    quick = Retry(attempts=5, initial_s=0.05, max_s=0.1)
    return outbox_agent(
        HttpDelivery(deliver, clock),
        WebhookDelivery(deliver, clock, signers_of({"crm": [secret]}), retry=quick),
    )


async def begin(settings: Settings, url: str, folder: Path, at: str | None) -> Life:
    log_path = folder / f"{at}.log"
    set_here = settings.model_dump(exclude_unset=True, exclude_none=True)
    env = {f"SUREFOOT_{name.upper()}": str(value) for name, value in set_here.items()}
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.chaos.processes.hook_child",
            url,
            *(["--at", at] if at else []),
            cwd=ROOT,
            stderr=log,
            env={**os.environ, **env, JOURNAL: str(folder / "journal")},
        )
    return Life(process=process, log_path=log_path, agents=())


async def wanted(kafka: Cluster) -> list[str]:
    """Ids of the webhooks that the history asks for."""
    found = []
    for record in await kafka.read(kafka.topics("shop").events):
        event = decode(record.value or b"", "Event")[1]
        if event["type"] == "run.completed" and int(event["result"] or b"") % 2 == 0:
            found.append(f"shop-{record.partition}-{record.offset}-{event['at_ms']}")
    return found


async def test_killed_at_any_point_each_event_is_told_of_once_and_is_what_was_signed(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    secret = new_secret()
    async with sink() as target:
        url = f"{target.url}/hook"
        target.script = {"/hook": [Reply(500), Reply(302, {"Location": "http://169.254.169.254"})]}
        agent = telling(url)
        async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
            await kafka.work(agent)
            await kafka.work(relay(secret))
            runs: list[str] = []
            for point in (*POINTS, None):
                new = [f"run-{len(runs) + n}" for n in range(RUNS)]
                for run_id in new:
                    await kafka.start(agent, run_id, run_id[4:].encode())
                runs += new
                await kafka.until_status(agent, new, "completed")
                life = await begin(kafka.settings, url, tmp_path, point)
                try:
                    if point is not None:
                        assert await life.ended() == -signal.SIGKILL, life.log_path.read_text()
                        continue
                    ids = await wanted(kafka)
                    assert len(ids) == len(runs) // 2
                    deliveries = [f"{id_}:crm" for id_ in ids]
                    await kafka.until_status("outbox", deliveries, "completed")
                    life.process.terminate()
                    assert await life.ended() == 0
                finally:
                    if life.process.returncode is None:
                        life.process.kill()
                        await life.process.wait()
            commands = await kafka.read(kafka.topics("outbox").commands)
            made = Counter((record.key or b"").decode() for record in commands)
            assert made == Counter(deliveries)
    asked = Counter(request.key for request in target.book)
    assert sorted(asked.elements()) == sorted([*ids, target.book[0].key, target.book[1].key])
    for request in target.book:
        assert Webhook(secret).verify(request.body, request.headers)["data"]["result"] % 2 == 0
    assert (tmp_path / "journal").read_text().splitlines() == [f"bitten {p}" for p in POINTS]
