"""Resolves the annotations of an author's function, each one by itself.

An annotation that cannot be resolved matters only if somebody needs it; nobody needs the type of
`ctx`, or what a step returns. Names are looked up where Python looks (the function's module, the
enclosing functions), and in the module's imports for type checkers.
"""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Callable
from functools import partial
from importlib.util import resolve_name
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

from surefoot.state.errors import ConfigError

#: marks a parameter or a return value without an annotation
MISSING = inspect.Parameter.empty


def plain_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function behind a partial, a callable object or a method, and behind decorators
    that use functools.wraps."""
    while True:
        if isinstance(fn, partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif hasattr(fn, "__func__"):
            fn = fn.__func__
        elif inspect.isroutine(fn) or inspect.isclass(fn):
            return fn
        else:
            fn = type(fn).__call__


def why_hidden(fn: Callable[..., Any]) -> str:
    """Return a hint for a message about wrong arguments of `fn`: a decorator may hide the real
    ones. Empty when `fn` does not look decorated."""
    made = plain_function(fn)
    any_number = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    passes_on = any(each.kind in any_number for each in inspect.signature(fn).parameters.values())
    if not passes_on and not getattr(made, "__annotations__", None):
        passes_on = any(map(inspect.isroutine, _closed_over(made).values()))
    told = "; if it is decorated, use @functools.wraps in the decorator"
    return told if passes_on else ""


def annotation(fn: Callable[..., Any], name: str, where: str) -> Any:
    """Return the annotated type of parameter `name` (or "return") of `fn`; MISSING without one.

    Raises: ConfigError - it cannot be resolved; the message names it
    """
    # A decorator may declare other annotations than the function it wraps.
    annotated, fn = fn if inspect.isroutine(fn) else plain_function(fn), plain_function(fn)
    written = getattr(annotated, "__annotations__", {}).get(name, MISSING)
    if written is MISSING or isinstance(written, type):
        return written
    known, names = getattr(fn, "__globals__", {}), _names_around(fn)
    try:
        return resolved(written, known, names, getattr(fn, "__module__", None))
    except Exception as error:
        told = str(error) if isinstance(error, NameError) else repr(error)
        raise _unresolved(where, name, written, told) from error


def resolved(written: Any, known: dict[str, Any], names: dict[str, Any], module: str | None) -> Any:
    """Resolve a written annotation to a type.

    A name in neither `known` nor `names` is looked for among the module's imports for type
    checkers, and added to `names`.

    Raises: NameError - it is not there either; whatever else an invalid annotation raises
    """
    alone: Any = SimpleNamespace(__annotations__={"it": written})
    while True:
        try:
            return typing.get_type_hints(alone, known, names, include_extras=True)["it"]
        except NameError as error:
            found = _for_checkers(module)
            if error.name not in found or error.name in names:
                raise
            names[error.name] = found[error.name]


def _unresolved(where: str, name: str, written: Any, why: str) -> ConfigError:
    what = "the return type" if name == "return" else repr(name)
    return ConfigError(
        "SF1183",
        f"{where}: the annotation {str(written)!r} of {what} cannot be resolved ({why}); define or "
        "import that type at module level, above the function",
    )


def _names_around(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the names that the functions around `fn` define: those it uses, and, while these
    functions run, all of their locals."""
    found: dict[str, Any] = {}
    code: Any = getattr(fn, "__code__", None)
    frame: FrameType | None = sys._getframe()
    if "<locals>" not in getattr(fn, "__qualname__", ""):
        return found
    while frame is not None and isinstance(code, CodeType):
        if _holds(frame.f_code, code):
            found = {**frame.f_locals, **found}
            code = frame.f_code
        frame = frame.f_back
    return found | _closed_over(fn)


def _closed_over(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the enclosing variables that `fn` uses, if they have a value yet."""
    found: dict[str, Any] = {}
    for name, cell in zip(
        getattr(getattr(fn, "__code__", None), "co_freevars", ()),
        getattr(fn, "__closure__", None) or (),
        strict=True,
    ):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _holds(outer: CodeType, inner: CodeType) -> bool:
    """Whether `inner` is defined in `outer`, or in the body of a class in it."""
    made = [each for each in outer.co_consts if isinstance(each, CodeType)]
    return any(each is inner or _holds(each, inner) for each in made)


def _for_checkers(name: str | None) -> dict[str, Any]:
    """Return the module's imports under `if TYPE_CHECKING:`, from modules that are loaded."""
    module = sys.modules.get(name or "")
    try:
        tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    except (OSError, TypeError, SyntaxError):  # the source is not available
        return {}
    found: dict[str, Any] = {}
    for block in ast.walk(tree):
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING"):
            for node in block.body:
                found |= _loaded(node, getattr(module, "__package__", None))
    return found


def _loaded(node: ast.stmt, package: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(node, ast.Import):
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            found[alias.asname or name] = sys.modules.get(name)
    elif isinstance(node, ast.ImportFrom):
        origin = resolve_name("." * node.level + (node.module or ""), package)
        for alias in node.names:
            whole = sys.modules.get(f"{origin}.{alias.name}")
            found[alias.asname or alias.name] = getattr(sys.modules.get(origin), alias.name, whole)
    return {name: value for name, value in found.items() if value is not None}
