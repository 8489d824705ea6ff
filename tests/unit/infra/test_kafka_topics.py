"""Creating topics on a cluster that has only just started. The answers are a fake's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from surefoot.infra.kafka_client.topics import Topics
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import Unavailable


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
