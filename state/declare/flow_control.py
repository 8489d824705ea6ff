"""When runs may begin: how many at a time, how often, in which order.

Runs with the same key share these limits and live in one partition, so one owner sees them all. The
key is the first part of the run_id, `KEY=NAME` (see state.names.partitioner); whoever starts a run
gives it that id (Agent.name_run).
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from surefoot.state.declare.callables import is_async
from surefoot.state.declare.durations import duration_s
from surefoot.state.errors import ConfigError

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,99}")
#: the key of all runs of an agent without a key function
ALL = "all"


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `limit` in any period of `per` ("1m", or seconds)."""

    limit: int
    per: str | float

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ConfigError("SF1125", f"Rate: limit must be 1 or more; got {self.limit!r}")
        _ = self.per_ms

    @property
    def per_ms(self) -> int:
        return max(1, round((duration_s(self.per) or 0) * 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """When the runs of an agent may begin. `key`, `id` and `priority` are functions of the payload.

    key          runs with the same key share the limits; without it, all runs of the agent do
    id           starts with the same id are one run within the deduplication window
    dedup        length of that window ("1h"); default: SUREFOOT_DEDUP_WINDOW_S
    concurrency  runs of one key in progress at a time, waits included
    throttle     how many runs of one key may begin in a period
    debounce     a run begins once nobody has asked for another of its key for this long; the
                 earlier ones are cancelled
    singleton    while a run of the key is in progress: "skip" a new one, or "cancel" the current
    priority     higher ones begin first; equal ones in the order they were asked for

    Raises: ConfigError - options that contradict each other
    """

    key: Callable[[Any], object] | None = None
    id: Callable[[Any], object] | None = None
    dedup: str | float | None = None
    concurrency: int | None = None
    throttle: Rate | None = None
    debounce: str | float | None = None
    singleton: Literal["skip", "cancel"] | None = None
    priority: Callable[[Any], int] | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(
                "SF1125", f"Flow: concurrency must be 1 or more; got {self.concurrency!r}"
            )
        if self.singleton not in (None, "skip", "cancel"):
            raise ConfigError(
                "SF1125", f'Flow: singleton must be "skip" or "cancel"; got {self.singleton!r}'
            )
        if self.singleton is not None and (self.concurrency is not None or self.debounce):
            raise ConfigError(
                "SF1125",
                "Flow: singleton allows one run at a time, so it cannot be combined with "
                "concurrency or debounce; remove one of them",
            )
        if self.priority is not None and self.at_once is None and self.throttle is None:
            raise ConfigError(
                "SF1125",
                "Flow: priority orders waiting runs, so it needs concurrency or "
                "throttle; declare one of them",
            )
        for name in ("key", "id", "priority"):
            if is_async(getattr(self, name)):
                raise ConfigError(
                    "SF1125",
                    f"Flow: {name} cannot be an async function; write a plain def",
                )
        _ = self.debounce_ms, self.dedup_ms

    @property
    def at_once(self) -> int | None:
        """How many runs of a key may be in progress; None: no limit."""
        return 1 if self.singleton is not None else self.concurrency

    @property
    def debounce_ms(self) -> int:
        """In milliseconds; 0: no debounce."""
        return round((duration_s(self.debounce) or 0) * 1000)

    @property
    def dedup_ms(self) -> int | None:
        seconds = duration_s(self.dedup)
        return None if seconds is None else round(seconds * 1000)

    def name(self, run_id: str, value: Any, *, given: bool) -> str:
        """Return the run_id, `KEY=NAME`, of the run that starts with this payload.

        Args:    run_id: its name without a flow. given: somebody asked for exactly this name
        Raises:  whatever the author's functions raise
        """
        if self.id is not None and not given:
            run_id = _word(self.id(value))
        key = ALL if self.key is None else _word(self.key(value))
        return run_id if run_id.startswith(f"{key}=") else f"{key}={run_id}"


def _word(value: object) -> str:
    """Return the text of a value if it can be part of a run_id, else a digest of it."""
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("it returned a coroutine; the functions of a Flow cannot be async")
    text = str(value)
    if _KEY.fullmatch(text):
        return text
    return "k" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
