"""A run goes on without its tasks being read, and whoever takes it over reads them."""

from __future__ import annotations

from surefoot.infra.kafka.log import KafkaLog
from surefoot.state.ports.log import ConsumerRecord, InputKind
from tests.integration.engine.test_engine import chain
from tests.support.cluster import Watched, cluster, headers_of, names
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT

STEPS = 5


class Withheld:
    """The tasks that a worker has fetched, kept from it until they are released."""

    def __init__(self, log: KafkaLog) -> None:
        self.records: list[tuple[InputKind, ConsumerRecord]] = []
        self.released = False
        self._poll, self._positions = log.poll, log.positions
        log.poll = self._poll_others  # type: ignore[method-assign]
        log.positions = self._positions_of_others  # type: ignore[method-assign]

    async def _poll_others(self, timeout_s: float) -> list[tuple[InputKind, ConsumerRecord]]:
        found = [*self.records, *await self._poll(timeout_s)]
        self.records = [] if self.released else [each for each in found if each[0] == "tasks"]
        return [each for each in found if each not in self.records]

    async def _positions_of_others(self, partition: int) -> dict[InputKind, int]:
        found = await self._positions(partition)
        return {kind: at for kind, at in found.items() if kind != "tasks" or self.released}


async def test_a_run_goes_on_while_its_tasks_are_withheld_and_offsets_wait_for_them(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = chain(agent_name, STEPS)
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(agent)
        withheld = Withheld(running.log)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "completed")
        topics = kafka.topics(agent)
        tasks = await kafka.read(topics.tasks)
        results = (await kafka.read(topics.events))[1:]  # the first one is the start
        assert names(await kafka.events(agent, "r"))[1:] == ["step.completed"] * 4 + [
            "run.completed"
        ]
        assert [headers_of(each)["sf-src"].decode() for each in results] == [
            f"{topics.commands}/0/0",
            *(f"{topics.tasks}/0/{task.offset}" for task in tasks),
        ]
        await until(lambda: len(withheld.records) == len(tasks), what="the tasks to be fetched")
        assert (await kafka.committed(agent))["tasks", 0] == 0
        withheld.released = True

        async def passed() -> bool:
            return bool((await kafka.committed(agent))["tasks", 0] > tasks[-1].offset)

        await until(passed, what="the offsets to pass the tasks")
        assert len(await kafka.events(agent, "r")) == STEPS + 1
        await kafka.check_history(agent)


async def test_who_takes_over_a_run_whose_tasks_were_never_read_begins_at_its_last_one(
    bootstrap: str, app: str, agent_name: str
) -> None:
    watched = Watched(agent_name, steps=STEPS)
    watched.hold("r", 3, on="first")
    first = watched.on("first")
    async with cluster(bootstrap, app, first, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(first)
        Withheld(running.log)
        await kafka.start(first, "r")
        await until(lambda: watched.times("r", 3), what="the fourth step to begin")
        await running.vanish()
        await kafka.work(watched.on("second"))
        await kafka.until_status(first, "r", "completed")
        assert watched.begun == [
            *(("first", "r", seq) for seq in range(4)),
            *(("second", "r", seq) for seq in (3, 4)),
        ]
        results = (await kafka.read(kafka.topics(first).events))[1:]
        tasks = await kafka.read(kafka.topics(first).tasks)
        assert [headers_of(each)["sf-src"].decode() for each in results[1:]] == [
            f"{task.topic}/0/{task.offset}" for task in tasks
        ]
        await kafka.check_history(first)
