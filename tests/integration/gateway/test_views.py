"""Views on both logs: a Faust app on Kafka, SQLite beside an embedded log; one suite for the two.

Events are written as owners write them; what a worker's own events come to is compared with what
the state topic says.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from surefoot import Agent, Context, Done
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.views.http import HttpViews
from surefoot.infra.views.shard import Shard
from surefoot.infra.writers.commands import LogCommands
from surefoot.schemas.codec.codec import encode
from surefoot.state.errors import Unavailable
from surefoot.state.machine import model
from surefoot.state.machine.model import EventRecord, jsonable
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.reading import statistics as projections
from tests.integration.cli.test_cli_end_to_end import Cli
from tests.support.cluster import QUICK
from tests.support.eventually import until
from tests.support.free_ports import unused_port
from tests.support.long_deadlines import LONG_S, PATIENT
from tests.support.servers import asked, served_views
from tests.unit.state.test_statistics import Kept

PARTITIONS = 2


@dataclass
class Views:
    """One instance of the service."""

    url: str
    shard: Shard
    client: httpx.AsyncClient

    async def get(self, view: str, **query: Any) -> Any:
        answer = await self.client.get(f"/views/{self.shard.agent}/{view}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def when(self, view: str, true: Callable[[Any], Any], **query: Any) -> Any:
        """The first answer of which that is true; none is taken from a view that cannot answer."""

        async def looked() -> Any:
            answer = await self.client.get(f"/views/{self.shard.agent}/{view}", params=query)
            assert answer.status_code in (200, 503), answer.text
            found = answer.json() if answer.status_code == 200 else None
            return found if found is not None and true(found) else None

        return await until(looked, what=f"{view} to be so")

    async def level(self, events: int) -> Any:
        """The summary, once these many runs are in it and nothing is missing."""
        return await self.when("summary", lambda s: runs_in(s) == events and not s["lag"]["events"])

    async def digests(self) -> Any:
        answer = await self.client.get(f"/parts/{self.shard.agent}/digest")
        assert answer.status_code == 200, answer.text
        return answer.json()["part"]


def runs_in(summary: Mapping[str, Any]) -> int:
    return sum(told["runs"] for told in summary["statuses"].values())


class Site:
    """An agent's topics on one log or the other, and services of its views."""

    def __init__(self, settings: Settings, backend: Backend, agent: str, folder: Path) -> None:
        self.settings = settings
        self.agent = agent
        self.topics = AgentTopics(settings.app, agent)
        self._backend = backend
        self._appender = backend.appender()
        self._folder = folder
        self.now_ms = SystemClock().now_ms()

    async def write(self, kind: Any, run_id: str, status: Any, **fields: Any) -> None:
        await self._appender.append(self.out(kind, run_id, status, **fields), "it", deadline_s=90)

    def out(self, kind: Any, run_id: str, status: Any, **fields: Any) -> ProducerRecord:
        record = EventRecord(
            type=kind,
            run_id=run_id,
            agent=self.agent,
            version=1,
            status=status,
            seq=0,
            **{"at_ms": self.now_ms} | fields,
        )
        value = encode("Event", jsonable(record))
        home = partition_of(run_id, self.settings.partitions)
        return ProducerRecord(self.topics.events, home, run_id.encode(), value, ())

    @asynccontextmanager
    async def serving(self, name: str = "one") -> AsyncIterator[Views]:
        settings = self.settings.model_copy(update={"views_dir": self._folder / name})
        async with (
            served_views(self.agent, settings, self._backend) as (url, shard),
            httpx.AsyncClient(base_url=url, timeout=90) as client,
        ):
            yield Views(url, shard, client)

    async def lose(self) -> None:
        """All that is kept of the views."""
        if self.settings.embedded_path is not None:
            for each in self.settings.embedded_path.parent.glob("*.views.db*"):
                each.unlink()
            return
        shutil.rmtree(self._folder)
        admin = AIOKafkaAdminClient(bootstrap_servers=self.settings.bootstrap_servers)
        await admin.start()
        await admin.delete_topics([self.topics.views_changelog])
        await until(
            lambda: _is_gone(admin, self.topics.views_changelog), what="the changelog to be gone"
        )
        await admin.close()

    async def close(self) -> None:
        await self._appender.stop()


async def _is_gone(admin: AIOKafkaAdminClient, topic: str) -> bool:
    return topic not in await admin.list_topics()


@asynccontextmanager
async def made(settings: Settings, agent: str, folder: Path) -> AsyncIterator[Site]:
    async with open_backend(settings, SystemClock(), owner=True) as backend:
        async with backend.topics() as topics:
            await topics.apply(specs_for([agent], settings))
        site = Site(settings, backend, agent, folder)
        yield site
        await site.close()


def on_kafka(bootstrap: str, app: str, **settings: Any) -> Settings:
    return load_settings(
        **{
            **QUICK,
            "bootstrap_servers": bootstrap,
            "app": app,
            "partitions": PARTITIONS,
            "views_port": 0,
            "instance": app,
            **settings,
        }
    )


@pytest.fixture(params=["kafka", "embedded"])
async def site(
    request: pytest.FixtureRequest, app: str, agent_name: str, tmp_path: Path
) -> AsyncIterator[Site]:
    if request.param == "kafka":
        settings = on_kafka(request.getfixturevalue("bootstrap"), app)
    else:
        settings = load_settings(
            log=f"sqlite:///{tmp_path}/runs.db", app=app, partitions=PARTITIONS, views_port=0
        )
    async with made(settings, agent_name, tmp_path / "views") as it:
        yield it


@pytest.fixture
async def kafka_site(
    bootstrap: str, app: str, agent_name: str, tmp_path: Path
) -> AsyncIterator[Site]:
    async with made(on_kafka(bootstrap, app), agent_name, tmp_path / "views") as it:
        yield it


async def a_day(site: Site, names: str = "abcdef") -> None:
    """Of both partitions: half are over, one has failed an attempt, one asks a person."""
    for name in names:
        await site.write("run.started", name, "running")
    for name in names[::2]:
        await site.write(
            "run.completed", name, "completed", step="work", started_ms=site.now_ms - 9
        )
    await site.write("step.retrying", names[1], "waiting", step="work", started_ms=site.now_ms - 90)
    wait = model.WaitState(kind="approval", since_ms=site.now_ms, question="q1")
    await site.write("step.completed", names[3], "waiting", step="work", wait=wait)


async def test_views_tell_what_the_events_say_and_how_far_behind_they_are(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.serving() as views:
        await a_day(site)
        summary = await views.level(6)
        assert summary["lag"] == {"events": 0, "ms": 0}
        assert {s: told["runs"] for s, told in summary["statuses"].items()} == {
            "completed": 3,
            "running": 1,
            "waiting": 2,
        }
        asking = await views.get("attention")
        assert (asking["total"], [run["run_id"] for run in asking["runs"]]) == (1, ["d"])
        assert asking["runs"][0]["about"] == "q1"
        told = await views.get("windows")
        (window,), (step,) = told["windows"], told["steps"]
        assert (step["step"], step["steps"], step["retries"]) == ("work", 4, 1)
        assert (window["step"], window["steps"], window["retries"]) == ("work", 4, 1)
        assert (window["p50_ms"], window["p99_ms"]) == (9, pytest.approx(90, rel=0.07))
        assert (await views.get("runs/a"))["run"]["status"] == "completed"
        assert (await views.client.get(f"/views/{site.agent}/runs/nobody")).status_code == 404
        assert (await views.client.get("/views/other/summary")).status_code == 404
        await check_passed_on(views)
        await check_lag(site, views, monkeypatch)


async def check_passed_on(views: Views) -> None:
    """A gateway is told the same."""
    there, agent = HttpViews(views.url, LONG_S, {}), views.shard.agent
    assert (await there.summary(agent)).keys() == (await views.get("summary")).keys()
    assert await there.attention(agent, 1) == await views.get("attention", limit=1)
    assert await there.windows(agent, 5) == await views.get("windows", minutes=5)
    assert await there.run(agent, "a") == await views.get("runs/a")
    assert (await there.run(agent, "nobody"))["run"] is None
    with pytest.raises(Unavailable, match="has no views of other"):
        await there.summary("other")
    await there.stop()


async def check_lag(site: Site, views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    held, fold = asyncio.Event(), Shard._fold

    async def folding(*args: Any) -> None:
        await held.wait()
        await fold(*args)

    monkeypatch.setattr(Shard, "_fold", folding)
    for _ in range(3):
        await site.write("signal.received", "b", "waiting")
    behind = await views.when("summary", lambda s: s["lag"]["events"] == 3)
    assert 0 <= behind["lag"]["ms"] <= SystemClock().now_ms() - site.now_ms
    assert runs_in(behind) == 6
    held.set()
    await views.level(6)


async def test_when_all_that_was_kept_is_lost_the_views_are_what_they_would_have_been(
    site: Site,
) -> None:
    """Although the group's committed offsets are still there."""
    async with site.serving() as views:
        await a_day(site)
        await views.level(6)
        assert await views.digests() == await digests_from_zero(site)
    await site.lose()
    await a_day(site, "ghijkl")  # while nobody looks
    async with site.serving() as views:
        await views.level(12)
        assert await views.digests() == await digests_from_zero(site)


class InMemory(Shard):
    """All partitions, with what is kept in a dict each."""

    kept: dict[int, Kept]

    def values(self, partition: int) -> Kept:
        return self.kept.setdefault(partition, Kept())

    async def keep(self, partition: int, changes: Any) -> None:
        self.values(partition).keep(changes)

    def owners(self) -> Mapping[str | None, Iterable[int]]:
        return {None: range(self.partitions)}


def in_memory(site: Site) -> InMemory:
    shard = InMemory(site.agent, site.settings, site._backend, SystemClock())
    shard.kept = {}
    return shard


async def digests_from_zero(site: Site) -> dict[str, str]:
    shard = in_memory(site)
    for partition in range(PARTITIONS):
        await shard.catch_up(partition)
    await shard.stop()
    return {str(p): projections.digest_values(kept) for p, kept in sorted(shard.kept.items())}


async def test_a_hole_that_a_rebalance_leaves_is_read_from_the_log(site: Site) -> None:
    """Faust may begin after what is missing, as committed offsets may be too far, and hand out what
    it had fetched before a rebalance."""
    for number in range(8):
        await site.write("run.started", f"r{number}", "running")
    shard = in_memory(site)
    ends = await shard._offsets.ends(site.topics.events, range(PARTITIONS))
    for partition, end in ends.items():
        page, _ = await shard._lookups.page(partition, 0, end, lambda _: True)
        await shard.take(partition, page[-1:])
        await shard.take(partition, page)
    opened = (await shard.opened()).values()
    assert sum(view.counts.total() for view in opened) == 8
    assert (await shard.lag()).events == 0
    await shard.stop()


# Kafka only ----------------------------------------------------------------------------------


async def test_what_was_aborted_is_in_no_view(kafka_site: Site) -> None:
    site = kafka_site
    producer = AIOKafkaProducer(
        bootstrap_servers=site.settings.bootstrap_servers, transactional_id=site.settings.app
    )
    async with site.serving() as views, producer:
        await views.level(0)
        for name, commit in (("a", True), ("b", False), ("c", True)):
            await producer.begin_transaction()
            out = site.out("run.started", name, "running")
            await producer.send_and_wait(out.topic, out.value, out.key, partition=0)
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        summary = await views.level(2)
        assert summary["lag"] == {"events": 0, "ms": 0}


async def test_what_is_in_is_committed_however_many_events_a_fetch_brings(
    kafka_site: Site,
) -> None:
    """So that who comes next does not read it again."""
    site = kafka_site
    servers = site.settings.bootstrap_servers
    place = TopicPartition(site.topics.events, 0)
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()

    async def is_committed(end: int) -> bool:
        found = await admin.list_consumer_group_offsets(site.topics.views)
        return place in found and found[place].offset == end

    async with site.serving() as views, AIOKafkaProducer(bootstrap_servers=servers) as producer:
        await views.level(0)
        written = 0
        for count in (1, 5, 1, 5):
            batch = producer.create_batch()
            for number in range(written, written + count):
                out = site.out("run.started", f"r{number}", "running")
                batch.append(key=out.key, value=out.value, timestamp=None)
            await (await producer.send_batch(batch, place.topic, partition=place.partition))
            written += count
            await views.level(written)
            await until(partial(is_committed, written), what="what is in to be committed")
    await admin.close()


async def test_a_gateway_passes_the_views_on_and_says_when_they_are_away(
    bootstrap: str, app: str, agent_name: str, tmp_path: Path
) -> None:
    port = unused_port()
    url = f"http://127.0.0.1:{port}"
    settings = on_kafka(bootstrap, app, gateway_port=0, views_port=port, views_url=url, **PATIENT)
    agent = Agent(agent_name)

    @agent.step
    async def work(ctx: Context, n: int) -> Done:
        return Done(n)

    paths = ("summary", "windows?minutes=60", "attention?limit=5", "runs/a")
    async with made(settings, agent_name, tmp_path / "views") as site:
        async with site._backend.topics() as topics:
            await topics.apply(specs_for(names_of([agent]), settings))
        async with asked(agent, settings) as gateway:

            async def told(path: str) -> httpx.Response:
                return await gateway.get(f"/views/{agent_name}/{path}")

            async def check_away() -> None:
                for path in paths:
                    answer = await told(path)
                    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
                    assert answer.json() == {
                        "error": "SF3016: the views are not available; try again"
                    }
                    assert answer.headers["retry-after"] == "5"

            async def check_same(views: Views) -> None:
                """Nothing is read or handed out any more: only a summary goes by the clock."""
                assert runs_in((await told(paths[0])).json()) == runs_in(await views.get(paths[0]))
                for path in paths[1:]:
                    assert (await told(path)).json() == await views.get(path)

            await check_away()
            await a_day(site)
            async with site.serving() as views:
                await views.level(6)
                await check_same(views)
                asking = (await told("attention?limit=5")).json()
                assert [run["run_id"] for run in asking["runs"]] == ["d"]
                assert (await told("runs/a")).json()["run"]["status"] == "completed"
                nobody, too_many = await told("runs/nobody"), await told("attention?limit=0")
                assert nobody.json()["error"].startswith("SF4101")
                assert (nobody.status_code, too_many.status_code) == (404, 422)
            await check_away()
            await a_day(site, "ghijkl")  # meanwhile
            async with site.serving() as views:
                await views.level(12)
                await check_same(views)
                assert (await told("runs/g")).json()["run"]["status"] == "completed"


AGENT = """
from surefoot import Agent, Context, Done, Next, Retry, Wait

viewed = Agent("viewed")


@viewed.step(retry=Retry(attempts=2, initial_s=0.01))
async def first(ctx: Context, n: int) -> Next | Wait:
    if n % 3 == 0:
        raise ValueError("each time")
    return Next(last, n) if n % 2 else Wait("go", then=last)


@viewed.step
async def last(ctx: Context, n: int) -> Done:
    return Done(n)
"""


async def test_two_share_the_runs_of_a_worker_and_one_that_is_killed_is_stood_in_for(
    kafka_site: Site, tmp_path: Path
) -> None:
    """Through the commands that a person types."""
    for name in ("agent.py", "again.py"):  # what a process says is in a file of that name
        (tmp_path / name).write_text(AGENT)
    settings = kafka_site.settings
    cli = Cli(environment(settings), tmp_path)
    cli.ok("topics", "apply", "agent.py")
    try:
        cli.start("worker", "agent.py")
        services = []
        for name in ("agent.py", "again.py"):
            services.append(cli.start("views", name))
            await asyncio.to_thread(services[-1].wait_for, "view_opened")
        commands = LogCommands(settings, kafka_site._backend.appender(), SystemClock())
        for number in range(12):
            await commands.start("viewed", f"r{number}", b"%d" % number, deadline_s=90)
        await commands.stop()
        urls = [
            (await asyncio.to_thread(each.wait_for, "views_ready"))[0]["url"] for each in services
        ]
        for url in urls:
            await until(partial(all_told, url), what="both to answer")
        counted = json.loads(cli.ok("runs", "count", "viewed", "--json"))["statuses"]
        assert counted == {"completed": 4, "failed": 4, "waiting": 4}
        services[0].process.kill()
        services[0].process.wait()
        await until(partial(stood_in_for, urls[1]), what="the other to stand in")
        assert services[1].stop() == 0
    finally:
        cli.close()


def environment(settings: Settings) -> dict[str, str]:
    names = ("app", "bootstrap_servers", "partitions", "views_port", *QUICK)
    return {f"SUREFOOT_{name.upper()}": str(getattr(settings, name)) for name in names}


async def all_told(url: str) -> bool:
    """Every view is whole, and says what came of the twelve runs."""
    async with httpx.AsyncClient(base_url=f"{url}/views/viewed", timeout=90) as client:
        answers = [
            await client.get(path)
            for path in ("/summary", "/windows", *(f"/runs/r{n}" for n in range(12)))
        ]
    if any(answer.status_code != httpx.codes.OK for answer in answers):
        return False
    summary, windows, *runs = (answer.json() for answer in answers)
    counts = {status: told["runs"] for status, told in summary["statuses"].items()}
    steps = {"first": [0, 0, 0], "last": [0, 0, 0]}
    for window in windows["windows"]:
        for place, name in enumerate(("steps", "retries", "failures")):
            steps[window["step"]][place] += window[name]
    return (
        counts == {"completed": 4, "failed": 4, "waiting": 4}
        and steps == {"first": [8, 4, 4], "last": [4, 0, 0]}
        and [run["run"]["status"] for run in runs[:3]] == ["failed", "completed", "waiting"]
        and runs[3]["run"]["about"] == "step_raised"
        and summary["lag"] == {"events": 0, "ms": 0}
    )


async def stood_in_for(url: str) -> bool:
    """The runs of the one that was killed are told as well; before, there is no answer at all."""
    async with httpx.AsyncClient(timeout=90) as client:
        answer = await client.get(f"{url}/views/viewed/summary")
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return False
    assert answer.status_code == httpx.codes.OK, answer.text
    assert runs_in(answer.json()) == 12
    return await all_told(url)
