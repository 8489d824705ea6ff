"""Records a life in calm weather in which everything happens that the checks look at:

    python -m tests.checker.good_life FILE

In a process of its own, as what a simulated life leaves behind cannot be collected.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from aiokafka import TopicPartition

from surefoot.infra.kafka_client.transactions import Batch
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ProducerRecord
from tests.simulation.history import WatchedLife
from tests.simulation.workload import AGENT, Stage
from tests.simulation.world import APP, Run

_END: Stage = {"acts": [], "end": "done", "seconds": 0.0}
_BRANCH: list[Stage] = [
    {"acts": [["call", "a"], ["effect", "b"]], "end": "next", "seconds": 0.0},
    _END,
]
_PLAN: list[Stage] = [
    {"acts": [["call", "a"], ["both", "b"]], "end": "next", "seconds": 0.0},
    {"acts": [["once", "a"], ["unsure", "b"]], "end": "after", "seconds": 2.0},
    {"acts": [["effect", "a"], ["effect", "b"]], "end": "wait", "seconds": 0.0},
    {"acts": [], "end": "timed", "seconds": 0.2},
    {"acts": [], "end": "fork", "seconds": 0.0, "branches": [_BRANCH, _BRANCH]},
    {"acts": [], "end": "sleep", "seconds": 1.0},
    _END,
]


class GoodLife(WatchedLife):
    """Two runs whose commands are repeated, some nonsense, and a stranger's aborted transaction;
    at the end the state is compacted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds = {"repeat"}
        self.runs = {run_id: Run(run_id, _PLAN) for run_id in ("r0", "r1")}
        for _ in range(3):
            self._poison()
        events = AgentTopics(APP, AGENT).events
        headers = (("sf-txn", b"01stranger"), ("sf-src", b"timer"))
        stranger = [ProducerRecord(events, 0, b"r0", b"stranger", headers)]
        by = self.broker.init_producer("stranger", 60.0)
        place = TopicPartition(events, 0)
        self.broker.add_partitions("stranger", by, [place])
        self.broker.produce("stranger", by, [Batch(place, stranger, 0, self.clock.now_ms())])
        self.broker.end_txn("stranger", by, commit=False)


def main() -> None:
    life = GoodLife(1)
    wrong = life.live()
    assert not wrong, wrong
    assert life.broker.compact(AgentTopics(APP, AGENT).state, keep_last=2)
    Path(sys.argv[1]).write_bytes(pickle.dumps((life.watched(), life.programs())))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
