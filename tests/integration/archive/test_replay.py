"""Going through a stretch of an agent's partitions again, with the command that a user types."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from surefoot.schemas.codec.codec import decode
from surefoot.state.names.partitioner import partition_of
from surefoot.state.ports.log import ProducerRecord
from tests.integration.cli.test_cli_end_to_end import Cli
from tests.support.cluster import Cluster, cluster, names
from tests.support.long_deadlines import PATIENT
from tests.support.operable_agent import ops

AGENT = str(Path(__file__).parents[2] / "support" / "operable_agent.py")
COUNT = b'{"do": "count", "to": 2}'


@pytest.fixture
async def kafka(bootstrap: str, app: str) -> AsyncIterator[Cluster]:
    async with cluster(bootstrap, app, ops, **PATIENT) as made:
        yield made


@pytest.fixture
def cli(bootstrap: str, app: str, tmp_path: Path) -> Iterator[Cli]:
    env = {
        "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap,
        "SUREFOOT_APP": app,
        "SUREFOOT_PARTITIONS": "2",
    }
    cli = Cli(env, tmp_path)
    yield cli
    cli.close()


async def replayed(cli: Cli, *args: str, status: int = 0) -> list[str]:
    """The lines that `surefoot replay ops ...` prints; an owner has time to answer."""
    patient = () if "--wait" in args else ("--wait", "90")
    done: subprocess.CompletedProcess[str] = await asyncio.to_thread(
        cli.run, "replay", "ops", *args, *patient
    )
    assert done.returncode == status, done.stderr
    return done.stdout.splitlines()


def now() -> str:
    return datetime.now(UTC).isoformat()


async def finished(kafka: Cluster, *run_ids: str) -> None:
    for run_id in run_ids:
        await kafka.start(ops, run_id, COUNT)
    await kafka.until_status(ops, run_ids, "completed")


async def written(kafka: Cluster) -> dict[str, int]:
    """How many records each topic of the agent has."""
    topics = kafka.topics(ops)
    wanted = (topics.commands, topics.tasks, topics.events)
    return {topic: len(await kafka.read(topic)) for topic in wanted}


async def effects(kafka: Cluster) -> Counter[str]:
    """How often each effect has been asked for, by its key."""
    records = await kafka.read(kafka.topics("outbox").commands)
    return Counter(decode(record.value, "Command")[1]["run_id"] for record in records)


async def test_finished_work_is_skipped_and_lost_work_is_done(kafka: Cluster, cli: Cli) -> None:
    begun = now()
    worker = await kafka.work(ops)
    await finished(kafka, "r1", "r2", "r3", "lost")
    await worker.drain()
    # somebody deletes the record of a run, and with it all that is known of it
    state = kafka.topics(ops).state
    await kafka.send(ProducerRecord(state, partition_of("lost", 2), b"lost", None))
    await kafka.work(ops)
    before = await written(kafka)
    told = await replayed(cli, "--from", begun, "--dry-run")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in told[1:-1]}
    assert rows == {
        "r1": "completed skipped: the run is over",
        "r2": "completed skipped: the run is over",
        "r3": "completed skipped: the run is over",
        "lost": "unknown started: the run does not exist yet",
    }
    assert told[-1] == "dry run: 12 records of 4 runs: 1 done, 3 skipped; nothing was written"
    assert await written(kafka) == before
    told = await replayed(cli, "--from", begun, "--id", "again")
    assert told == ["replay again: 12 records appended, of 4 runs: 1 done, 3 skipped"]
    await kafka.until_status(ops, "lost", "completed")
    for run_id, times in (("r1", 1), ("r2", 1), ("r3", 1), ("lost", 2)):
        assert names(await kafka.events(ops, run_id)).count("run.completed") == times
    again = {key for key, count in (await effects(kafka)).items() if count > 1}
    assert again == {f"ops:lost:{seq}:0" for seq in (1, 2)}  # which the outbox has had


async def test_a_stretch_of_offsets_of_one_partition(kafka: Cluster, cli: Cli) -> None:
    await kafka.work(ops)
    home = 1
    runs = [kafka.run_on(home, f"r{number}-") for number in range(3)]
    await finished(kafka, *runs, kafka.run_on(0))
    before = await kafka.read(kafka.topics(ops).commands)
    copied = [record for record in before if record.partition == home][1:3]
    args = ("--partition", str(home), "--topic", "commands", "--from", str(copied[0].offset))
    told = await replayed(cli, *args, "--to", str(copied[1].offset + 1))
    assert told[-1].endswith("2 records appended, of 2 runs: 0 done, 2 skipped")
    after = await kafka.read(kafka.topics(ops).commands)
    new = [record for record in after if record.partition == home][-2:]
    assert [(r.key, r.value) for r in new] == [(r.key, r.value) for r in copied]
    assert len(after) == len(before) + 2
    await kafka.check_history(ops)
    refused = await asyncio.to_thread(
        cli.run, "replay", "ops", "--partition", "1", "--from", "1000000"
    )
    assert refused.returncode == 2
    assert "has offsets 0 to" in refused.stderr


@pytest.mark.parametrize("sent", ["suppress", "re-emit"])
async def test_runs_are_run_again_from_before_a_step(kafka: Cluster, cli: Cli, sent: str) -> None:
    await kafka.work(ops)
    await finished(kafka, "untouched")
    begun = now()
    await finished(kafka, "r1", "r2")
    keys = await effects(kafka)
    args = ("--from", begun, "--mode", "rerun", "--step", "count", "--effects", sent)
    before = await written(kafka)
    told = await replayed(cli, *args, "--dry-run")
    assert told[-1] == "dry run: 2 runs: 2 rewound, 0 skipped; nothing was written"
    assert "before step 'count', in epoch 1" in told[1]
    assert await written(kafka) == before
    told = await replayed(cli, *args, "--id", "fix-7")
    assert told == ["replay fix-7: 2 runs: 2 rewound, 0 skipped, 0 refused, 0 without an answer"]
    for run_id in ("r1", "r2"):
        await kafka.until_status(ops, run_id, "completed")
        events = await kafka.events(ops, run_id)
        again = [event for event in events if event["epoch"] == 1]
        assert names(again) == ["run.rewound", "step.completed", "run.completed"]
        assert (again[0]["by"], again[0]["seq"]) == ("replay fix-7", 1)
        checkpoint = await kafka.checkpoint(ops, run_id)
        assert checkpoint is not None
        assert checkpoint["result"] == b'["line 1","line 2"]'
    assert names(await kafka.events(ops, "untouched")).count("run.completed") == 1
    # the outbox knows a key that it has had; only new keys are sent again
    new = (await effects(kafka)).keys() - keys.keys()
    assert len(new) == (0 if sent == "suppress" else 4)
    told = await replayed(cli, *args, "--id", "fix-7")
    assert told == ["replay fix-7: 2 runs: 0 rewound, 2 skipped, 0 refused, 0 without an answer"]


async def test_a_rerun_without_an_owner_says_which_runs_gave_no_answer(
    kafka: Cluster, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = now()
    worker = await kafka.work(ops)
    await finished(kafka, "r1")
    await worker.drain()
    args = ("--from", begun, "--mode", "rerun", "--id", "fix-8")
    told = await replayed(cli, *args, "--wait", "2", status=3)
    assert told[-1].endswith("0 rewound, 0 skipped, 0 refused, 1 without an answer")
    await kafka.work(ops)
    told = await replayed(cli, *args)
    assert told[-1].endswith("0 refused, 0 without an answer")
    await kafka.until_status(ops, "r1", "completed")
    assert names(await kafka.events(ops, "r1")).count("run.rewound") == 1


async def test_what_has_expired_is_told(kafka: Cluster, cli: Cli) -> None:
    begun = now()
    await kafka.work(ops)
    runs = [kafka.run_on(0, name) for name in ("a", "b", "c")]
    for run_id in runs:
        await finished(kafka, run_id)
    topics = kafka.topics(ops)
    await kafka.delete_before(topics.commands, 0, 2)
    done = await asyncio.to_thread(cli.run, "replay", "ops", "--from", begun, "--dry-run")
    assert done.returncode == 0
    told = [line for line in done.stderr.splitlines() if "expired" in line]
    assert told == [
        "surefoot: partition 0 of commands begins at offset 2; earlier records have expired"
    ]
    await kafka.delete_before(topics.events, 0, -1)
    refused = await asyncio.to_thread(cli.run, "runs", "rewind", "ops", runs[0], "--to", "1")
    assert refused.returncode == 1
    assert "no_such_version" in refused.stderr
    assert "have expired" in refused.stderr
    told = await replayed(cli, "--from", begun, "--mode", "rerun")
    assert told[-1].endswith("3 runs: 0 rewound, 3 skipped, 0 refused, 0 without an answer")
