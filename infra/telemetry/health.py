"""/health and /ready of processes that serve no HTTP else, beside their metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Something that the process runs; `in_service` is called in another thread."""

    name: str
    in_service: Callable[[], bool]


#: all parts that run in this process now
_PARTS: list[Part] = []


@contextmanager
def announced(parts: Sequence[Part]) -> Iterator[None]:
    """Count these parts among what has to be in service, for as long as the block runs."""
    _PARTS.extend(parts)
    try:
        yield
    finally:
        for part in parts:
            _PARTS.remove(part)


def beside(metrics_app: Any) -> Any:
    """Return an ASGI app that answers /health and /ready, and leaves the rest to the metrics.

    /health: 200 while the process lives. It checks nothing outside, which no restart would mend; a
    process that is stuck ends itself. /ready: 200 when every part is in service, else 503, also
    before the first one and while the process drains."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/health":
            await JSONResponse({"healthy": True})(scope, receive, send)
        elif scope["path"] == "/ready":
            parts = list(_PARTS)
            waiting = [part.name for part in parts if not part.in_service()]
            ready = bool(parts) and not waiting
            answer = JSONResponse({"ready": ready, "waiting": waiting}, 200 if ready else 503)
            await answer(scope, receive, send)
        else:
            await metrics_app(scope, receive, send)

    return app
