"""What the engine's safety rules are for: with one taken out, the checker finds what it prevents.

The same faults do no harm with the rule in its place. See
tests/chaos/faults/disabled_rules.py for the rules, and
tests/checker for what is found, by name: it reads the topics with another client, and the broker's
files, and knows nothing of the engine.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.chaos.faults.networked import Networked
from tests.chaos.faults.proxy import Api
from tests.chaos.processes.agents import BURST, adder, bulky, chain
from tests.chaos.processes.lives import lives
from tests.checker import Sample, check
from tests.checker.kafka import read_history, read_offsets
from tests.support.cluster import Cluster, cluster
from tests.support.eventually import until

#: nobody listens there
NOWHERE = "http://127.0.0.1:9"
SHORT = {
    "heartbeat_interval_ms": 200,
    "producer_request_timeout_ms": 4_000,
    "transaction_timeout_ms": 5_000,
    "session_timeout_ms": 6_000,
    "rebalance_timeout_ms": 8_000,
}
#: of a worker that nobody else takes over from: what is held up is soon sent again, and no stall of
#: the machine ends its session or its transaction
PATIENT = SHORT | {
    "producer_request_timeout_ms": 3_000,
    "transaction_timeout_ms": 60_000,
    "session_timeout_ms": 70_000,
    "rebalance_timeout_ms": 80_000,
}


async def broken(networked: Networked, kafka: Cluster, samples: Sequence[Sample] = ()) -> set[str]:
    """What the independent checker finds broken; samples: offsets that were seen before."""
    history = await asyncio.to_thread(
        read_history, networked.direct, kafka.settings.app, data=networked.data, at_rest=False
    )
    history = replace(history, samples=[*samples, *(history.samples or ())])
    return {violation.invariant for violation in check(history, {})}


# A new owner fences the former one before it reads anything (R1) --------------------------------


async def commit_during_takeover(
    networked: Networked, kafka: Cluster, folder: Path, *, without: str | None
) -> None:
    """A frozen worker wakes up and commits when its successor is about to fence it."""
    producer = kafka.topics(chain).transactional_id(0)

    async def steps() -> int:
        checkpoint = await kafka.checkpoint(chain, "r1")
        return 0 if checkpoint is None else int(checkpoint["seq"])

    async with (
        networked.network() as net,
        lives(networked.behind(kafka.settings), folder, NOWHERE) as children,
    ):
        await kafka.start(chain, "r1")
        old = await children.begin("chain", at="before-begin", signal="STOP", patient=True)
        await old.frozen()
        fence = net.arm("hold", Api.INIT_PRODUCER_ID, producer, times=1_000)
        await children.begin("chain", slot=1, without=without, patient=True)
        await fence.fired()
        before = await steps()
        old.process.send_signal(signal.SIGCONT)

        async def committed() -> bool:
            return await steps() > before

        await until(committed, what="the old worker's commit")
        old.process.kill()  # it would go on, and might end the run
        await old.ended()
        fence.release()
        # Whatever the successor had decided is committed, or refused, when a later run is over.
        await kafka.start(chain, "r2")
        await kafka.until_status(chain, ("r1", "r2"), "completed")


async def test_an_owner_that_reads_before_it_fences_does_again_what_was_done(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, chain, partitions=1, **SHORT) as kafka:
        await commit_during_takeover(networked, kafka, tmp_path, without="R1")
        assert await broken(networked, kafka) >= {"I2", "I3"}


async def test_an_owner_that_fences_first_goes_on_from_the_last_commit_of_the_former(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, chain, partitions=1, **SHORT) as kafka:
        await commit_during_takeover(networked, kafka, tmp_path, without=None)
        assert await broken(networked, kafka) == set()


# A producer whose EndTxn or TxnOffsetCommit was sent more than once is retired (R2) --------------


async def late_commit(
    networked: Networked, kafka: Cluster, folder: Path, *, without: str | None
) -> None:
    """The EndTxn of the first step arrives between two Produce requests of the second step's
    transaction. It was sent again in the meantime, and what it was for is long committed."""
    producer = kafka.topics(bulky).transactional_id(0)
    async with (
        networked.network() as net,
        lives(networked.behind(kafka.settings), folder, NOWHERE) as children,
    ):
        late = net.arm("hold", Api.END_TXN, producer)
        rest = net.arm("hold", Api.PRODUCE, producer, min_bytes=100_000, skip=1)
        await kafka.start(bulky, "r1")
        await children.begin("bulky", without=without)
        await rest.fired()
        assert late.fired_s
        late.release()
        await late.bitten()
        rest.release()
        await rest.bitten()
        await kafka.until_status(bulky, "r1", "completed")
        # Whatever has to be mended has been when the next one is committed.
        await kafka.start(bulky, "r2")
        await kafka.until_status(bulky, "r2", "completed")


async def test_a_commit_that_arrives_late_tears_the_next_transaction_of_its_epoch(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    """KAFKA-17754: a decision is taken for committed, and some of its records never are."""
    async with cluster(networked.direct, app, bulky, partitions=1, **PATIENT) as kafka:
        await late_commit(networked, kafka, tmp_path, without="R2")
        assert len(await kafka.effects()) < 2 * BURST
        assert await broken(networked, kafka) >= {"I4", "I12"}


async def test_a_commit_that_arrives_late_finds_its_epoch_over(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, bulky, partitions=1, **PATIENT) as kafka:
        await late_commit(networked, kafka, tmp_path, without=None)
        assert len(await kafka.effects()) == 2 * BURST
        assert await broken(networked, kafka) == set()


async def late_offsets(
    networked: Networked, kafka: Cluster, folder: Path, *, without: str | None
) -> list[Sample]:
    """The offsets of the first run's transaction arrive when those of the last run are in, and only
    the commit is left. Returns the group's offsets before that."""
    producer = kafka.topics(adder).transactional_id(0)
    async with (
        networked.network() as net,
        lives(networked.behind(kafka.settings), folder) as children,
    ):
        late = net.arm("hold", Api.TXN_OFFSET_COMMIT, producer)
        life = await children.begin("adder", without=without)
        await life.ready()
        await kafka.start(adder, "r1")
        await kafka.until_status(adder, "r1", "completed")
        assert late.fired_s
        await kafka.start(adder, "r2")
        await kafka.until_status(adder, "r2", "completed")
        app = kafka.settings.app
        before = await asyncio.to_thread(read_offsets, networked.direct, app)
        end = net.arm("hold", Api.END_TXN, producer)
        await kafka.start(adder, "r3")
        await end.fired()
        late.release()
        await late.bitten()
        end.release()
        await kafka.until_status(adder, "r3", "completed")
        return before


async def test_offsets_that_arrive_late_set_the_group_back(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, adder, partitions=1, **PATIENT) as kafka:
        before = await late_offsets(networked, kafka, tmp_path, without="R2")
        assert await broken(networked, kafka, before) == {"I7"}


async def test_offsets_that_arrive_late_find_their_epoch_over(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, adder, partitions=1, **PATIENT) as kafka:
        before = await late_offsets(networked, kafka, tmp_path, without=None)
        assert await broken(networked, kafka, before) == set()


# Everything is read committed (R3) --------------------------------------------------------------


async def takeover_of_an_aborted_step(
    networked: Networked, kafka: Cluster, folder: Path, *, without: str | None
) -> None:
    """A worker dies with the records of a step written and not committed."""
    async with lives(kafka.settings, folder, NOWHERE) as children:
        await kafka.start(chain, "r1")
        first = await children.begin("chain", at="all-sent", skip=1)
        assert await first.ended() == -signal.SIGKILL
        assert ["bitten", "all-sent"] in children.journal()
        await children.begin("chain", without=without)
        await kafka.until_status(chain, "r1", "completed")


async def test_a_step_that_follows_an_aborted_one_has_no_predecessor(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, chain, partitions=1, **PATIENT) as kafka:
        await takeover_of_an_aborted_step(networked, kafka, tmp_path, without="R3")
        assert await broken(networked, kafka) >= {"I2", "I6"}


async def test_a_step_that_was_aborted_is_done_again(
    networked: Networked, app: str, tmp_path: Path
) -> None:
    async with cluster(networked.direct, app, chain, partitions=1, **PATIENT) as kafka:
        await takeover_of_an_aborted_step(networked, kafka, tmp_path, without=None)
        assert await broken(networked, kafka) == set()
