"""Dead letters through the real command line, on a real broker: events wait for their schema, are
buried, and are put back."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from surefoot import Agent
from surefoot.infra.runtime import loader
from tests.integration.cli.test_cli_end_to_end import Cli
from tests.support.cluster import Cluster, cluster
from tests.support.eventually import until
from tests.support.foreign_clients import ORDER, confluent, plain_json
from tests.support.long_deadlines import PATIENT
from tests.support.trigger_cluster import Listening, listening

AGENT = """
from dataclasses import dataclass

from surefoot import Agent, Context, Done

shop = Agent("shop")


@dataclass
class Order:
    id: str
    total: int


@shop.step
async def ship(ctx: Context, order: Order) -> Done:
    return Done(order.id)


@shop.on_event(topic="TOPIC", start="earliest", where=lambda order: order.id != "skip")
def on_order(order: Order) -> Order:
    MENDED
    return order
"""
BROKEN, MENDED = "assert order.total != 13", "pass"
VALUE = {"id": "o1", "total": 5, "note": None, "lane": "FAST"}


class Registry:
    """Says what it has by id, and of anything else what a registry says that lags behind."""

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}
        self.asked: list[str] = []
        registry = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = self.path.rpartition("/")[2]
                registry.asked.append(number)
                schema = registry.schemas.get(number)
                told: dict[str, Any] = {"schema": json.dumps(schema)}
                if schema is None:
                    told = {"error_code": 40403, "message": "Schema not found"}
                body = json.dumps(told).encode()
                self.send_response(404 if schema is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    serving = Thread(target=made.server.serve_forever)
    serving.start()
    yield made
    made.server.shutdown()
    serving.join()
    made.server.server_close()


@pytest.fixture
async def heard(bootstrap: str, app: str) -> AsyncIterator[Listening]:
    agent = Agent("shop")

    @agent.on_event(topic=f"{app}-orders")
    def on_order(order: dict[str, Any]) -> Any:
        return order

    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, partitions=1) as made,
    ):
        yield made


@pytest.fixture
def cli(bootstrap: str, app: str, registry: Registry, tmp_path: Path) -> Iterator[Cli]:
    env = {
        "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap,
        "SUREFOOT_APP": app,
        "SUREFOOT_PARTITIONS": "2",
        "SUREFOOT_REGISTRY_URL": registry.url,
    }
    made = Cli(env, tmp_path)
    yield made
    made.close()


def write(folder: Path, topic: str, check: str) -> None:
    text = AGENT.replace("TOPIC", topic).replace("MENDED", check)
    (folder / "shop.py").write_text(text)


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


async def here(cli: Cli, *args: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(cli.here, "dead", *args)


async def dead(kafka: Cluster, count: int) -> None:
    async def there() -> bool:
        return len(await kafka.dead()) == count

    await until(there, what=f"{count} dead letters")


async def test_an_event_waits_for_its_schema_through_the_command(
    cli: Cli, heard: Listening, registry: Registry, tmp_path: Path
) -> None:
    write(tmp_path, heard.topic, MENDED)
    await heard.send(*confluent(VALUE))
    service = cli.start("trigger", "shop.py")
    await until(lambda: len(registry.asked) >= 3, what="the registry to be asked again")
    assert await heard.commands() == []
    registry.schemas["7"] = ORDER
    await heard.until_started(1)
    assert await heard.codes() == []
    assert "waited 0 of 600 s" in service.events("schema_lookup_retry")[0]["error"]
    assert service.stop() == 0


async def test_what_was_buried_is_seen_and_put_back_once(
    cli: Cli, heard: Listening, registry: Registry, tmp_path: Path
) -> None:
    write(tmp_path, heard.topic, BROKEN)
    cli._env["SUREFOOT_SCHEMA_WAIT_S"] = "0"
    await heard.send(*confluent(VALUE), key=b"k")
    await heard.send(*confluent(VALUE | {"id": "skip"}))
    await heard.send(*plain_json(VALUE | {"total": 13}))
    await heard.send(b"no JSON")
    service = cli.start("trigger", "shop.py")
    await dead(heard.kafka, 4)
    assert service.stop() == 0
    codes = ["undecodable", "mapping_raised", "schema_missing", "schema_missing"]

    found = lines((await here(cli, "list", "--agent", "shop", "--json")).stdout)
    assert [each["code"] for each in found] == codes
    of = f"{heard.topic}/0/0"
    told = (await here(cli, "list", "--code", "schema_missing", "--limit", "2")).stdout
    assert "SF2067 schema_missing: schema id 7: 404" in " ".join(told.split())
    assert of in told
    first = found[-1]["offset"]
    shown = json.loads((await here(cli, "show", str(first), "--json")).stdout)
    assert shown["source"]["topic"] == heard.topic
    assert (shown["agent"], shown["key"]) == ("shop", "k")
    assert f"surefoot dead redrive AGENT.py --offset {first}" in shown["do"]
    assert heard.topic in (await here(cli, "show", str(first))).stdout
    assert (await here(cli, "show", "999")).returncode == 1

    still = await here(cli, "redrive", "shop.py", "--json")
    assert still.returncode == 1
    assert {each["did"] for each in lines(still.stdout)} == {"still dead"}
    assert await heard.commands() == []

    registry.schemas["7"] = ORDER
    dry = await here(cli, "redrive", "shop.py", "--code", "schema_missing", "--dry-run")
    assert "would start" in dry.stdout
    assert await heard.commands() == []
    back = lines(cli.ok("dead", "redrive", "shop.py", "--code", "schema_missing", "--json"))
    assert [each["did"] for each in back] == ["started", "not wanted"]
    run_id = f"{heard.topic}-0-0"
    assert back[0]["run_id"] == run_id
    write(tmp_path, heard.topic, MENDED)
    loader.forget()  # this process has loaded the broken one
    third = str(found[1]["offset"])
    assert "started" in (await here(cli, "redrive", "shop.py", "--offset", third)).stdout

    worker = cli.start("worker", "shop.py")
    await heard.kafka.until_status("shop", [run_id, f"{heard.topic}-0-2"], "completed")
    again = await here(cli, "redrive", "shop.py", "--json")
    assert again.returncode == 1  # what is no JSON is none still
    did = [each["did"] for each in lines(again.stdout)]
    assert did == ["is there", "not wanted", "is there", "still dead"]
    assert len(await heard.commands()) == 2
    assert worker.stop() == 0


async def test_there_may_be_nothing_to_put_back(cli: Cli, heard: Listening, tmp_path: Path) -> None:
    write(tmp_path, heard.topic, MENDED)
    assert (await here(cli, "list", "--json")).stdout == ""
    none = await here(cli, "redrive", "shop.py")
    assert (none.returncode, none.stdout) == (1, "")
    assert "no dead letter of a topic" in none.stderr
