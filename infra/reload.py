"""Notices that an agent's file, or Python beside it, was changed to something that loads.

Whether it loads is tried in a process of its own, so that what a half-written file does hurts
nobody. Only then is it imported here, with all that it imports from its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from watchfiles import PythonFilter, awatch

from surefoot.infra.broker_config import say
from surefoot.infra.loader import load_agents
from surefoot.state.agent import Agent

#: for the case that the operating system does not tell of a change; in milliseconds
_LOOK_MS = 1_000
_MS_OF_STEP = 50

#: path, time of change and size of each file
_Seen = dict[Path, tuple[int, int]]


class Reload:
    """What the agents' file was when it was last looked at. Make it when it has been loaded."""

    def __init__(self, agent_file: Path) -> None:
        # What was compiled is told by the second in which it was written, and so can be stale.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self._file = agent_file
        self._folder = agent_file.resolve().parent
        self._seen = self._look()

    async def changed(self) -> list[Agent]:
        """Wait until it was changed, and loads; what does not load is told, and waited with.

        Under cancellation: a change that came in the meantime is seen by the next call.
        """
        while True:
            await self._until_changed()
            self._seen = self._look()
            try:
                if await self._loads():
                    return self._load()
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
            sys.executable, "-m", "surefoot.infra.loader", str(self._file)
        )
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def _load(self) -> list[Agent]:
        """Folders that it imports from for the first time are seen as they are now, the others as
        they were before: what was changed while it was loaded is noticed."""
        before = {path.parent for path in self._seen}
        roots = {name.partition(".")[0] for name, _ in self._imported()}
        for name in list(sys.modules):  # also a package without a file, which keeps what is in it
            if name.partition(".")[0] in roots:
                del sys.modules[name]
        agents = load_agents([self._file])
        kept = {path: seen for path, seen in self._seen.items() if path.parent in self._folders()}
        new = {path: seen for path, seen in self._look().items() if path.parent not in before}
        self._seen = kept | new
        return agents

    def _folders(self) -> set[Path]:
        return {self._folder, *(path.parent for _, path in self._imported())}

    def _look(self) -> _Seen:
        """Python in the file's folder, and in the folders of what it has imported from below."""
        seen: _Seen = {}
        for folder in self._folders():
            for path in folder.glob("*.py"):
                with contextlib.suppress(OSError):  # gone in the meantime
                    found = path.stat()
                    seen[path] = (found.st_mtime_ns, found.st_size)
        return seen

    def _imported(self) -> Iterator[tuple[str, Path]]:
        """Modules that come from the folder, but for what is installed there."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file is None or name.partition(".")[0] in ("surefoot", "__main__"):
                continue
            path = Path(file)
            if path.is_relative_to(self._folder) and "site-packages" not in path.parts:
                yield name, path
