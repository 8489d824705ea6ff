"""Values of user code to strict JSON and back, or a refusal that says which value and why.

The promise: what is read back equals what was stored, in value and in type, at every level;
anything else is refused before it is stored. The check is the round trip itself: dump, load,
compare. There is thus no list of supported types to get wrong: whatever pydantic can restore from
the declared type is supported. Without a declared type (Any), that is plain JSON.

Where nothing is lost, the declared type wins: an int given for a float or a Decimal, and a list
given for a tuple, become the declared type.

Not kept, on purpose: which fields of a model were set explicitly; the name of a fixed UTC offset;
that two places referred to one object. A class that is neither a dataclass nor a pydantic model is
compared by its own ==.

Stored data never runs code: it is parsed as JSON and checked against a type from the source.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from functools import cached_property
from io import IOBase
from operator import attrgetter
from types import MemberDescriptorType
from typing import Any, Generic, Literal, Protocol
from uuid import UUID

from pydantic import BaseModel, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_core import TzInfo, from_json

from surefoot.schemas.pointer import pointer_of, unescaped
from surefoot.schemas.text import halves_are_refused, whole, whole_json
from surefoot.schemas.weak_cache import weakly_cached

__all__ = [
    "BadPayload",
    "JsonObject",
    "Unserialisable",
    "digest",
    "dump",
    "dump_and_load",
    "dump_own",
    "load",
    "parse_json",
    "strict_json",
    "text_of",
    "validate",
]


#: a JSON object of anybody's: an author's data, a provider's message
JsonObject = dict[str, Any]


class Validator(Protocol):
    """Validates values: a TypeAdapter, for example."""

    def validate_python(self, value: Any, /, *, by_alias: bool, by_name: bool) -> Any: ...


_ANY: TypeAdapter[Any] = TypeAdapter(Any)
_TEXT: TypeAdapter[str] = TypeAdapter(str)

#: kinds of values that can be stored, for messages
STORABLE = (
    "a dataclass, a pydantic model, a TypedDict (before Python 3.12 that of typing_extensions) or "
    "plain JSON types"
)


def why_not_storable(error: Exception) -> str:
    """Return pydantic's reason why it has no schema for a type: one line, without the link."""
    return " ".join(str(error).partition("\n\nFor further information")[0].split())


#: the JSON parser's own limit; nothing deeper is stored, since it could not be read
_DEPTH_MAX = 200

#: types without parts whose == compares everything about two values of the same type
_EXACT = frozenset({str, int, bool, type(None), bytes, UUID, date, timedelta})

#: types that JSON itself has
_PLAIN = frozenset({str, int, float, bool, type(None)})

#: types without parts that are not iterators
_SCALARS = _EXACT | {float, Decimal, datetime, time}

#: path from a value to one of its parts: names, indexes and keys, outermost first
_Steps = tuple[Any, ...]


class Unserialisable(ValueError):
    """A value that would not be read back as it is. `path` is like `$.a[3].b`."""

    #: for `surefoot explain`
    number = "SF2001"

    def __init__(self, path: str, type_name: str, reason: str) -> None:
        super().__init__(path, type_name, reason)
        self.add_note(f"{self.number}: `surefoot explain {self.number}` tells more")
        self.path = path
        self.type_name = type_name
        self.reason = reason

    def __str__(self) -> str:
        return self.message

    @property
    def message(self) -> str:
        return f"{self.path} ({self.type_name}) cannot be stored: {self.reason}"


class BadPayload(ValueError):
    """Bytes that are not strict JSON of the wanted type. `path` is like `$.a[3].b`.

    Path and reason are cut to a readable length: they contain names and values from outside, and
    the message goes into answers, logs and records."""

    #: for `surefoot explain`
    number = "SF2002"

    def __init__(self, path: str, reason: str) -> None:
        self.path = _cut(path, _PATH_MAX)
        self.reason = _cut(reason, _REASON_MAX)
        super().__init__(self.path, self.reason)
        self.add_note(f"{self.number}: `surefoot explain {self.number}` tells more")

    def __str__(self) -> str:
        return self.message

    @property
    def message(self) -> str:
        return f"{self.path}: {self.reason}"


#: longest path and reason that are kept, in characters
_PATH_MAX = 200
_REASON_MAX = 500


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def dump(adapter: TypeAdapter[Any], value: Any) -> bytes:
    """Return `value` as strict JSON (UTF-8) from which `load` makes an equal value. Pure.

    Runs the serializers and validators of the declared type.

    Raises:  Unserialisable: with the path and type of the first value that would be lost or
             changed, and what to do about it
    """
    return dump_and_load(adapter, value)[0]


def dump_and_load(adapter: TypeAdapter[Any], value: Any) -> tuple[bytes, Any]:
    """Return (strict JSON, what `load` makes of it). Pure. Raises as `dump`.

    For callers that continue with the value: it is then the same now and after a restart."""
    return _refusing(lambda: _trip(adapter, value))


def dump_own(value: Any) -> bytes:
    """Return a value without a declared type as strict JSON. Pure.

    Parts of plain lists, tuples and dicts are each stored as their own type.

    Raises:  Unserialisable: as `dump` does for a part of its own type
    """

    def trip() -> tuple[bytes, Any]:
        _refuse_endless(value, set())
        return _trip(_ANY, _plain(value))

    return _refusing(trip)[0]


def _refusing(make: Callable[[], tuple[bytes, Any]]) -> tuple[bytes, Any]:
    try:
        return make()
    except _Refused as refused:
        raise Unserialisable(
            _path(refused.steps[::-1]), _type_name(refused.value), refused.reason
        ) from refused.__cause__


def _trip(adapter: TypeAdapter[Any], value: Any) -> tuple[bytes, Any]:
    _refuse_endless(value, set())
    try:
        return _there_and_back(adapter, value)
    except _Refused:
        made = value if halves_are_refused() else _whole(value)
        if made is value:
            raise
        return _there_and_back(adapter, made)


def _there_and_back(adapter: TypeAdapter[Any], value: Any) -> tuple[bytes, Any]:
    data = _dump_json(adapter, value)
    back = _load_back(adapter, value, data)
    if not _surely_same(value, back):
        _compare(value, back)
    return data, back


def _whole(value: Any) -> Any:
    """Return the value with surrogate halves replaced at every level; itself if it has none."""
    kind: Any = type(value)
    if kind is str:
        made = whole(value)
        return value if made == value else made
    form = _form_of(value)
    if form == "leaf":
        return value
    if form == "object":
        changed = {
            name: made
            for name, part in _state(value).items()
            if part is not _UNSET and (made := _whole(part)) is not part
        }
        return _with(value, changed) if changed else value
    parts = [
        (_whole(step) if form == "mapping" else step, _whole(part))
        for step, part in _parts(value, form)
    ]
    before = list(_parts(value, form))
    if all(a is c and b is d for (a, b), (c, d) in zip(parts, before, strict=True)):
        return value
    try:
        make = getattr(kind, "_make", kind)  # of a NamedTuple
        made = make(parts if form == "mapping" else [part for _, part in parts])
    except Exception:  # noqa: BLE001  (a class with its own kind of constructor)
        return value
    if len(made) < len(value):
        raise _Refused(value, "two of its texts differ only in lone surrogates")
    return made


def _with(value: Any, changed: dict[str, Any]) -> Any:
    made = copy(value)
    for name, part in changed.items():
        object.__setattr__(made, name, part)  # frozen ones too
    return made


def _plain(value: Any) -> Any:
    """Return the value as plain JSON values."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is not dict and kind is not list and kind is not tuple:
        try:
            adapter = TypeAdapter(kind)
        except PydanticSchemaGenerationError as error:
            raise _Refused(value, _advice(value)) from error
        return json.loads(_trip(adapter, value)[0])
    made = []
    for step, part in _parts(value, _form_of(value)):
        try:
            made.append((step, _plain(part)))
        except _Refused as refused:
            refused.steps.append(step)
            raise
    return dict(made) if kind is dict else [part for _, part in made]


def load(adapter: TypeAdapter[Any], data: bytes) -> Any:
    """Return the value of the adapter's type in strict JSON `data`. Pure.

    Raises:  BadPayload: not strict JSON, a number too large for a float, or the wrong type
    """
    return _told(lambda: _load(adapter, data))


def validate(adapter: Validator, value: Any) -> Any:
    """Return the value of the adapter's type for a value of another decoder. Pure.

    Raises:  BadPayload: the wrong type
    """
    return _told(lambda: adapter.validate_python(value, by_alias=True, by_name=True))


def _told(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ValidationError as error:
        steps, reason = _first(error)
        raise BadPayload(_path(steps), reason) from None
    except BadPayload:
        raise
    except Exception as error:  # from one of the author's validators
        raise BadPayload("$", f"{type(error).__name__}: {error}") from error


def strict_json(value: Any) -> bytes:
    """Return a value made of plain JSON types as strict JSON. Pure. Raises Unserialisable."""
    return dump(_ANY, value)


def text_of(value: Any) -> str:
    """Return a text in the form in which it is stored. Pure. Raises Unserialisable."""
    return str(dump_and_load(_TEXT, value)[1])


def parse_json(data: bytes) -> Any:
    """Parse JSON from outside, if it is unambiguous. Pure.

    A UTF-8 byte order mark is accepted, and half of a surrogate pair becomes U+FFFD (see
    schemas.text). Refused are duplicate keys, NaN and Infinity, numbers too large for a float,
    nesting over 200 deep, and integers over 4300 digits.

    Raises:  BadPayload
    Source:  RFC 8259; RFC 7493 (I-JSON) section 2
    """
    return _parse(data.removeprefix(b"\xef\xbb\xbf"), _unique)


def digest(payload: bytes) -> bytes:
    """Return the first 8 bytes of the SHA-256 of a payload as it was before it was stored. Pure.

    Tells a repeated payload from a different one, wherever each is kept."""
    pointer = pointer_of(payload)
    if pointer is None:
        return hashlib.sha256(unescaped(payload)).digest()[:8]
    return bytes.fromhex(pointer.sha256)[:8]


# Strict JSON


def _load(adapter: TypeAdapter[Any], data: bytes) -> Any:
    data = whole_json(data)
    if _may_not_be_finite(data):
        _parse(data, dict)
    return adapter.validate_json(data, by_alias=True, by_name=True)


_SKELETON = bytes.maketrans(b"123456789E", b"000000000e")
_LONG = b"0" * 200


def _may_not_be_finite(data: bytes) -> bool:
    """False if no number in `data` can be NaN or overflow a float. Fast: parses nothing.

    To reach 1e308, a number needs an exponent of three digits or two hundred digits in a row.
    """
    skeleton = data.translate(_SKELETON)
    return (
        b"0e000" in skeleton
        or b"0e+000" in skeleton
        or _LONG in skeleton
        or b"NaN" in skeleton
        or b"Infinity" in skeleton
    )


def _parse(data: bytes, make_object: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    data = whole_json(data)
    try:
        from_json(data, allow_inf_nan=False)  # UTF-8, depth, lone surrogates, digits
        return json.loads(data, object_pairs_hook=make_object, parse_float=_finite)
    except BadPayload:
        raise
    except ValueError as error:
        raise BadPayload("$", f"not strict JSON: {error}") from None


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise BadPayload("$", f"the number {digits[:40]} is too large for a float")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    made: JsonObject = {}
    for key, value in pairs:
        if key in made:
            raise BadPayload("$", f"the key {key[:80]!r} occurs twice in one object")
        made[key] = value
    return made


# The trip there and back


class _Refused(Exception):
    """Collects the steps of its path on the way up; good values thus pay nothing for paths."""

    def __init__(self, value: Any, reason: str, steps: Iterable[Any] = ()) -> None:
        super().__init__(reason)
        self.value = value
        self.reason = reason
        #: innermost first
        self.steps = list(steps)


def _dump_json(adapter: TypeAdapter[Any], value: Any) -> bytes:
    try:
        return adapter.dump_json(value, round_trip=True, warnings=False)
    except Exception as error:  # also from one of the author's serializers
        _blame(value)
        raise _Refused(value, f"{error}; {_advice(value)}") from error


def _load_back(adapter: TypeAdapter[Any], value: Any, data: bytes) -> Any:
    try:
        return _load(adapter, data)
    except ValidationError as error:
        steps, reason = _first(error)
        found = _follow(value, steps)
        raise _Refused(
            found, f"it cannot be read back: {reason}; {_advice(found)}", steps[::-1]
        ) from error
    except Exception as error:  # BadPayload, or from one of the author's validators
        _blame(value)
        raise _Refused(value, f"it cannot be read back: {error}") from error


def _refuse_endless(value: Any, parents: set[int]) -> None:
    """Refuse what must not even be dumped: iterators, which pydantic would use up, and cycles."""
    form = _form_of(value)
    if form == "leaf":
        if hasattr(value, "__next__"):
            raise _Refused(value, _advice(value))
        return
    if id(value) in parents:
        raise _Refused(value, "it contains itself; store a key instead of the reference")
    if len(parents) == _DEPTH_MAX:
        raise _Refused(value, f"it is nested more than {_DEPTH_MAX} deep")
    parents.add(id(value))
    for step, part in _parts(value, form):
        if type(part) not in _SCALARS:
            try:
                _refuse_endless(part, parents)
            except _Refused as refused:
                refused.steps.append(step)
                raise
    parents.discard(id(value))


def _blame(value: Any) -> None:
    """Refuse the first leaf that is not JSON by itself; return if every leaf is."""
    form = _form_of(value)
    if form == "leaf":
        return _blame_leaf(value)
    for step, part in _parts(value, form):
        try:
            _blame(part)
        except _Refused as refused:
            refused.steps.append(step)
            raise
    return None


def _blame_leaf(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _Refused(value, f"{value} is not JSON; {_advice(value)}")
    try:
        _ANY.validate_json(_ANY.dump_json(value))
    except ValueError as error:
        raise _Refused(value, _advice(value)) from error


def _surely_same(sent: Any, back: Any) -> bool:
    """True only if equal in value and type at every level; False may also mean: compare fully.

    The fast path for what nearly every value is made of.
    """
    if type(sent) is not type(back):
        return False
    if type(sent) is not dict and type(sent) is not list:
        if (opened := _opener_of(sent)) is None:
            return False
        sent, back = opened(sent), opened(back)
    if len(sent) != len(back):
        return False
    if type(sent) is dict:
        for name, name_back in zip(sent, back, strict=True):
            if type(name) is not str or type(name_back) is not str or name != name_back:
                return False
        sent, back = sent.values(), back.values()
    for mine, theirs in zip(sent, back, strict=True):
        kind: Any = type(mine)
        if kind is type(theirs) and kind in _EXACT:
            if mine != theirs:
                return False
        elif kind is float and type(theirs) is float:
            if not _same_float(mine, theirs):
                return False
        elif not _surely_same(mine, theirs):
            return False
    return True


def _compare(sent: Any, back: Any) -> None:
    """Refuse the first difference in value or type between `sent` and what was read back."""
    kind: Any = type(sent)
    if kind is not type(back) and not _may_stand_for(sent, back):
        raise _Refused(sent, f"it would come back as {_type_name(back)}; {_advice(sent)}")
    form = _form_of(sent)
    if form == "leaf":
        if kind is type(back) and not _same_leaf(kind, sent, back):
            raise _Refused(sent, f"it would come back as {_short(back)}; {_advice(sent)}")
    elif form == "sequence":
        if len(sent) != len(back) or (kind is deque and sent.maxlen != back.maxlen):
            raise _Refused(sent, f"it would come back as {_short(back)}")
        for index, (mine, theirs) in enumerate(zip(sent, back, strict=True)):
            _compare_part(index, mine, theirs)
    elif form == "set":
        _compare_by_key(dict.fromkeys(sent), dict.fromkeys(back), sent)
    else:
        _compare_by_key(dict(_parts(sent, form)), dict(_parts(back, form)), sent)


def _may_stand_for(sent: Any, back: Any) -> bool:
    """Whether the declared type, that of `back`, accepts what `sent` is."""
    kind: Any = type(sent)
    if kind is int:
        return isinstance(back, float | Decimal) and sent == back
    return kind is list and type(back) is tuple


def _compare_by_key(sent: dict[Any, Any], back: dict[Any, Any], whole: Any) -> None:
    keys_back = {key: key for key in back}
    for key, mine in sent.items():
        if key not in back:
            raise _lost(key, mine)
        _compare_part(key, key, keys_back[key])
        _compare_part(key, mine, back[key])
    if len(sent) != len(back):
        more = next(key for key in back if key not in sent)
        raise _Refused(whole, f"it would come back with {_short(more)} added")


def _compare_part(step: Any, sent: Any, back: Any) -> None:
    try:
        _compare(sent, back)
    except _Refused as refused:
        refused.steps.append(step)
        raise


def _lost(key: Any, value: Any) -> _Refused:
    if isinstance(key, str):
        return _Refused(value, "it would be lost: the declared type does not have it", [key])
    return _Refused(key, "as a key it cannot be read back; use text, or declare its type", [key])


def _same_leaf(kind: type, sent: Any, back: Any) -> bool:
    if kind is float:
        return _same_float(sent, back)
    if kind is datetime or kind is time:
        same_wall = sent.isoformat() == back.isoformat() and sent.fold == back.fold
        return same_wall and _is_fixed(sent.tzinfo)
    if kind is Decimal:
        return str(sent) == str(back)
    try:
        return bool(sent == back)
    except Exception:  # noqa: BLE001  the author's own ==
        return False


def _same_float(sent: float, back: float) -> bool:
    if sent == 0:
        return back == 0 and math.copysign(1, sent) == math.copysign(1, back)
    return sent == back and math.isfinite(sent)


def _is_fixed(zone: tzinfo | None) -> bool:
    """Whether a zone is a fixed offset. Only an offset is stored: a zone with rules would lose its
    daylight saving time."""
    return zone is None or isinstance(zone, timezone | TzInfo) or str(zone) == "UTC"


# The parts of a value

#: marks a slot without a value, which hasattr reports as missing
_UNSET = object()

_Form = Literal["leaf", "sequence", "set", "mapping", "object"]

#: forms of the most common types
_FORMS: Mapping[Any, _Form] = {
    **dict.fromkeys(_SCALARS, "leaf"),
    dict: "mapping",
    list: "sequence",
    tuple: "sequence",
}


def _form_of(value: Any) -> _Form:
    kind: Any = type(value)
    return _FORMS.get(kind) or _form(kind)


@weakly_cached
def _form(kind: Any) -> _Form:
    if kind in _EXACT or issubclass(kind, Enum):
        return "leaf"
    if issubclass(kind, BaseModel) or is_dataclass(kind):
        return "object"
    if issubclass(kind, Mapping):
        return "mapping"
    if issubclass(kind, list | tuple | deque):
        return "sequence"
    return "set" if issubclass(kind, set | frozenset) else "leaf"


def _parts(value: Any, form: _Form) -> Iterable[tuple[Any, Any]]:
    """Return (step of the path, part) for each part of a value that is not a leaf."""
    if form == "mapping":
        return value.items()  # type: ignore[no-any-return]
    return _state(value).items() if form == "object" else enumerate(value)


def _state(value: Any) -> dict[str, Any]:
    """Return everything that a dataclass or model holds, with undeclared and private attributes."""
    state: dict[str, Any] = getattr(value, "__dict__", {})
    kind: Any = type(value)
    if (layout := _layout(kind)) is None:
        return state
    slots, more, derived = layout
    if slots:
        state = {name: getattr(value, name, _UNSET) for name in slots} | state
    for name in more:
        state = state | (getattr(value, name, None) or {})
    if derived:
        state = {name: part for name, part in state.items() if name not in derived}
    return state


@weakly_cached
def _layout(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]] | None:
    """Return where instances keep state besides __dict__: slots, and a model's further dicts; and
    the names in __dict__ that are not state, such as cached properties. None if __dict__ is all."""
    attributes = {
        name: part for base in reversed(kind.__mro__) for name, part in vars(base).items()
    }
    members = [name for name, part in attributes.items() if isinstance(part, MemberDescriptorType)]
    slots = tuple(members) if is_dataclass(kind) else ()
    more: tuple[str, ...] = ()
    if issubclass(kind, BaseModel):
        extra = ("__pydantic_extra__",) if kind.model_config.get("extra") == "allow" else ()
        more = extra + (("__pydantic_private__",) if kind.__private_attributes__ else ())
    derived = {name for name, part in attributes.items() if isinstance(part, cached_property)}
    if issubclass(kind, Generic):
        derived.add("__orig_class__")  # typing's own note of its parameters, as in Page[str](...)
    return (slots, more, frozenset(derived)) if slots or more or derived else None


def _opener_of(value: Any) -> Callable[[Any], Any] | None:
    kind: Any = type(value)
    return _opener(kind)


@weakly_cached
def _opener(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function that opens the parts of such a value in one call: as a dict by name, or as
    a tuple."""
    if kind is tuple:
        return tuple
    if _form(kind) != "object":
        return None
    layout = _layout(kind)
    if layout is None:
        return attrgetter("__dict__")
    slots = layout[0]
    if len(slots) < 2 or kind.__dictoffset__:  # noqa: PLR2004  one alone would not be a tuple
        return None
    # A slot that is not a field may be unset.
    return attrgetter(*slots) if {field.name for field in fields(kind)} == set(slots) else None


# Words for people


def _path(steps: Iterable[Any]) -> str:
    return "$" + "".join(
        f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{_short(step)}]"
        for step in steps
    )


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  the author's own repr, or an integer with too many digits
        return f"a {_type_name(value)}"
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004


def _type_name(value: Any) -> str:
    kind = type(value)
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return prefix + kind.__qualname__


def _first(error: ValidationError) -> tuple[_Steps, str]:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return tuple(step for step in first["loc"] if step != "[key]"), first["msg"]


def _follow(value: Any, steps: _Steps) -> Any:
    """Return the part of `value` at `steps`, as far as they can be followed."""
    for step in steps:
        parts = {} if (form := _form_of(value)) == "leaf" else dict(_parts(value, form))
        if step not in parts:
            break
        value = parts[step]
    return value


def _advice(value: Any) -> str:
    match value:
        case _ if inspect.isawaitable(value):
            return "await it first"
        case IOBase():
            return "read it, and store its content"
        case _ if hasattr(value, "__next__"):
            return "it can be read only once; make a list of it"
        case BaseException():
            return "store str(error) or the fields that matter"
        case _ if callable(value):
            return "code cannot be stored; store a name or the data that it works on"
        case float() if not math.isfinite(value):
            return "use None or text"
        case int() if abs(value) >= 10**4300:
            return "store integers of more than 4300 digits as hexadecimal text"
        case str() if not value.isascii():
            return "replace lone surrogates: text.encode(errors='replace').decode()"
        case bytes():
            return "declare it as pydantic.Base64Bytes, or store value.hex()"
        case datetime() if not _is_fixed(value.tzinfo):
            return "only its UTC offset can be stored; use .astimezone(datetime.UTC)"
        case _:
            return "declare its type in the step's payload, or convert it"
