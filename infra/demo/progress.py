"""What the demo knows while it runs: committed events, as they arrive, and kills."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from surefoot.infra.demo.auditor import ENDINGS
from surefoot.schemas.codec.codec import decode
from surefoot.schemas.codec.records import AvroEvent
from surefoot.schemas.payload import JsonObject
from surefoot.state.names.topics import OUTBOX
from surefoot.state.ports.log import ConsumerRecord

#: window of the displayed rate, in seconds
RATE_S = 5.0
_TERMINAL = frozenset({"completed", "failed", "cancelled"})


@dataclass(slots=True, kw_only=True)
class Kill:
    """A worker process that was killed while runs were in progress on its partitions."""

    worker: str
    pid: int
    at_s: float
    at_ms: int
    partitions: frozenset[int]
    #: from the SIGKILL until an ordinary read_committed reader saw the first step committed after
    #: it on one of these partitions
    recovered_s: float | None = None


class Progress:
    """Follows the committed records of the events topics; one event loop."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._recent: deque[float] = deque()
        #: by run: (partition, status)
        self.runs: dict[str, tuple[int, str]] = {}
        self.steps = 0
        self.effects: set[str] = set()
        self.delivered: set[str] = set()
        self.kills: list[Kill] = []

    def apply(self, record: ConsumerRecord) -> None:
        """Process one record of an events topic."""
        event = decode(record.value, "Event")[1]
        if event["agent"] == OUTBOX:
            if event["status"] in _TERMINAL:
                self.delivered.add(event["run_id"])
            return
        self.runs[event["run_id"]] = (record.partition, event["status"])
        if event["type"] in ENDINGS:
            self._step(record, event)

    def _step(self, record: ConsumerRecord, event: AvroEvent) -> None:
        now_s = self._monotonic_s()
        self.steps += 1
        self.effects.update(event["effects"])
        self._recent.append(now_s)
        for kill in self.kills:
            if (
                kill.recovered_s is None
                and record.partition in kill.partitions
                and record.timestamp_ms > kill.at_ms
            ):
                kill.recovered_s = now_s - kill.at_s

    @property
    def steps_per_s(self) -> float:
        oldest_s = self._monotonic_s() - RATE_S
        while self._recent and self._recent[0] < oldest_s:
            self._recent.popleft()
        return len(self._recent) / RATE_S

    def by_status(self) -> Counter[str]:
        return Counter(status for _, status in self.runs.values())

    def under_way(self, partitions: Iterable[int]) -> bool:
        """Whether a run on one of the partitions has begun and not ended."""
        wanted = frozenset(partitions)
        return any(p in wanted and s not in _TERMINAL for p, s in self.runs.values())

    def settled(self, accepted: Iterable[str]) -> bool:
        """Whether all of these runs have ended, and all effects seen have been delivered."""
        ended = {run_id for run_id, (_, status) in self.runs.items() if status in _TERMINAL}
        return ended >= set(accepted) and self.delivered >= self.effects


class WorkerLog:
    """The log of one worker's processes, one after another; reads the present one's part."""

    def __init__(self, path: Path, agent: str) -> None:
        self._path = path
        self._agent = agent
        self._begin = 0

    def next_process(self) -> None:
        """Skip what was written so far: its process is gone."""
        self._begin = self._path.stat().st_size

    def ready(self) -> bool:
        """Whether the process serves all its partitions."""
        return any(event["event"] == "worker_ready" for event in self._events())

    def owned(self) -> frozenset[int]:
        """Return its partitions."""
        owned: set[int] = set()
        for event in self._events():
            if event["event"] == "assignment":
                owned = (owned - set(event["lost"])) | set(event["gained"])
        return frozenset(owned)

    def _events(self) -> Iterator[JsonObject]:
        if not self._path.exists():
            return
        with self._path.open("rb") as lines:
            lines.seek(self._begin)
            for line in lines:
                if line.startswith(b"{") and line.endswith(b"}\n"):
                    event = json.loads(line)
                    if event.get("agent") == self._agent:
                        yield event
