"""Notices that an agent's file, or something that it imports, was changed to something that loads.

What it imports is what its source names, also within functions, and what the process has loaded of
the author's own; so a test or a script beside it starts nothing anew, and a file that is missing or
broken is waited for. Whether it loads is tried in a process of its own, so that what a half-written
file does hurts nobody. Only then is it imported here, with all that it imports.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from watchfiles import PythonFilter, awatch

from surefoot.infra.broker.config import say
from surefoot.infra.runtime.loader import forget, imported, load_agents, roots
from surefoot.state.declare.agent import Agent

#: for the case that the operating system does not tell of a change; in milliseconds
_LOOK_MS = 1_000
_MS_OF_STEP = 50

#: path, time of change and size of each file
_Seen = dict[Path, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Changed:
    """What was changed, and the agents that were loaded then."""

    files: list[Path]
    agents: list[Agent]


class Reload:
    """What the agents' file was when it was last looked at. Make it when it has been loaded."""

    def __init__(self, agent_file: Path) -> None:
        # What was compiled is told by the second in which it was written, and so can be stale.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self._file = agent_file
        self._roots = roots()
        #: of the author's modules that were loaded last
        self._loaded = set(imported().values())
        self._seen = self._look()

    async def changed(self) -> Changed:
        """Wait until it was changed, and loads; what does not load is told, and waited with.

        Under cancellation: a change that came in the meantime is seen by the next call.
        """
        files: set[Path] = set()
        while True:
            await self._until_changed()
            before, self._seen = self._seen, self._look()
            files |= {path for path, _ in before.items() ^ self._seen.items()}
            try:
                if await self._loads():
                    return Changed(sorted(files), self._load())
            except Exception as error:  # noqa: BLE001  (the author's code)
                say(f"{type(error).__name__}: {error}")  # it was changed again just now
            say(f"{self._file} does not load; the agents go on as they were")

    async def _until_changed(self) -> None:
        async for _ in awatch(
            *self._folders(),
            watch_filter=PythonFilter(),
            step=_MS_OF_STEP,
            rust_timeout=_LOOK_MS,
            yield_on_timeout=True,
            recursive=False,
        ):
            if self._look() != self._seen:
                return

    async def _loads(self) -> bool:
        """Whether a new process can import it; why not is on its stderr, which is ours."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "surefoot.infra.runtime.loader", str(self._file)
        )
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def _load(self) -> list[Agent]:
        """Files that it loads for the first time are seen as they are now, the others as they were
        before: what was changed while it was loaded is noticed."""
        forget()
        agents = load_agents([self._file])
        self._loaded = set(imported().values())
        self._seen = self._look() | self._seen
        return agents

    def _folders(self) -> set[Path]:
        return {*self._roots, *(path.parent for path in self._seen)}

    def _look(self) -> _Seen:
        """The files that make up the agents, each as it is now."""
        seen: _Seen = {}
        found = [*self._loaded, *imported().values()]
        while found:
            path = found.pop()
            if path in seen:
                continue
            with contextlib.suppress(OSError):  # gone in the meantime
                is_now = path.stat()
                seen[path] = (is_now.st_mtime_ns, is_now.st_size)
                for base, name in _names_in(path, seen[path]):
                    for root in self._roots if base is None else [base]:
                        found += _files(root, name)
        return seen


@lru_cache(maxsize=4096)
def _names_in(path: Path, _as_of: tuple[int, int]) -> list[tuple[Path | None, str]]:
    """(folder from which it counts, if it says so; dotted name) of what may be a module, of each
    import statement of the file, wherever in it that is."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # ValueError: a zero byte
        return []
    found: list[tuple[Path | None, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                found += [(None, alias.name) for alias in node.names]
            case ast.ImportFrom(level=level):
                base = path.parents[level - 1] if 0 < level <= len(path.parents) else None
                prefix = f"{node.module}." if node.module else ""
                found += [(base, prefix + alias.name) for alias in node.names]
    return found


def _files(folder: Path, name: str) -> Iterator[Path]:
    """Of the module and of the packages that it is in, as far as there are any."""
    for part in name.split("."):
        for file in (folder / f"{part}.py", folder / part / "__init__.py"):
            if file.is_file():
                yield file
        folder /= part
