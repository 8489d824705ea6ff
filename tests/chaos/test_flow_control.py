"""Limits on the runs of a key hold for all workers, also while they are killed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.chaos.processes.agents import queued
from tests.chaos.processes.lives import lives
from tests.support.cluster import cluster
from tests.support.long_deadlines import PATIENT

KEYS, EACH = 20, 10


async def test_queued_runs_of_many_keys_all_run_none_twice_and_no_two_of_a_key_at_a_time(
    bootstrap: str, app: str, tmp_path: Path
) -> None:
    async with (
        cluster(bootstrap, app, queued, partitions=4, drain_timeout_s=60.0, **PATIENT) as kafka,
        lives(kafka.settings, tmp_path, "http://127.0.0.1:9") as children,
    ):
        runs = []
        for n in range(EACH):
            for key in range(KEYS):
                payload = json.dumps({"key": key, "n": n}).encode()
                runs.append(queued.name_run(f"r{n}", payload))
                await kafka.start(queued, runs[-1], payload)
        first = await children.begin("queued")
        second = await children.begin("queued", slot=1)
        await kafka.until_status(queued, runs[:KEYS], "completed")
        first.process.kill()
        await first.ended()
        again = await children.begin("queued")
        await kafka.until_status(queued, runs, "completed")
        await kafka.check_history(queued)
        for life in (again, second):
            await life.ready()
            life.process.terminate()
            assert await life.ended() == 0

    # Each run has two steps; a run of a key begins when the one before it has ended.
    begun: Counter[str] = Counter()
    order: dict[str, list[str]] = {}
    for agent, run_id, seq, _ in [line[:4] for line in children.journal()]:
        assert agent == "queued"
        begun[f"{run_id} {seq}"] += 1
        who, _, name = run_id.partition("=")
        seen = order.setdefault(who, [])
        if name not in seen:
            seen.append(name)
        assert seen[-1] == name, f"{run_id} went on when {seen[-1]} had begun"
    assert order == {f"{key}": [f"r{n}" for n in range(EACH)] for key in range(KEYS)}
    twice = [step for step, times in begun.items() if times > 1]
    # What was under way when the second worker got its share, and in the process that was killed.
    assert len(twice) <= 2 * KEYS
