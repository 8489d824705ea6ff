"""Which run may begin: the runs of one partition in lanes, one lane per key.

Pure and in memory: a new owner of the partition rebuilds it from the checkpoints. A run is expected
(asked for, but not committed), waiting, or in progress.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from surefoot.state.declare.flow_control import Flow, Rate


@dataclass(slots=True)
class _Bucket:
    """The latest begins, epoch ms."""

    rate: Rate
    began: deque[int] = field(default_factory=deque)

    def free_at_ms(self) -> int:
        """Return when another one may begin."""
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
    #: run -> its place, from the request until it begins
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: (place, run, not before) of committed runs that wait
    waiting: list[tuple[tuple[int, int], str, int]] = field(default_factory=list)
    #: latest activity of the lane before this owner, epoch ms
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
        """Record that a run of the lane last moved at that time, before this owner.

        The time when it began is unknown; that of its last move counts instead, which is never too
        early.

        Args: run_id: given if the run is in progress
        """
        lane = self._lane(name)
        lane.touched_ms = max(lane.touched_ms, touched_ms)
        if lane.bucket is not None:
            lane.bucket.began = deque(sorted([*lane.bucket.began, touched_ms]))
            while len(lane.bucket.began) > lane.bucket.rate.limit:
                lane.bucket.began.popleft()
        if run_id is not None:
            lane.under_way.add(run_id)

    def is_free(self, name: str, now_ms: int) -> bool:
        """Whether a run that is asked for now may begin at once: no other run goes first."""
        lane = self._lane(name)
        return not lane.places and not self._flow.debounce_ms and self._free_at_ms(lane) <= now_ms

    def begin(self, name: str, run_id: str, now_ms: int) -> None:
        """Let a run begin without waiting."""
        lane = self._lane(name)
        lane.under_way.add(run_id)
        if lane.bucket is not None:
            lane.bucket.begin(now_ms)

    def expect(self, name: str, run_id: str, priority: int) -> None:
        """Record a run that was asked for and has to wait; `wait` follows once it is committed."""
        self._arrived += 1
        self._lane(name).places[run_id] = (-priority, self._arrived)

    def wait(self, name: str, run_id: str, since_ms: int) -> None:
        """Let a committed run wait; `since_ms` is when it was asked for."""
        lane = self._lane(name)
        if run_id not in lane.places:
            self.expect(name, run_id, 0)
        entry = (lane.places[run_id], run_id, since_ms + self._flow.debounce_ms)
        if entry not in lane.waiting:
            heapq.heappush(lane.waiting, entry)

    def take(self, name: str, now_ms: int) -> str | None:
        """Take the lane's next run that may begin now; it is in progress from here on."""
        lane = self._lanes.get(name)
        while lane is not None and lane.waiting:
            place, run_id, not_before_ms = lane.waiting[0]
            if lane.places.get(run_id) != place:  # it is no longer waiting
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
        """Return the lane's runs that have begun."""
        lane = self._lanes.get(name)
        return sorted(lane.under_way) if lane is not None else []

    def not_begun(self, name: str) -> list[str]:
        """Return the lane's runs that have not begun, in the order they were asked for."""
        lane = self._lanes.get(name)
        return sorted(lane.places, key=lambda run: lane.places[run][1]) if lane is not None else []

    def come_back(self, name: str, run_id: str) -> None:
        """Put a run back in progress, by somebody's decision."""
        self._lane(name).under_way.add(run_id)

    def leave(self, name: str, run_id: str) -> None:
        """Remove a run: it is over, or a person has to look at it."""
        lane = self._lanes.get(name)
        if lane is None:
            return
        lane.under_way.discard(run_id)
        lane.places.pop(run_id, None)
        if not lane.under_way and not lane.places and lane.bucket is None and not lane.steps:
            del self._lanes[name]

    def step_at_ms(self, name: str, step: str, rate: Rate, now_ms: int) -> int:
        """Return when that step may run for the lane; 0: now, and it is counted as run."""
        lane = self._lane(name)
        bucket = lane.steps.get(step)
        if bucket is None:
            bucket = lane.steps[step] = _Bucket(rate)
            # Earlier runs of the step are unknown; assume as many as the rate allows.
            if lane.touched_ms:
                bucket.began.extend([lane.touched_ms] * rate.limit)
        at_ms = bucket.free_at_ms()
        if at_ms > now_ms:
            return at_ms
        bucket.begin(now_ms)
        return 0

    @property
    def due_ms(self) -> int | None:
        """When to look at a lane again; None: no lane has a time."""
        return self._due[0][0] if self._due else None

    def due(self, now_ms: int) -> Iterator[str]:
        """Yield the lanes that are due."""
        while self._due and self._due[0][0] <= now_ms:
            yield heapq.heappop(self._due)[1]

    def tidy(self, now_ms: int) -> None:
        """Forget lanes that have been idle for so long that their limits no longer apply."""
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


#: a lane that is full: not before a run leaves it
_NEVER = 2**62
