"""Outgoing HTTP requests."""

from __future__ import annotations

from collections.abc import (
    Mapping,
)
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    status: int
    headers: Mapping[str, str]
    #: at most the first KiB
    body: bytes


class Deliver(Protocol):
    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Send one request. Redirects are not followed.

        Raises: RetryableError - no answer came; the request may or may not have been acted upon
        """
