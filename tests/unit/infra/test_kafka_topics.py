"""Topics on a cluster that has only just started or changed. The answers are a fake's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest

from surefoot.infra.kafka_client.topics import Topics
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import ConfigError, Unavailable
from surefoot.state.names.topics import TopicSpec


class StartingCluster:
    """Describes a cluster, with one more list of brokers each time."""

    def __init__(self, answers: Iterator[list[int]]) -> None:
        self._answers = answers

    async def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"node_id": node} for node in next(self._answers)]}


async def test_a_cluster_that_names_no_broker_yet_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    monkeypatch.setattr("asyncio.sleep", sleep)
    topics = Topics(Settings(bootstrap_servers="127.0.0.1:9"))
    topics._admin = StartingCluster(iter([[], [], [7, 8]]))
    assert await topics._broker() == "7"
    assert len(waits) == 2

    topics._admin = StartingCluster(iter([[]] * 100))
    with pytest.raises(Unavailable, match="has named none of its brokers"):
        await topics._broker()


class LaggingBrokers:
    """Brokers of which the one that is asked may not know the topic yet."""

    def __init__(self, name: str, lags: Iterator[bool]) -> None:
        self._name, self._lags = name, lags

    async def list_topics(self) -> list[str]:
        return [] if next(self._lags) else [self._name]

    async def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [
            {"topic": name, "error_code": 0, "partitions": [{"replicas": [1]}]} for name in names
        ]

    async def describe_configs(self, resources: list[Any]) -> list[Any]:
        code = 3 if next(self._lags) else 0
        return [SimpleNamespace(resources=[(code, "", 2, r.name, []) for r in resources])]


async def test_a_topic_that_one_broker_does_not_know_yet_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def sleep(_: float) -> None: ...

    monkeypatch.setattr("asyncio.sleep", sleep)
    topics = Topics(Settings(bootstrap_servers="127.0.0.1:9", replication_factor=1))
    spec = TopicSpec(name="orders", partitions=1, config={})
    # Not in the list of one broker; in that of another, of which a third does not know the configs.
    topics._admin = LaggingBrokers("orders", iter([True, False, True, False, False]))
    await topics.verify([spec])

    topics._admin = LaggingBrokers("orders", repeat(True))
    with pytest.raises(ConfigError, match="orders does not exist"):
        await topics.verify([spec])
