"""Which run may begin: the runs of one partition in lanes, one for each key.

Pure and in memory: who takes the partition over makes it anew from the checkpoints. A run is
expected (asked for, and not committed yet), waits, or is under way.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from surefoot.state.declare.flow_control import Flow, Rate


@dataclass(slots=True)
class _Bucket:
    """When the latest ones began, epoch ms."""

    rate: Rate
    began: deque[int] = field(default_factory=deque)

    def free_at_ms(self) -> int:
        """From when on another one may begin."""
        full = len(self.began) >= self.rate.limit
        return self.began[-self.rate.limit] + self.rate.per_ms if full else 0

    def begin(self, now_ms: int) -> None:
        self.began.append(now_ms)
        while len(self.began) > self.rate.limit:
            self.began.popleft()


@dataclass(slots=True)
class _Lane:
    bucket: _Bucket | None
    under_way: set[str] = field(default_factory=set)
    #: run -> its place, from when it is asked for until it begins
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: (place, run, not before) of those that are committed and wait
    waiting: list[tuple[tuple[int, int], str, int]] = field(default_factory=list)
    #: when anything of it was last seen to move, before this owner
    touched_ms: int = 0
    steps: dict[str, _Bucket] = field(default_factory=dict)


class Lanes:
    """The lanes of one partition."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._lanes: dict[str, _Lane] = {}
        self._due: list[tuple[int, str]] = []
        self._arrived = 0

    def restore(self, name: str, touched_ms: int, run_id: str | None = None) -> None:
        """Before this owner, a run of the lane moved last at that time. `run_id`: it is under way.

        When it began is not known; it counts as if it had been then, which is never too early."""
        lane = self._lane(name)
        lane.touched_ms = max(lane.touched_ms, touched_ms)
        if lane.bucket is not None:
            lane.bucket.began = deque(sorted([*lane.bucket.began, touched_ms]))
            while len(lane.bucket.began) > lane.bucket.rate.limit:
                lane.bucket.began.popleft()
        if run_id is not None:
            lane.under_way.add(run_id)

    def is_free(self, name: str, now_ms: int) -> bool:
        """Whether a run that is asked for now may begin at once: nobody goes first."""
        lane = self._lane(name)
        return not lane.places and not self._flow.debounce_ms and self._free_at_ms(lane) <= now_ms

    def begin(self, name: str, run_id: str, now_ms: int) -> None:
        """It begins, without having waited."""
        lane = self._lane(name)
        lane.under_way.add(run_id)
        if lane.bucket is not None:
            lane.bucket.begin(now_ms)

    def expect(self, name: str, run_id: str, priority: int) -> None:
        """It has been asked for, and has to wait; `wait` tells that this is committed."""
        self._arrived += 1
        self._lane(name).places[run_id] = (-priority, self._arrived)

    def wait(self, name: str, run_id: str, since_ms: int) -> None:
        """It waits; since when it was asked for."""
        lane = self._lane(name)
        if run_id not in lane.places:
            self.expect(name, run_id, 0)
        entry = (lane.places[run_id], run_id, since_ms + self._flow.debounce_ms)
        if entry not in lane.waiting:
            heapq.heappush(lane.waiting, entry)

    def take(self, name: str, now_ms: int) -> str | None:
        """The next one of the lane that may begin now: it is under way from here on."""
        lane = self._lanes.get(name)
        while lane is not None and lane.waiting:
            place, run_id, not_before_ms = lane.waiting[0]
            if lane.places.get(run_id) != place:  # it has left
                heapq.heappop(lane.waiting)
                continue
            at_ms = max(self._free_at_ms(lane), not_before_ms)
            if at_ms > now_ms:
                if at_ms < _NEVER:
                    heapq.heappush(self._due, (at_ms, name))
                return None
            heapq.heappop(lane.waiting)
            del lane.places[run_id]
            self.begin(name, run_id, now_ms)
            return run_id
        return None

    def under_way(self, name: str) -> list[str]:
        """The runs of the lane that have begun."""
        lane = self._lanes.get(name)
        return sorted(lane.under_way) if lane is not None else []

    def not_begun(self, name: str) -> list[str]:
        """The runs of the lane that have not begun, in the order in which they were asked for."""
        lane = self._lanes.get(name)
        return sorted(lane.places, key=lambda run: lane.places[run][1]) if lane is not None else []

    def come_back(self, name: str, run_id: str) -> None:
        """It is under way again, by somebody's decision."""
        self._lane(name).under_way.add(run_id)

    def leave(self, name: str, run_id: str) -> None:
        """It is over, or a person has to look at it."""
        lane = self._lanes.get(name)
        if lane is None:
            return
        lane.under_way.discard(run_id)
        lane.places.pop(run_id, None)
        if not lane.under_way and not lane.places and lane.bucket is None and not lane.steps:
            del self._lanes[name]

    def step_at_ms(self, name: str, step: str, rate: Rate, now_ms: int) -> int:
        """When that step may be run for the lane: 0 for now, which then counts as done."""
        lane = self._lane(name)
        bucket = lane.steps.get(step)
        if bucket is None:
            bucket = lane.steps[step] = _Bucket(rate)
            # Nothing tells how often it was run before: as often as it may have been.
            if lane.touched_ms:
                bucket.began.extend([lane.touched_ms] * rate.limit)
        at_ms = bucket.free_at_ms()
        if at_ms > now_ms:
            return at_ms
        bucket.begin(now_ms)
        return 0

    @property
    def due_ms(self) -> int | None:
        """When a lane has to be looked at again."""
        return self._due[0][0] if self._due else None

    def due(self, now_ms: int) -> Iterator[str]:
        """The lanes whose time has come."""
        while self._due and self._due[0][0] <= now_ms:
            yield heapq.heappop(self._due)[1]

    def tidy(self, now_ms: int) -> None:
        """Forget lanes in which nothing has moved for so long that it limits nothing."""
        for name, lane in list(self._lanes.items()):
            buckets = [*lane.steps.values(), *([lane.bucket] if lane.bucket is not None else [])]
            old = all(
                not bucket.began or bucket.began[-1] + bucket.rate.per_ms <= now_ms
                for bucket in buckets
            )
            if old and not lane.under_way and not lane.places:
                del self._lanes[name]

    def names(self) -> list[str]:
        return list(self._lanes)

    def _lane(self, name: str) -> _Lane:
        lane = self._lanes.get(name)
        if lane is None:
            throttle = self._flow.throttle
            lane = self._lanes[name] = _Lane(_Bucket(throttle) if throttle is not None else None)
        return lane

    def _free_at_ms(self, lane: _Lane) -> int:
        most = self._flow.at_once
        if most is not None and len(lane.under_way) >= most:
            return _NEVER
        return lane.bucket.free_at_ms() if lane.bucket is not None else 0


#: when somebody has to leave first
_NEVER = 2**62
