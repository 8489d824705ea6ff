"""What an author's function is annotated with, each annotation resolved by itself.

One that cannot be resolved matters only if somebody asks for it: the type of `ctx`, or of what a
step returns, nobody does. Names are looked up where Python would (the function's module, what is
around the function), and in what the module imports for type checkers only.
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

#: of a parameter, or of what is returned, that has no annotation
MISSING = inspect.Parameter.empty


def plain_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that is called in the end: of a partial, an object, a method; and what a
    decorator that uses functools.wraps has wrapped."""
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
    """What there is to say besides where the arguments of `fn` are not what they have to be: that a
    decorator may have hidden them. Empty where nothing looks like one."""
    made = plain_function(fn)
    any_number = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    passes_on = any(each.kind in any_number for each in inspect.signature(fn).parameters.values())
    if not passes_on and not getattr(made, "__annotations__", None):
        passes_on = any(map(inspect.isroutine, _closed_over(made).values()))
    told = "; if a decorator has made it, put @functools.wraps on the function that it returns"
    return told if passes_on else ""


def annotation(fn: Callable[..., Any], name: str, where: str) -> Any:
    """The type that `fn` gives its parameter `name` (or "return"); MISSING when it gives none.

    Raises: ConfigError — naming it, when it cannot be resolved.
    """
    # A decorator may say something else than the function that it wraps.
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
    """The type that is written there. What neither `known` nor `names` has is looked for in what
    the module imports for type checkers only, and put into `names`.

    Raises: NameError — it is not there either; whatever else an annotation that is none raises.
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
    what = "what it returns" if name == "return" else repr(name)
    return ConfigError(
        "SF1183",
        f"{where}: the annotation {str(written)!r} of {what} cannot be resolved ({why}); define or "
        "import that type at module level, above the function",
    )


def _names_around(fn: Callable[..., Any]) -> dict[str, Any]:
    """What the functions around `fn` have defined: what it uses of them, and all that they have as
    long as they run."""
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
    """The variables around `fn` that it uses, as far as they are filled."""
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
    """Whether `inner` is made by `outer`, or by the body of a class in it."""
    made = [each for each in outer.co_consts if isinstance(each, CodeType)]
    return any(each is inner or _holds(each, inner) for each in made)


def _for_checkers(name: str | None) -> dict[str, Any]:
    """What that module imports under `if TYPE_CHECKING:`, of modules that are loaded."""
    module = sys.modules.get(name or "")
    try:
        tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    except (OSError, TypeError, SyntaxError):  # there is no source
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
