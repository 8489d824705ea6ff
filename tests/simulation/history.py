"""A life that is watched from outside, for the independent checker: what the broker appended and
when, what was asked of it and what became of it, what reached the target and what bodies did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from surefoot.state.names.topics import AgentTopics
from tests import checker
from tests.checker.history import Event, Place
from tests.simulation import workload
from tests.simulation.workload import AGENT
from tests.simulation.world import APP, MAKE_ZOMBIES, PARTITIONS, Life, Run


class WatchedLife(Life):
    """The same life, and its history."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._asked: list[checker.Asked] = []
        self._numbers: dict[str, int] = {}

    def live(self) -> list[str]:
        """To its end. Returns what was wrong, by the checker too."""
        wrong = super().live()
        wrong += map(str, checker.check(self.watched(), self.programs()))
        return wrong

    def _send(self, run_id: str, kind: str, *, of: str | None = None, **fields: Any) -> None:
        super()._send(run_id, kind, of=of, **fields)
        identity = None if kind == "start" else of or f"c{self._commands}"
        self._asked.append(
            checker.Asked(id=identity, agent=AGENT, run_id=run_id, kind=kind, outcome="ok")
        )

    def _number(self, transactional_id: str) -> int:
        return self._numbers.setdefault(transactional_id, len(self._numbers))

    # What the checker is given ---------------------------------------------------------------

    def watched(self) -> checker.History:
        """What is known once it is over."""
        outcomes = {True: "committed", False: "refused", None: "unknown"}
        return checker.History(
            app=APP,
            partitions=PARTITIONS,
            records=[
                checker.Record(
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    timestamp_ms=record.timestamp_ms,
                    key=record.key,
                    value=record.value,
                    headers=tuple(record.headers),
                    producer=None
                    if transaction is None
                    else (self._number(transaction.transactional_id), transaction.epoch),
                    committed=True if transaction is None else transaction.committed,
                )
                for record, transaction in self.broker.everything
            ],
            markers=[
                checker.Marker(
                    topic=marker.place.topic,
                    partition=marker.place.partition,
                    producer=(self._number(marker.transactional_id), marker.epoch),
                    commit=marker.commit,
                    offset=marker.offset,
                )
                for marker in self.broker.markers
            ],
            samples=[
                checker.Sample(
                    at_ms=sample.at_ms,
                    group=sample.group,
                    topic=sample.place.topic,
                    partition=sample.place.partition,
                    offset=sample.offset,
                    stable_end=sample.stable_end,
                )
                for sample in self.broker.samples
            ],
            asked=self._asked,
            commits=[
                checker.Commit(process="", txn=txn, outcome=outcomes[landed])  # type: ignore[arg-type]
                for txn, landed in self.told
                if txn
            ],
            requests=[
                checker.Request(
                    at_ms=0,
                    key=request.key,
                    method=request.method,
                    url=request.url,
                    body=request.body,
                    applied=request.acted,
                )
                for request in self.sink.requests
            ],
            acts=[
                *(
                    checker.Act(
                        at_ms=call.at_ms,
                        run_id=call.run_id,
                        seq=call.seq,
                        epoch=0,
                        slot=f"{call.slot}#0",
                        kind="call",
                        process="",
                        attempt=0,
                        began_ms=call.began_ms,
                    )
                    for call in self.world.calls
                ),
                *(
                    checker.Act(
                        at_ms=0,
                        run_id=run_id,
                        seq=seq,
                        epoch=0,
                        slot=slot,
                        kind="once",
                        process="",
                        attempt=0,
                    )
                    for (run_id, seq, slot), times in self.world.done.items()
                    for _ in range(times)
                ),
            ],
            at_rest=True,
            kept=self._kept(),
            one_clock="jump" not in self.kinds,
            zombies=bool(self.kinds & MAKE_ZOMBIES),
        )

    def _kept(self) -> dict[Place, frozenset[int]]:
        topic = AgentTopics(APP, AGENT).state
        return {
            (topic, number): frozenset(
                log.start + at for at, (record, _) in enumerate(log._slots) if record is not None
            )
            for number, log in enumerate(self.broker.topics[topic])
        }

    def programs(self) -> dict[str, Callable[[Sequence[Event]], checker.Promise | None]]:
        return {run_id: partial(_promised, run) for run_id, run in self.runs.items()}


def _promised(run: Run, events: Sequence[Event]) -> checker.Promise | None:
    """What must come of a run; of one that somebody has meddled with, anything may."""
    if run.touched:
        return None
    over = {event["seq"] for event in events if "late" in (event["next_step"], event["step"])}
    steps = workload.seqs(run.plan)
    late = frozenset(n for n, seq in enumerate(steps) if seq + 1 in over)
    effects: list[str] = []
    result = workload.expected(run.plan, run.run_id, late, effects)
    return checker.Promise(result=result, effects=frozenset(effects))
