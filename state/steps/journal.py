"""Calls inside a step whose results outlive the attempt that made them.

`call` never repeats what is recorded; a call in progress when the worker died is made again. `once`
is never made twice: its intent is committed before, its outcome after, and a crash in between
leaves it in doubt, for a probe or a person to decide. What an earlier line of history did counts as
done here (state/machine/actions.py).
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from surefoot.schemas.payload import BadPayload, Unserialisable, dump_and_load, load, text_of
from surefoot.schemas.weak_cache import weakly_cached
from surefoot.state.declare.annotations import MISSING, annotation
from surefoot.state.declare.callables import label
from surefoot.state.declare.stored_types import adapter_of, check_stored
from surefoot.state.errors import (
    BadArgument,
    BudgetSpent,
    CallFailed,
    ConfigError,
    NotDone,
    OwnershipLost,
    Parked,
    TerminalError,
)
from surefoot.state.machine import actions, again
from surefoot.state.machine.model import (
    Amount,
    Amounts,
    Entry,
    EntryRecorded,
    Failure,
    Memory,
    Work,
    over,
    total,
)
from surefoot.state.steps.engine import Engine

_NAME_MAX = 128
_ANY: TypeAdapter[Any] = TypeAdapter(Any)

ErrorKinds = tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a call used, or may use at most."""

    tokens: int = 0
    money: float = 0.0

    def __post_init__(self) -> None:
        for each in self.amounts():
            if type(each.amount) is not int or not 0 < each.amount < 2**63:
                raise BadArgument(
                    "SF1113", f"Cost: {each.what} must be 0 or more, and tokens whole; got {self}"
                )

    def amounts(self) -> Amounts:
        """Return the amounts in stored units: money in millionths."""
        made = (Amount("money", round(self.money * 1e6)), Amount("tokens", self.tokens))
        return tuple(each for each in made if each.amount)


@dataclass(frozen=True, slots=True)
class _Came:
    """Outcome of a call, from this attempt or an earlier one."""

    value: Any = None
    failure: Failure | None = None

    def told(self) -> Any:
        """Return or raise it to the step. A failure is always rebuilt from its record, even right
        after the call: with the original cause and traceback, the attempt that made the call could
        do what no later attempt can repeat."""
        if self.failure is not None:
            raise CallFailed(self.failure.message, kind=self.failure.kind)
        return self.value


class Journal:
    """What earlier attempts recorded, and what this one adds."""

    def __init__(
        self, entries: Mapping[str, Entry], work: Work, memory: Memory, engine: Engine
    ) -> None:
        self._entries = entries
        self._work = work
        self._engine = engine
        self._seen: dict[str, int] = {}
        self._past = actions.by_call(entries.values())
        self._again = again.of_run(entries)
        self._granted = memory.granted
        self._before = memory.spent
        self._costs: dict[str, Amounts] = {slot: entry.cost for slot, entry in entries.items()}

    @property
    def spent(self) -> Amounts:
        """What this step's calls used, in all its attempts."""
        return total(*self._costs.values())

    def call(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        permanent: ErrorKinds = (),
        reserve: Cost | None = None,
        cost: Callable[[Any], Cost | Awaitable[Cost]] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """See Context.call. Counts the occurrence here, in call order."""
        return self._call(self._slot(name), fn, args, permanent, reserve, cost)

    def once(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        probe: Callable[..., Any] | None = None,
        permanent: ErrorKinds = (),
    ) -> Coroutine[Any, Any, Any]:
        """See Context.once."""
        return self._once(self._slot(name), fn, args, probe, permanent)

    def _slot(self, name: str) -> str:
        name = text_of(name)
        if not 0 < len(name) <= _NAME_MAX:
            raise ConfigError(
                "SF1120", f"a call's name must have 1 to {_NAME_MAX} characters; got {name!r:.80}"
            )
        number = self._seen.get(name, 0)
        self._seen[name] = number + 1
        return f"c:{name}#{number}"

    async def _call(
        self,
        slot: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        permanent: ErrorKinds,
        reserve: Cost | None,
        cost: Callable[[Any], Cost | Awaitable[Cost]] | None,
    ) -> Any:
        adapter, mark = result_adapter(fn), digest_of(args)
        entry = self._entries.get(slot)
        if entry is not None and entry.kind != "reserved":
            came = self._recorded(entry, slot, mark, adapter)
        else:
            came = await self._called(slot, fn, args, mark, adapter, permanent, reserve, cost)
        return came.told()

    async def _called(
        self,
        slot: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        mark: bytes,
        adapter: TypeAdapter[Any],
        permanent: ErrorKinds,
        reserve: Cost | None,
        cost: Callable[[Any], Cost | Awaitable[Cost]] | None,
    ) -> _Came:
        reserved = reserve.amounts() if reserve is not None else ()
        self._afford(slot, reserved)
        if reserved:
            await self._record(slot, kind="reserved", digest=mark, cost=reserved)
        try:
            value = await self._do(fn, args)
        except Exception as error:
            if not isinstance(error, (TerminalError, *permanent)):
                raise
            return await self._failed(slot, mark, error)
        told = reserved if cost is None else await _amounts(cost(value))
        data, value = dump_and_load(adapter, value)
        await self._record(slot, kind="call", digest=mark, value=data, cost=told)
        return _Came(value)

    async def _once(
        self,
        slot: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        probe: Callable[..., Any] | None,
        permanent: ErrorKinds,
    ) -> Any:
        adapter, mark = result_adapter(fn), digest_of(args)
        entry = self._entries.get(slot) or await self._take(slot, mark)
        if entry is not None and entry.kind == "call":
            came = self._recorded(entry, slot, mark, adapter)
        else:
            came = await self._done(slot, entry, fn, args, mark, adapter, probe, permanent)
        return came.told()

    async def _done(
        self,
        slot: str,
        entry: Entry | None,
        fn: Callable[..., Any],
        args: Sequence[Any],
        mark: bytes,
        adapter: TypeAdapter[Any],
        probe: Callable[..., Any] | None,
        permanent: ErrorKinds,
    ) -> _Came:
        if entry is not None:
            self._same(entry, slot, mark)
            await self._engine.alone()  # a former owner may be about to do it
            if probe is None:
                raise in_doubt(slot, entry.by, child=self._again is not None)
            told = await self._do(probe, args)
            if told is not None and told is not False:
                value = None if told is True else told
                data, value = dump_and_load(adapter, value)
                await self._act(slot, kind="call", digest=mark, value=data)
                return _Came(value)
        else:
            require_lease(self._engine)  # an intent without a call would leave the run in doubt
            await self._act(slot, kind="intent", digest=mark, value=b"null")
        try:
            value = await self._do(fn, args)
        except NotDone:
            await self._act(slot, kind="intent")
            raise
        except Exception as error:
            if isinstance(error, (TerminalError, *permanent)):
                return await self._failed(slot, mark, error)
            if probe is None:
                raise in_doubt(slot) from error
            raise
        data, value = dump_and_load(adapter, value)
        await self._act(slot, kind="call", digest=mark, value=data)
        return _Came(value)

    async def _take(self, slot: str, mark: bytes) -> Entry | None:
        """Take over what the same call did in an earlier line of history, or in the run that this
        one is a copy of. It is recorded as this call's own, so that no later call takes it too."""
        past = self._past.get((slot.removeprefix("c:"), mark))
        found = past.pop(0) if past else self._of_others(slot, mark)
        if found is None:
            return None
        known = found.value is not None
        entry = replace(
            found,
            slot=slot,
            kind="call" if known else "intent",
            value=found.value if known else b"null",
        )
        await self._act(slot, kind=entry.kind, digest=mark, value=entry.value, takes=found.slot)
        return entry

    def _of_others(self, slot: str, mark: bytes) -> Entry | None:
        """What another run may have done whose place this one takes; the doubt is raised once."""
        found = self._again
        if found is None or again.doubt_slot(slot) in self._entries:
            return None
        if slot.removeprefix("c:").rpartition("#")[0] in again.repeatable(found):
            return None
        return replace(found, value=None, digest=mark)

    async def _act(self, slot: str, **told: Any) -> None:
        await self._record(slot, action=True, **told)

    def _recorded(self, entry: Entry, slot: str, mark: bytes, adapter: TypeAdapter[Any]) -> _Came:
        self._same(entry, slot, mark)
        if entry.kind != "call":
            raise _mismatch(slot, "it was recorded by ctx.once")
        if entry.failure is not None:
            return _Came(failure=entry.failure)
        try:
            return _Came(load(adapter, entry.value or b"null"))
        except BadPayload as error:
            raise _mismatch(slot, f"its recorded result does not fit: {error}") from error

    def _same(self, entry: Entry, slot: str, mark: bytes) -> None:
        if entry.digest != mark:
            raise _mismatch(slot, "it was recorded with other arguments")

    async def _failed(self, slot: str, mark: bytes, error: Exception) -> _Came:
        failure = Failure(
            code="call_failed",
            message=str(error) or type(error).__name__,
            kind=type(error).__name__,
        )
        await self._record(slot, kind="call", digest=mark, failure=failure)
        return _Came(failure=failure)

    def _afford(self, slot: str, reserve: Amounts) -> None:
        others = [cost for place, cost in self._costs.items() if place != slot]
        short = over(total(self._before, *others, reserve), self._granted)
        if short is not None:
            raise BudgetSpent(
                short, f"{slot.removeprefix('c:')} would use more {short} than is left"
            )
        self._costs[slot] = reserve

    async def _do(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        require_lease(self._engine)
        return await self._engine.invoke(fn, args)

    async def _record(self, slot: str, **told: Any) -> None:
        self._costs[slot] = told.get("cost", ())
        await self._engine.record(EntryRecorded(work=self._work, slot=slot, **told))


async def _amounts(cost: Cost | Awaitable[Cost]) -> Amounts:
    told = await cost if inspect.isawaitable(cost) else cost
    return told.amounts()


def require_lease(engine: Engine) -> None:
    """Refuse to act without a valid lease: a frozen process that wakes up may have lost the run
    to another worker long ago.

    Raises: OwnershipLost - the attempt is put back and does not count
    """
    if engine.lease_left_s() <= 0:
        raise OwnershipLost


def in_doubt(slot: str, by: str | None = None, *, child: bool = False) -> Parked:
    """Return the error for an unknown outcome, or for a call that another run may have made."""
    was = "was begun, and its outcome is unknown. Find out whether it happened, then use"
    if by is not None and child:
        was = (
            f"may already have happened: run {by} was rewound or copied, and this run replaces "
            "an earlier one. Decide, then use"
        )
    elif by is not None:
        was = f"was done or begun by run {by}, of which this is a copy. Decide, then use"
    return Parked(
        "once_in_doubt",
        f"{slot.removeprefix('c:')} {was} `surefoot runs resolve` with --happened RESULT, "
        "--did-not (it is done now) or --give-up",
    )


def _mismatch(slot: str, why: str) -> Parked:
    return Parked(
        "journal_mismatch",
        f"call {slot.removeprefix('c:')}: {why}; the step's code or its inputs have changed since. "
        "Restore the old code and `surefoot runs retry`, or `surefoot runs rewind` to this "
        "version, which makes the calls again",
    )


def result_adapter(fn: Callable[..., Any], where: str = "") -> TypeAdapter[Any]:
    """Return the adapter of a function's annotated result; of plain JSON without an annotation.

    Raises: ConfigError - the annotation cannot be resolved, or the type cannot be stored
    """
    while isinstance(fn, partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    return _adapter_of(fn, where) if where else _known_adapter(fn)


@weakly_cached
def _known_adapter(fn: Callable[..., Any]) -> TypeAdapter[Any]:
    return _adapter_of(fn, f"function {label(fn)!r}, which a step calls")


def _adapter_of(fn: Callable[..., Any], where: str) -> TypeAdapter[Any]:
    kind = annotation(fn, "return", where)
    if get_origin(kind) in (Awaitable, Coroutine):  # of a plain def; the result is awaited
        kind = get_args(kind)[-1]
    if kind is MISSING or kind is Any:
        return _ANY
    adapter = adapter_of(kind, f"{where}: its result")
    check_stored(adapter, kind, f"{where}: its result")
    return adapter


def digest_of(args: Sequence[Any]) -> bytes:
    """Digest a call's arguments: equal in every process for equal arguments.

    Raises: Unserialisable - an argument is not data
    """
    for number, arg in enumerate(args):
        try:
            json.dumps(_canonical(arg))
        except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
            raise Unserialisable(
                f"$.args[{number}]",
                type(arg).__name__,
                f"a journaled call is recognised by its arguments, so they must be data ({error}); "
                "make clients and the like inside the function",
            ) from error
    text = json.dumps([_canonical(arg) for arg in args], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def _canonical(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _canonical(item) for key, item in value.items()}
        case list() | tuple():
            return [_canonical(item) for item in value]
        case set() | frozenset():
            return sorted(json.dumps(_canonical(item), sort_keys=True) for item in value)
        case bytes():
            return value.hex()
        case None | bool() | int() | float() | str():
            return value
        case Iterator():
            raise TypeError("an iterator can be read only once; pass a list")
        case BaseModel():  # as Python values: a set would have no stable order as JSON
            return _canonical(value.model_dump())
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _canonical(getattr(value, each.name)) for each in fields(value)}
    return _canonical(to_jsonable_python(value))
