"""A cache that keeps its keys collectable."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

_T = TypeVar("_T")


def weakly_cached(fn: Callable[[Any], _T]) -> Callable[[Any], _T]:
    """Cache what `fn` returns for a function or a class, as long as that key exists.

    Why: a function made in a step holds what the step had, its context and a whole payload.

    The result of `fn` must not refer to its argument.
    """
    known: WeakKeyDictionary[Any, _T] = WeakKeyDictionary()

    @wraps(fn)
    def look_up(key: Any) -> _T:
        try:
            return known[key]
        except KeyError:
            made = known[key] = fn(key)
            return made
        except TypeError:  # a built-in, which allows no weak reference
            return fn(key)

    return look_up
