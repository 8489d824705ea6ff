"""Keeps large payloads outside of the log: steps take and return them, the log has pointers.

Out: a step's outcome is stored before it is passed on to be committed. While the store is
unavailable the outcome is held, as the step must not run again for that. In: a step's input is
fetched just before it runs. In between, a pointer is a payload like any other; author's content
that looks like a pointer is escaped, and comes back unchanged.

A store that refuses is retried like an outage, since a permission can be granted and a token
renewed; but once it has only refused for REFUSED_S, a run that needs it waits for a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, TypeVar

import structlog

from surefoot.consumers.attempts.attempt import AttemptOutcome, StepCall
from surefoot.consumers.backoff import backoff
from surefoot.schemas.pointer import (
    MARK,
    Pointer,
    escaped,
    fill_bytes,
    filled,
    pointer_to,
    pointers,
)
from surefoot.state.errors import Parked, StoreRefused, Unavailable
from surefoot.state.machine.model import Complete, EntryRecorded, StepReturned
from surefoot.state.machine.pooled_step import (
    decode_input,
    decode_outcome,
    encode_outcome,
    encode_step_input,
)
from surefoot.state.ports.blobs import Blobs
from surefoot.state.ports.clock import Clock

log = structlog.get_logger(__name__)

#: how long a store may refuse before its runs wait for a person, in seconds
REFUSED_S = 600.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """Stores and fetches large payloads. `blobs` None: every payload stays in its record."""

    clock: Clock
    blobs: Blobs | None = None
    #: larger payloads are stored, in bytes
    over_bytes: int = 262_144
    #: most bytes that a step is given from the store
    step_max_bytes: int = 268_435_456
    refused_s: float = REFUSED_S
    #: since when the store has only refused, by operation
    _refusing: dict[str, float] = field(default_factory=dict)

    async def stow(self, payload: bytes) -> bytes:
        """Return the form in which a payload from outside is written.

        A large one is stored and becomes a pointer; in others, anything that looks like a pointer
        is escaped.

        Raises: Unavailable — it may or may not have been stored.
        """
        pointer = self.pointer(payload)
        if pointer is None:
            return escaped(payload)
        await self.store(pointer, payload)
        return pointer.encode()

    def pointer(self, payload: bytes) -> Pointer | None:
        """Return the pointer for a payload that is to be stored; None: it stays in its record."""
        if self.blobs is None or len(payload) <= self.over_bytes:
            return None
        return pointer_to(payload, self.clock.now_ms())

    async def store(self, pointer: Pointer, content: bytes) -> None:
        """Store a payload. Raises Unavailable — it may or may not have been stored."""
        assert self.blobs is not None
        await self.blobs.put(pointer, content)

    async def _put(self, content: bytes, blobs: Blobs) -> bytes:
        pointer = pointer_to(content, self.clock.now_ms())
        await blobs.put(pointer, content)
        return pointer.encode()

    # Out -------------------------------------------------------------------------------------

    async def keep_outcome(self, call: StepCall, outcome: AttemptOutcome) -> AttemptOutcome:
        """Replace what is large in the outcome by pointers. Waits for the store.

        Under cancellation: what has been stored is unused, and a sweep deletes it later.
        """
        if not isinstance(outcome, StepReturned):
            return outcome
        if call.agent.home is None:
            return await self._keep(outcome)
        assert isinstance(outcome.then, Complete)
        told = decode_outcome(outcome.then.result, call.work)
        kept = await self._keep(told)
        if kept is told:
            return outcome
        return replace(outcome, then=Complete(result=encode_outcome(kept)))

    async def keep_note(self, note: EntryRecorded) -> EntryRecorded:
        """Like keep_outcome, for an entry."""
        return await self._keep(note)

    async def _keep(self, value: T) -> T:
        """Store what is large, and escape what looks like a pointer."""
        kept = {
            content: await self._kept(content)
            for content in _payloads(value)
            if MARK in content or len(content) > self.over_bytes
        }
        if not kept:
            return value
        swapped: T = _swapped(value, lambda payload: kept.get(payload, payload))
        return swapped

    async def _kept(self, content: bytes) -> bytes:
        if self.blobs is None or len(content) <= self.over_bytes:
            return escaped(content)
        return await self._put_at_last(content, self.blobs)

    async def _put_at_last(self, content: bytes, blobs: Blobs) -> bytes:
        for wait_s in backoff(self.clock):
            try:
                pointer = await self._put(content, blobs)
            except StoreRefused as error:
                self._refused("store", error)
                await asyncio.sleep(wait_s)
            except Unavailable as error:
                log.warning("blob_waits", store=blobs.name, bytes=len(content), error=str(error))
                await asyncio.sleep(wait_s)
            else:
                self._refusing.pop("store", None)
                return pointer
        raise AssertionError

    def _refused(self, what: str, error: StoreRefused) -> None:
        """Note a refusal. Raises Parked — the store has refused for too long."""
        log.error("blob_refused", asked_to=what, error=str(error))
        now_s = self.clock.monotonic_s()
        if now_s - self._refusing.setdefault(what, now_s) >= self.refused_s:
            raise Parked(
                "blob_refused",
                f"a large payload cannot be kept outside of the log: {error.message}; correct the "
                "bucket, the permissions or SUREFOOT_AWS_CHECKSUMS, and then `surefoot runs retry`",
            ) from error

    # In --------------------------------------------------------------------------------------

    async def redeem(self, call: StepCall) -> bool:
        """Replace the call's pointers by their payloads. False: the store is unavailable now.

        Raises: Parked — a payload is missing, or has changed.
        """
        if not any(MARK in payload for payload in _given(call)):
            return True
        given: Any = (call.run, tuple(call.messages), tuple(call.signals), *call.journal.values())
        pooled = None
        if call.agent.home is not None:
            try:
                pooled = decode_input(call.run.payload)
            except ValueError:
                return True  # reported when the step is prepared
        payloads = _payloads((given, pooled))
        self._check_size(sum(fill_bytes(each) for each in payloads))
        wanted = {pointer for each in payloads for pointer in pointers(each)}
        try:
            contents = {pointer: await self._get(pointer) for pointer in wanted}
            self._refusing.pop("fetch", None)
        except StoreRefused as error:
            self._refused("fetch", error)
            return False
        except Unavailable as error:
            log.warning("blob_not_fetched", run_id=call.run.run_id, error=str(error))
            return False
        swap = lambda payload: filled(payload, contents)  # noqa: E731
        run, messages, signals, *journal = _swapped(given, swap)
        if pooled is not None:
            run = run._replace(payload=encode_step_input(_swapped(pooled, swap)))
        call.run, call.messages, call.signals = run, messages, signals
        call.journal = dict(zip(call.journal, journal, strict=True))
        return True

    def _check_size(self, size: int) -> None:
        """Raises: Parked — the step would be given too many bytes."""
        if size > self.step_max_bytes:
            raise Parked(
                "blob_too_large",
                f"the step needs {size} bytes of large payloads, and "
                f"SUREFOOT_BLOB_STEP_MAX_BYTES is {self.step_max_bytes}; raise it if the "
                "process has the memory for it, and then `surefoot runs retry`",
            )

    async def _get(self, pointer: Pointer) -> bytes:
        if self.blobs is None:
            raise Parked(
                "no_blob_store",
                f"a payload of {pointer.size} bytes is kept outside of the log; start this process "
                "with the SUREFOOT_BLOBS of the others, and then `surefoot runs retry`",
            )
        content = await self.blobs.get(pointer)
        if content is None:
            raise Parked(
                "blob_missing",
                f"the payload {pointer.key} ({pointer.size} bytes) is not in {self.blobs.name}; "
                "restore it and `surefoot runs retry`, or rewind the run to before it",
            )
        if not pointer.fits(content):
            raise Parked(
                "blob_corrupt",
                f"the payload {pointer.key} in {self.blobs.name} was changed after it was stored; "
                "restore it and `surefoot runs retry`, or rewind the run to before it",
            )
        return content


def _given(call: StepCall) -> Iterator[bytes]:
    """Yield every payload that a step may look at."""
    yield call.run.payload
    yield call.run.carry or b""
    yield from call.messages
    for entry in (*call.signals, *call.journal.values()):
        yield entry.value or b""


#: types of values that hold no payload
_BARE = frozenset({NoneType, bool, int, str})


def _payloads(value: Any) -> list[bytes]:
    """Return everything in the core's values that could be a payload."""
    found: list[bytes] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind is bytes:
            found.append(each)
        elif kind not in _BARE:
            waiting += _parts(each)
    return found


def _parts(value: Any) -> Iterable[Any]:
    """Return the parts of one of the core's values."""
    if isinstance(value, tuple):
        return value
    return [getattr(value, name) for name in value.__slots__]


def _swapped(value: Any, swap: Callable[[bytes], bytes]) -> Any:
    """Return the same values with other payloads."""
    kind: Any = type(value)
    if kind is bytes:
        return swap(value)
    if kind in _BARE:
        return value
    parts = [_swapped(each, swap) for each in _parts(value)]
    if not isinstance(value, tuple):
        return kind(**dict(zip(value.__slots__, parts, strict=True)))
    return getattr(kind, "_make", tuple)(parts)
