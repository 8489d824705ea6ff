"""Where in the author's code an attempt failed."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

#: innermost frames kept of one exception, and lines kept in all, its causes included
FRAMES_MAX = 8
_ALL_MAX = 16
_FRAME_MAX = 200
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def frames(error: BaseException, package: str) -> tuple[str, ...]:
    """Return `FILE:LINE in FUNCTION` of the author's frames, in the order of the calls.

    Frames of Surefoot and of libraries are omitted. Then follow those of the causes, each headed by
    its class. `package`: the author's, which counts even if installed like a library.
    """
    told = [_line(each) for each in _authors(error, package)]
    seen = {id(error)}
    for cause in _causes(error, seen):
        found = [_line(each) for each in _authors(cause, package)]
        if found:
            told += [f"from {type(cause).__name__}", *found]
    return tuple(each[:_FRAME_MAX] for each in told[:_ALL_MAX])


def _causes(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    """Yield the causes, nearest first, each once."""
    causes: Sequence[BaseException]
    if isinstance(error, BaseExceptionGroup):
        causes = error.exceptions
    else:
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            cause = error.__context__
        causes = () if cause is None else (cause,)
    for each in causes:
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            yield from islice(_causes(each, seen), _ALL_MAX)


def _authors(error: BaseException, package: str) -> list[traceback.FrameSummary]:
    """Return the innermost frames of the author's code."""
    found = [
        traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_authors(str(frame.f_globals.get("__name__")), frame.f_code.co_filename, package)
    ]
    return found[-FRAMES_MAX:]


def _is_authors(module: str, file: str, package: str) -> bool:
    top = module.partition(".")[0]
    if top == "surefoot":
        return module.startswith("surefoot.examples")
    return top == package or not file.startswith((*_LIBRARIES, "<frozen "))


def _line(frame: traceback.FrameSummary) -> str:
    path = Path(frame.filename)
    with suppress(OSError, ValueError):  # outside of the current folder, or that no longer exists
        path = path.relative_to(Path.cwd())
    return f"{path}:{frame.lineno} in {frame.name}"
