"""What stands in a record instead of a payload that is kept elsewhere. Pure.

A pointer is JSON, so that whoever puts payloads together (a join, several signals) can put
pointers together as well. It names its blob by day and content: the day is the one on which it was
stored, so that nobody ever stores anew what a sweep of old days is about to delete.

Only the engine makes pointers. What somebody else's payload has that looks like one gets a sign in
front of its name when it is stored, and loses it when it is given out again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

#: in every payload that holds a pointer, also where JSON is text in JSON
MARK = b"$surefoot.blob"
_NAME = rb"(\d{8})/([0-9a-f]{64})/(\d{1,15})"
#: a pointer; with signs in front of its name what only looks like one, each time it was stored
_POINTER = re.compile(rb'\{"\$surefoot\.blob":"(=*)' + _NAME + rb'"\}')
_MENTION = re.compile(_NAME)


@dataclass(frozen=True, slots=True)
class Pointer:
    """Names one blob."""

    #: YYYYMMDD, UTC
    day: str
    #: of the content, in hex
    sha256: str
    #: of the content, in bytes
    size: int

    @property
    def key(self) -> str:
        """Under which the blob is stored."""
        return f"{self.day}/{self.sha256}"

    def encode(self) -> bytes:
        return b'{"%s":"%s/%d"}' % (MARK, self.key.encode(), self.size)

    def fits(self, content: bytes) -> bool:
        """Whether that is what the pointer was made for."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256


def pointer_to(content: bytes, now_ms: int) -> Pointer:
    return Pointer(day_of(now_ms), hashlib.sha256(content).hexdigest(), len(content))


def day_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y%m%d")


def pointers(payload: bytes) -> set[Pointer]:
    """The pointers in a stored payload."""
    return set(_occurring(payload))


def fill_bytes(payload: bytes) -> int:
    """What `filled` would put into a stored payload, in bytes."""
    return sum(pointer.size for pointer in _occurring(payload))


def filled(payload: bytes, contents: Mapping[Pointer, bytes]) -> bytes:
    """The stored payload as it was before it was stored, with every pointer replaced by what it
    points to."""
    if MARK not in payload:
        return payload
    return _POINTER.sub(
        lambda match: _with_signs(match, -1) if match[1] else contents[_of(match)], payload
    )


def escaped(payload: bytes) -> bytes:
    """As which a payload that holds no pointers is stored, whatever it says."""
    if MARK not in payload:
        return payload
    return _POINTER.sub(lambda match: _with_signs(match, 1), payload)


def unescaped(payload: bytes) -> bytes:
    """The stored payload as it was before it was stored, but for its pointers."""
    if MARK not in payload:
        return payload
    return _POINTER.sub(lambda match: _with_signs(match, -1) if match[1] else match[0], payload)


def mentions(record: bytes) -> set[str]:
    """Keys of the blobs that a record may need, however deep inside; rather one too many."""
    return {_of(match).key for match in _MENTION.finditer(record)}


def pointer_of(payload: bytes) -> Pointer | None:
    """The pointer that stands in place of the whole payload, if one does."""
    match = _POINTER.fullmatch(payload)
    return None if match is None or match[1] else _of(match)


def _occurring(payload: bytes) -> Iterator[Pointer]:
    """Each as often as it occurs."""
    if MARK in payload:
        yield from (_of(match) for match in _POINTER.finditer(payload) if not match[1])


def _with_signs(match: re.Match[bytes], more: int) -> bytes:
    name = b"=" * (len(match[1]) + more) + b"%s/%s/%s" % match.groups()[1:]
    return b'{"%s":"%s"}' % (MARK, name)


def _of(match: re.Match[bytes]) -> Pointer:
    day, sha256, size = match.groups()[-3:]
    return Pointer(day.decode(), sha256.decode(), int(size))
