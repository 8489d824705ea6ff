"""What a step's body is given: who it is, and what it wants to happen when it commits.

A Context only collects. Nothing that is asked for here exists before the step's commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from surefoot.schemas.payload import dump, strict_json
from surefoot.state.model import Effect
from surefoot.state.topics import OUTBOX

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEffect:
    """One HTTP request that the outbox delivers; its Idempotency-Key is the effect's run_id."""

    method: str
    url: str
    headers: dict[str, str]
    #: sent as UTF-8
    body: str


HTTP_EFFECT: TypeAdapter[HttpEffect] = TypeAdapter(HttpEffect)


def idempotency_key(agent: str, run_id: str, seq: int, index: int) -> str:
    """Key of effect `index` of step `seq`: the same on every attempt, redrive and replay."""
    return f"{agent}:{run_id}:{seq}:{index}"


@dataclass(slots=True)
class Outbox:
    """Side effects of the step, delivered after its commit and only then."""

    _key: Callable[[int], str]
    _effects: list[Effect] = field(default_factory=list)

    def http(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Send an HTTP request once this step has committed. Returns its idempotency key.

        It is delivered at least once, always with the same Idempotency-Key header and body, in the
        order in which this run asked for it. `json` must be strict JSON.

        Raises: ValueError (a bug in the step, so not retried) for what can never be sent.
        """
        method = method.upper()
        parts = urlsplit(url)
        if method not in _METHODS:
            raise ValueError(f"outbox.http: unknown method {method!r}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"outbox.http: {url!r} is not an http(s) URL")
        if json is not None and body is not None:
            raise ValueError("outbox.http: give json or body, not both")
        sent = dict(headers or {})
        for name, value in sent.items():
            if any(char in name + value for char in "\r\n\0"):
                raise ValueError(f"outbox.http: header {name!r} has a line break or NUL in it")
        if json is not None:
            body = strict_json(json).decode()
            sent.setdefault("Content-Type", "application/json")
        effect = HttpEffect(method=method, url=url, headers=sent, body=body or "")
        return self._add(OUTBOX, dump(HTTP_EFFECT, effect))

    def _add(self, agent: str, payload: bytes) -> str:
        key = self._key(len(self._effects))
        self._effects.append(Effect(agent=agent, run_id=key, payload=payload))
        return key


@dataclass(slots=True, kw_only=True)
class Context:
    """Handed to every attempt of a step; dead once the attempt is over."""

    agent: str
    run_id: str
    #: number of this step in the run, from 0
    seq: int
    step: str
    #: attempts of this step that are over, from 0
    attempt: int
    #: seconds for which this worker may still act as the owner of the run; see Log.lease_left_s
    lease_left_s: Callable[[], float]
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        self.outbox = Outbox(
            lambda index: idempotency_key(self.agent, self.run_id, self.seq, index)
        )

    def effects(self) -> tuple[Effect, ...]:
        """What has been asked for so far."""
        return tuple(self.outbox._effects)
