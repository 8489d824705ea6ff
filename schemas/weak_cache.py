"""A cache that keeps nothing alive."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

_T = TypeVar("_T")


def weakly_cached(fn: Callable[[Any], _T]) -> Callable[[Any], _T]:
    """Remembers what `fn` says of a function or a class, for as long as that is there: one that was
    made in a step holds what the step had, the context and all of a payload.

    What `fn` says must not refer to what it was asked about.
    """
    known: WeakKeyDictionary[Any, _T] = WeakKeyDictionary()

    @wraps(fn)
    def look_up(key: Any) -> _T:
        try:
            return known[key]
        except KeyError:
            made = known[key] = fn(key)
            return made
        except TypeError:  # a built-in one, to which nothing can refer weakly
            return fn(key)

    return look_up
