"""Starts runs from the files that arrive in one folder.

1. a file is taken once two looks, the settling time apart, find the same size and time of change;
   names that begin with a dot, or end like those of unfinished files, are ignored
2. it is read and mapped, and its run is started; the run_id derives from its name and content, so
   that the same file is the same run, also when the process dies before 3
3. once the log has acknowledged the start the file is moved to `done/`; one that cannot be used
   goes to `failed/`, with a file beside it that says why
4. for a while it is still compared there: if somebody continues to write to it, it is put back, and
   taken again

A file that fails is reported by name and affects no other. Files that exist at the start are taken
too. The operating system reports changes; a scan every RESCAN_S finds the rest, since not every
file system reports them, nor every name.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import structlog
from watchfiles import awatch

from surefoot.consumers.attempts.threads import in_thread
from surefoot.consumers.backoff import backoff
from surefoot.infra.sources.starter import BadEvent, Mappings, Starter, name_of
from surefoot.schemas.payload import strict_json
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.sources import DONE, FAILED, FolderTrigger, WatchedFile
from surefoot.state.errors import ConfigError

log = structlog.get_logger(__name__)

RESCAN_S = 10.0
#: how long a moved file is compared, at least, in seconds
LATE_S = 60.0
#: most files processed at a time
FILES_MAX = 16
#: size of the largest file that is taken, in bytes
FILE_MAX_BYTES = 16 * 1024 * 1024
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".swp", "~")
#: longest file name that file systems allow, in bytes
_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class _Look:
    """What shows that a file has not changed."""

    inode: int
    size: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class _Moved:
    """A file that was moved away."""

    #: where it was before
    path: Path
    #: the file that says why it could not be used
    reason: Path | None
    look: _Look
    #: until when it is compared
    until_s: float


class _Changed(Exception):
    """The file is still being written, or somebody else took it: look again."""


class FileSource:
    """Watches one folder. `triggers`: those of every agent that listens to this pattern."""

    def __init__(
        self,
        base: Path,
        pattern: str,
        triggers: Sequence[tuple[Agent, FolderTrigger]],
        starter: Starter,
        *,
        settle_s: float,
    ) -> None:
        """`base`: the pattern is relative to it. Raises ConfigError — no such folder."""
        self.name = f"files {pattern}"
        folder, _, self._names = pattern.rpartition("/")
        self._folder = base / folder
        self._triggers = triggers
        self._mappings = Mappings(self.name)
        self._starter = starter
        self._settle_s = settle_s
        #: recently changed files, as of the last look
        self._seen: dict[Path, _Look] = {}
        #: files being processed, at most FILES_MAX, and files waiting for that
        self._taken: set[Path] = set()
        self._slots = asyncio.Semaphore(FILES_MAX)
        #: files that could not be moved away, as they were; not taken again
        self._stuck: dict[Path, _Look] = {}
        #: files that were moved away, by their new path
        self._moved: dict[Path, _Moved] = {}
        #: whether to look again after the settling time
        self._unsettled = False
        self._changed = asyncio.Event()
        if not self._folder.is_dir():
            raise ConfigError(
                "SF1022", f"there is no folder {self._folder}; make it, or correct {pattern!r}"
            )

    async def run(self) -> None:
        """Watch until cancelled.

        Under cancellation: a file whose start is under way stays, and is the same run later."""
        log.info("folder_ready", folder=str(self._folder), names=self._names)
        self._taken.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._look_again_and_again(tasks))

    async def _listen(self) -> None:
        """Watch for changes. A name that is not UTF-8 ends the watch: then look, and restart it."""
        for wait_s in backoff(self._starter.clock):
            try:
                async for _ in awatch(self._folder, recursive=False, step=50):
                    self._changed.set()
            except Exception as error:  # noqa: BLE001  (what is not told is found by looking)
                log.info("folder_watch_again", folder=str(self._folder), reason=str(error))
            self._changed.set()
            await asyncio.sleep(wait_s)

    async def _look_again_and_again(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._changed.clear()
            for path, look in await in_thread(self._look):
                self._taken.add(path)
                tasks.create_task(self._take(path, look))
            if self._unsettled:
                await asyncio.sleep(self._settle_s)
                continue
            try:
                async with asyncio.timeout(RESCAN_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _look(self) -> list[tuple[Path, _Look]]:
        """Return the files unchanged since the last look; remembers the others."""
        self._compare()
        before, self._seen = self._seen, {}
        settled = []
        in_work = False
        for path in sorted(self._folder.glob(self._names)):
            if path in self._taken:
                in_work = True
                continue
            look = None if _unfinished(path.name) else _look_at(path)
            if look is None or self._stuck.get(path) == look:
                continue
            if before.get(path) == look:
                settled.append((path, look))
            else:
                self._seen[path] = look
        self._unsettled = in_work or bool(self._seen)
        return settled

    async def _take(self, path: Path, look: _Look) -> None:
        try:
            async with self._slots:
                content, fault = await self._used(path, look)
                await in_thread(self._move, path, look, content, fault)
        except _Changed:
            self._changed.set()
        finally:
            self._taken.discard(path)

    async def _used(self, path: Path, look: _Look) -> tuple[bytes, str]:
        """Read the file and start its runs.

        Returns: its content, if readable, and why it cannot be used ("": started).
        Raises: _Changed."""
        content = b""
        try:
            content = await in_thread(_read, path, look)
            await self._start(WatchedFile(path=path, body=content))
        except _Changed:
            raise
        except (BadEvent, OSError) as error:
            fault = str(error)
        except Exception as error:
            log.exception("file_failed", file=_shown(path))
            fault = f"{type(error).__name__}: {error}"
        else:
            return content, ""
        log.warning("file_bad", file=_shown(path), error=fault)
        return content, fault

    async def _start(self, file: WatchedFile) -> None:
        """Start the file's runs.

        Raises: BadEvent — after every agent that can use the file has its run."""
        run_id = file_run_id(file)
        started: set[str] = set()
        faults = []
        for agent, trigger in self._triggers:
            try:
                if agent.name not in started and (
                    payload := await self._mappings.payload_of(agent, trigger.fn, file)
                ):
                    started.add(agent.name)
                    named = name_of(agent, run_id, payload)
                    await self._starter.start(agent.name, named, payload)
            except BadEvent as error:
                faults.append(str(error))
        log.info("file_taken", file=_shown(file.path), run_id=run_id, agents=sorted(started))
        if faults:
            raise BadEvent("\n".join(faults))

    def _move(self, path: Path, look: _Look, content: bytes, fault: str) -> None:
        """Move the file away.

        Raises: _Changed — it has changed in the meantime, so it counts as another file and
        stays."""
        if (now := _look_at(path)) != look:
            if now is not None and now.inode == look.inode:
                _tell_late(path, "it is read again")
            raise _Changed
        stamp = hashlib.sha256(content or repr(look).encode()).hexdigest()[:8]
        target = self._folder / (FAILED if fault else DONE) / path.name
        if target.exists():
            target = target.with_name(_fitting(target.stem, f".{stamp}{target.suffix}"))
        reason = target.with_name(_fitting(target.name, ".reason.txt")) if fault else None
        try:
            target.parent.mkdir(exist_ok=True)
            if reason is not None:
                reason.write_bytes(f"{fault}\n".encode("utf-8", "backslashreplace"))
            path.replace(target)
        except OSError as error:
            self._stuck[path] = look
            log.warning("file_not_moved", file=_shown(path), error=str(error))
        else:
            until_s = self._starter.clock.monotonic_s() + max(LATE_S, self._settle_s)
            self._moved[target] = _Moved(path, reason, look, until_s)

    def _compare(self) -> None:
        """Put back files that somebody continued to write to after they were moved."""
        for target, moved in list(self._moved.items()):
            now = _look_at(target)
            if now == moved.look and self._starter.clock.monotonic_s() < moved.until_s:
                continue
            del self._moved[target]
            if now is not None and now != moved.look and now.inode == moved.look.inode:
                _put_back(target, moved)


def _put_back(target: Path, moved: _Moved) -> None:
    if moved.path.exists():
        _tell_late(target, "it stays, because the folder has another file of that name")
        return
    try:
        target.replace(moved.path)
        if moved.reason is not None:
            moved.reason.unlink(missing_ok=True)
    except OSError as error:
        _tell_late(target, f"it stays, because it cannot be moved back: {error}")
    else:
        _tell_late(moved.path, "it is moved back, and read again")


def _tell_late(path: Path, what: str) -> None:
    log.warning(
        "file_changed_late",
        file=_shown(path),
        advice=f"the file was written to after it was read, so only a part of it was read; "
        f"{what}. Set SUREFOOT_FILE_SETTLE_S above the writer's longest pause, or write files "
        "under another name and rename them",
    )


def file_run_id(file: WatchedFile) -> str:
    """Return the run_id: the same for the same name and content."""
    parts = [file.path.name, hashlib.sha256(file.body).hexdigest()]
    if file.path.name != file.name:  # not UTF-8
        parts = ["bytes", os.fsencode(file.path.name).hex(), *parts[1:]]
    return f"file-{hashlib.sha256(strict_json(parts)).hexdigest()[:32]}"


def _unfinished(name: str) -> bool:
    return name.startswith(".") or name.endswith(_UNFINISHED)


def _shown(path: PurePath) -> str:
    """Return the path for people, also when it is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _fitting(name: str, ending: str) -> str:
    """Append the ending, and shorten the name where the result would be too long."""
    if len(os.fsencode(name + ending)) <= _NAME_BYTES:
        return name + ending
    stamp = hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
    ending = f".{stamp}{ending}"
    room = max(0, _NAME_BYTES - len(os.fsencode(ending)))
    return os.fsencode(name)[:room].decode("utf-8", "ignore") + ending


def _look_at(path: Path) -> _Look | None:
    """Return None for anything but a regular file; a link could lead anywhere."""
    try:
        return _look_of(path.lstat())
    except OSError:
        return None


def _look_of(found: os.stat_result) -> _Look | None:
    if not stat.S_ISREG(found.st_mode):
        return None
    return _Look(found.st_ino, found.st_size, found.st_mtime_ns)


def _read(path: Path, look: _Look) -> bytes:
    """Return the content. Raises BadEvent — the file is too large; _Changed; OSError."""
    try:
        # do not block on what has become something else meanwhile, such as a pipe
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise _Changed from None
    with os.fdopen(handle, "rb") as file:
        if _look_of(os.fstat(handle)) != look:
            raise _Changed
        content = file.read(FILE_MAX_BYTES + 1)
        if _look_of(os.fstat(handle)) != look:
            raise _Changed
    if len(content) > FILE_MAX_BYTES:
        raise BadEvent(f"the file has more than {FILE_MAX_BYTES} bytes")
    return content
