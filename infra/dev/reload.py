"""Detects that an agent's file, or something that it imports, has changed to something that loads.

Imports are those that its source names, also within functions, and those that the process has
loaded of the author's own modules; so a test or a script beside it restarts nothing, and a missing
or broken file is waited for. A process of its own tests whether it loads, so that a half-written
file does no harm. Only then is it imported here, with all that it imports.
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

#: polling interval for changes that the operating system does not report, in milliseconds
_LOOK_MS = 1_000
_MS_OF_STEP = 50

#: time of change and size of each file
_Seen = dict[Path, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Changed:
    """The changed files, and the agents loaded from them."""

    files: list[Path]
    agents: list[Agent]


class Reload:
    """Remembers the agents' files as of the last look. Create it after loading them."""

    def __init__(self, agent_file: Path) -> None:
        # Bytecode is matched by the second of the source's change, and so can be stale.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self._file = agent_file
        self._roots = roots()
        #: files of the author's modules as of the last load
        self._loaded = set(imported().values())
        self._seen = self._look()

    async def changed(self) -> Changed:
        """Wait for a change that loads; reports one that does not, and waits on.

        Under cancellation: the next call sees a change that came in the meantime.
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
                say(f"{type(error).__name__}: {error}")  # it has changed again just now
            say(f"{self._file} does not load; the agents run on unchanged")

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
        """Whether a new process can import it; the reason goes to its stderr, which is ours."""
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
        """Load the agents. A change during the load is noticed later.

        Files loaded for the first time are recorded as they are now, the others as they were
        before."""
        forget()
        agents = load_agents([self._file])
        self._loaded = set(imported().values())
        self._seen = self._look() | self._seen
        return agents

    def _folders(self) -> set[Path]:
        return {*self._roots, *(path.parent for path in self._seen)}

    def _look(self) -> _Seen:
        """Return the files that make up the agents, as they are now."""
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
    """Return (base folder of a relative import, dotted name) of every import in the file.

    A name may be a module or something inside one."""
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
    """Yield the existing files of the module and of its packages."""
    for part in name.split("."):
        for file in (folder / f"{part}.py", folder / part / "__init__.py"):
            if file.is_file():
                yield file
        folder /= part
