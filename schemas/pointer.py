"""Pointers, which stand in a record in place of a payload that is kept elsewhere. Pure.

A pointer is JSON, so that code that combines payloads (a join, several signals) can combine
pointers as well. It names its blob by day and content. The day is the day of storing, so that a
sweep of old days never deletes a blob that somebody is storing again.

Only the engine makes pointers. Anything in another payload that looks like one gets a `=` in front
of its name when it is stored, and loses it when it is given out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

#: in every payload that holds a pointer, even where JSON is text inside JSON
MARK = b"$surefoot.blob"
_NAME = rb"(\d{8})/([0-9a-f]{64})/(\d{1,15})"
#: a pointer; with `=` signs in front of its name, a look-alike: one sign per time it was stored
_POINTER = re.compile(rb'\{"\$surefoot\.blob":"(=*)' + _NAME + rb'"\}')
_MENTION = re.compile(_NAME)


@dataclass(frozen=True, slots=True)
class Pointer:
    """Names one blob."""

    #: YYYYMMDD, UTC
    day: str
    #: of the content, hexadecimal
    sha256: str
    #: of the content, in bytes
    size: int

    @property
    def key(self) -> str:
        """The key under which the blob is stored."""
        return f"{self.day}/{self.sha256}"

    def encode(self) -> bytes:
        return b'{"%s":"%s/%d"}' % (MARK, self.key.encode(), self.size)

    def fits(self, content: bytes) -> bool:
        """Whether the pointer was made for this content."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256


def pointer_to(content: bytes, now_ms: int) -> Pointer:
    return Pointer(day_of(now_ms), hashlib.sha256(content).hexdigest(), len(content))


def day_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y%m%d")


def pointers(payload: bytes) -> set[Pointer]:
    """Return the pointers in a stored payload."""
    return set(_occurring(payload))


def fill_bytes(payload: bytes) -> int:
    """Return how many bytes `filled` would put into a stored payload."""
    return sum(pointer.size for pointer in _occurring(payload))


def filled(payload: bytes, contents: Mapping[Pointer, bytes]) -> bytes:
    """Return a stored payload as it was before storing, each pointer replaced by its content."""
    if MARK not in payload:
        return payload
    return _POINTER.sub(
        lambda match: _with_signs(match, -1) if match[1] else contents[_of(match)], payload
    )


def escaped(payload: bytes) -> bytes:
    """Return a payload without pointers as it is stored: look-alikes get a sign."""
    if MARK not in payload:
        return payload
    return _POINTER.sub(lambda match: _with_signs(match, 1), payload)


def unescaped(payload: bytes) -> bytes:
    """Return a stored payload as it was before storing, except for its pointers, which stay."""
    if MARK not in payload:
        return payload
    return _POINTER.sub(lambda match: _with_signs(match, -1) if match[1] else match[0], payload)


def mentions(record: bytes) -> set[str]:
    """Return the keys of the blobs that a record may need, at any depth. May return too many."""
    return {_of(match).key for match in _MENTION.finditer(record)}


def pointer_of(payload: bytes) -> Pointer | None:
    """Return the pointer that stands for the whole payload, if any."""
    match = _POINTER.fullmatch(payload)
    return None if match is None or match[1] else _of(match)


def _occurring(payload: bytes) -> Iterator[Pointer]:
    """Yield each pointer as often as it occurs."""
    if MARK in payload:
        yield from (_of(match) for match in _POINTER.finditer(payload) if not match[1])


def _with_signs(match: re.Match[bytes], more: int) -> bytes:
    name = b"=" * (len(match[1]) + more) + b"%s/%s/%s" % match.groups()[1:]
    return b'{"%s":"%s"}' % (MARK, name)


def _of(match: re.Match[bytes]) -> Pointer:
    day, sha256, size = match.groups()[-3:]
    return Pointer(day.decode(), sha256.decode(), int(size))
