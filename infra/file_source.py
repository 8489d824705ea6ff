"""Runs from the files that come into one folder.

1. a file is taken once it has had the same size and time of change at two looks, SETTLE_S apart;
   names that begin with a dot, or end like those of unfinished files, are not looked at
2. it is read, mapped, and its run asked for; the run_id is made of its name and its content, so
   that the same file is the same run, also when the process died before 3
3. once the log has acknowledged the start the file is moved to `done/`; one that cannot be used
   goes to `failed/`, with a file beside it that says why

What is there at the start is taken as well. Changes are told by the operating system, and looked
for every RESCAN_S besides, since not every file system tells.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from watchfiles import awatch

from surefoot.consumers.threads import in_thread
from surefoot.infra.sources import BadEvent, Starter, name_of, payload_of
from surefoot.schemas.payload import strict_json
from surefoot.state.agent import Agent
from surefoot.state.errors import ConfigError
from surefoot.state.sources import DONE, FAILED, FolderTrigger, WatchedFile

log = structlog.get_logger(__name__)

SETTLE_S = 0.5
RESCAN_S = 10.0
#: files in work at a time
AT_ONCE = 16
#: largest file that is taken
FILE_MAX_BYTES = 16 * 1024 * 1024
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".swp", "~")


@dataclass(frozen=True, slots=True)
class _Look:
    """What tells that a file has not changed in between."""

    inode: int
    size: int
    changed_ns: int


class FileSource:
    """`triggers`: those of every agent that listens to this pattern."""

    def __init__(
        self,
        base: Path,
        pattern: str,
        triggers: Sequence[tuple[Agent, FolderTrigger]],
        starter: Starter,
    ) -> None:
        """`base`: what the pattern is relative to. Raises: ConfigError — no such folder."""
        self.name = f"files {pattern}"
        folder, _, self._names = pattern.rpartition("/")
        self._folder = base / folder
        self._triggers = triggers
        self._starter = starter
        #: files that have changed of late, as they were at the last look
        self._seen: dict[Path, _Look] = {}
        #: files that could not be moved away, as they were; not taken again
        self._stuck: dict[Path, _Look] = {}
        self._changed = asyncio.Event()
        if not self._folder.is_dir():
            raise ConfigError(
                "SF1022", f"there is no folder {self._folder}; make it, or change {pattern!r}"
            )

    async def run(self) -> None:
        """Under cancellation: a file whose start is under way stays, and is the same run later."""
        log.info("folder_ready", folder=str(self._folder), names=self._names)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._look_again_and_again())

    async def _listen(self) -> None:
        async for _ in awatch(self._folder, recursive=False, step=50):
            self._changed.set()

    async def _look_again_and_again(self) -> None:
        while True:
            self._changed.clear()
            settled = await in_thread(self._look)
            for start in range(0, len(settled), AT_ONCE):
                async with asyncio.TaskGroup() as tasks:
                    for path, look in settled[start : start + AT_ONCE]:
                        tasks.create_task(self._take(path, look))
            if self._seen:
                await asyncio.sleep(SETTLE_S)
                continue
            try:
                async with asyncio.timeout(RESCAN_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _look(self) -> list[tuple[Path, _Look]]:
        """The files that are as they were at the last look; the others are remembered."""
        before, self._seen = self._seen, {}
        settled = []
        for path in sorted(self._folder.glob(self._names)):
            look = _look_at(path)
            if look is None or _unfinished(path.name) or self._stuck.get(path) == look:
                continue
            if before.get(path) == look:
                settled.append((path, look))
            else:
                self._seen[path] = look
        return settled

    async def _take(self, path: Path, look: _Look) -> None:
        content = b""
        try:
            content = await in_thread(_read, path)
            if _look_at(path) != look:
                return  # it is being written after all
            await self._start(WatchedFile(path=path, body=content))
        except FileNotFoundError:
            return  # somebody else has taken it
        except (BadEvent, OSError) as error:
            log.warning("file_bad", file=str(path), error=str(error))
            await in_thread(self._move, path, look, FAILED, content, str(error))
        else:
            await in_thread(self._move, path, look, DONE, content)

    async def _start(self, file: WatchedFile) -> None:
        """Raises: BadEvent, once every agent that can use the file has its run."""
        run_id = run_id_of(file)
        started: set[str] = set()
        faults = []
        for agent, trigger in self._triggers:
            try:
                if agent.name not in started and (
                    payload := await payload_of(agent, trigger.fn, file)
                ):
                    started.add(agent.name)
                    named = name_of(agent, run_id, payload)
                    await self._starter.start(agent.name, named, payload)
            except BadEvent as error:
                faults.append(str(error))
        log.info("file_taken", file=str(file.path), run_id=run_id, agents=sorted(started))
        if faults:
            raise BadEvent("\n".join(faults))

    def _move(self, path: Path, look: _Look, into: str, content: bytes, reason: str = "") -> None:
        """A file that has changed in the meantime is another one, and stays."""
        if _look_at(path) != look:
            return
        target = self._folder / into / path.name
        if target.exists():
            target = target.with_stem(f"{target.stem}.{hashlib.sha256(content).hexdigest()[:8]}")
        try:
            target.parent.mkdir(exist_ok=True)
            if reason:
                target.with_name(f"{target.name}.reason.txt").write_text(f"{reason}\n")
            path.replace(target)
        except OSError as error:
            self._stuck[path] = look
            log.warning("file_not_moved", file=str(path), error=str(error))


def run_id_of(file: WatchedFile) -> str:
    """The same for the same name and content."""
    parts = [file.name, hashlib.sha256(file.body).hexdigest()]
    return f"file-{hashlib.sha256(strict_json(parts)).hexdigest()[:32]}"


def _unfinished(name: str) -> bool:
    return name.startswith(".") or name.endswith(_UNFINISHED)


def _look_at(path: Path) -> _Look | None:
    """None for what is no regular file; a link could lead anywhere."""
    try:
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return _Look(found.st_ino, found.st_size, found.st_mtime_ns)


def _read(path: Path) -> bytes:
    """Raises: BadEvent for a file that is too large; OSError."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        content = file.read(FILE_MAX_BYTES + 1)
    if len(content) > FILE_MAX_BYTES:
        raise BadEvent(f"it has more than {FILE_MAX_BYTES} bytes")
    return content
