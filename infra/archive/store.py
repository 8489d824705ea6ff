"""Stores of the archive: an S3 bucket, or a folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from surefoot.consumers.attempts.threads import in_thread
from surefoot.infra.aws.client import S3_CALLS_MAX, Aws, AwsAnswer, AwsRefused
from surefoot.infra.runtime.atomic_files import is_unfinished, write_whole
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import ConfigError, StoreRefused, Unavailable

_THERE = "PreconditionFailed"
#: another request for the same object was under way
_AGAIN = "ConditionalRequestConflict"
_PROBE = "probe"
#: an unfinished file this old has no writer any more, in seconds
_LEFT_S = 3_600.0


class ArchiveStore(Protocol):
    """Objects by key.

    Every call raises Unavailable — SF3041, it may or may not have been done — or StoreRefused —
    SF3066."""

    @property
    def name(self) -> str:
        """For people: where it is."""

    async def put_new(self, key: str, content: bytes) -> bool:
        """Create an object; returns once it is durable. False: it exists, and stays as it is."""

    async def put(self, key: str, content: bytes) -> None:
        """Write an object; returns once it is durable."""

    async def get(self, key: str) -> bytes | None: ...

    async def keys(self, prefix: str) -> Sequence[str]:
        """Return all keys with that prefix, sorted."""

    async def delete(self, key: str) -> None:
        """Delete an object; a missing one is no error."""

    async def check(self) -> None:
        """Raises: ConfigError — it cannot be written to, or overwrites existing objects."""

    async def look(self) -> None:
        """Return if it can be read; raises otherwise."""

    def close(self) -> None: ...


def open_archive(settings: Settings) -> ArchiveStore | None:
    """Open the archive that the settings name. Raises ConfigError — it cannot be used."""
    where = settings.archive
    if where is None:
        return None
    if where.startswith("s3://"):
        bucket, _, prefix = where.removeprefix("s3://").partition("/")
        start = "".join(f"{part}/" for part in (prefix.strip("/"), settings.app) if part)
        return S3Archive(Aws(settings, "s3", at_once=S3_CALLS_MAX), bucket, start)
    folder = Path(where.removeprefix("file://"))
    if not folder.is_dir():
        raise ConfigError(
            "SF1058",
            f"SUREFOOT_ARCHIVE: there is no folder {folder}; make it, or correct the setting",
        )
    return FolderArchive(folder / settings.app)


class FolderArchive:
    """Implements ArchiveStore."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder

    async def put_new(self, key: str, content: bytes) -> bool:
        return bool(await self._told(self._write, key, content, False))

    async def put(self, key: str, content: bytes) -> None:
        await self._told(self._write, key, content, True)

    async def get(self, key: str) -> bytes | None:
        return await self._told(self._read, key)  # type: ignore[no-any-return]

    async def keys(self, prefix: str) -> Sequence[str]:
        return await self._told(self._list, prefix)  # type: ignore[no-any-return]

    async def delete(self, key: str) -> None:
        await self._told((self._folder / key).unlink, True)

    async def check(self) -> None:
        """Check the folder, and delete what killed writers have left there."""
        try:
            await self.put(_PROBE, b"")
            await self._told(self._clear)
            await self.delete(_PROBE)
        except Unavailable as error:
            raise ConfigError("SF1058", f"SUREFOOT_ARCHIVE: {error.message}") from error

    async def look(self) -> None:
        await self._told(os.listdir, self._folder.parent)

    def close(self) -> None:
        """Do nothing: holds no open resources."""

    def _write(self, key: str, content: bytes, replace: bool) -> bool:
        return write_whole(self._folder / key, content, top=self._folder.parent, replace=replace)

    def _clear(self) -> None:
        """Delete unfinished files that are old by the clock of the folder's own file system.

        Stops where a file disappears meanwhile; the next start continues."""
        with suppress(FileNotFoundError):
            now_s = (self._folder / _PROBE).stat().st_mtime
            for path in self._folder.rglob(".*"):
                if is_unfinished(path.name) and now_s - path.stat().st_mtime > _LEFT_S:
                    path.unlink()

    def _read(self, key: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return (self._folder / key).read_bytes()
        return None

    def _list(self, prefix: str) -> list[str]:
        start = self._folder / prefix
        return sorted(
            path.relative_to(self._folder).as_posix()
            for path in start.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        )

    async def _told(self, fn: Callable[..., Any], *args: Any) -> Any:
        try:
            return await in_thread(fn, *args)
        except PermissionError as error:
            raise StoreRefused("SF3066", f"{self.name} refuses the request: {error}") from error
        except OSError as error:
            raise Unavailable("SF3041", str(error)) from error


class S3Archive:
    """Implements ArchiveStore.

    A refusal by S3 is retried like an outage, since a permission can be granted while events wait,
    but is reported with what to do."""

    def __init__(self, aws: Aws, bucket: str, prefix: str) -> None:
        self.name = f"s3://{bucket}/{prefix}"
        self._aws = aws
        self._bucket = bucket
        self._prefix = prefix

    async def put_new(self, key: str, content: bytes) -> bool:
        while True:
            try:
                await self._ask("put_object", Key=self._prefix + key, Body=content, IfNoneMatch="*")
            except AwsRefused as error:
                if error.code == _AGAIN:
                    await asyncio.sleep(0.1)
                    continue
                if error.code == _THERE:
                    return False
                raise self._refused(error) from error
            return True

    async def put(self, key: str, content: bytes) -> None:
        await self._call("put_object", Key=self._prefix + key, Body=content)

    async def get(self, key: str) -> bytes | None:
        try:
            answer = await self._ask("get_object", Key=self._prefix + key)
        except AwsRefused as error:
            if error.code == "NoSuchKey":
                return None
            raise self._refused(error) from error
        content: bytes = answer["Body"]
        return content

    async def keys(self, prefix: str) -> Sequence[str]:
        found: list[str] = []
        more: dict[str, str] = {}
        while True:
            page = await self._call("list_objects_v2", Prefix=self._prefix + prefix, **more)
            found += [each["Key"].removeprefix(self._prefix) for each in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

    async def delete(self, key: str) -> None:
        await self._call("delete_object", Key=self._prefix + key)

    async def check(self) -> None:
        """Check by creating an object twice: S3 checks permissions before conditions."""
        try:
            for _ in range(2):
                made = await self.put_new(_PROBE, b"")
            await self.look()
            await self._ask("get_object", Key=self._prefix + _PROBE)
        except (Unavailable, AwsRefused) as error:
            cause = error.__cause__ if isinstance(error, Unavailable) else error
            if not isinstance(cause, AwsRefused):
                raise
            raise ConfigError(
                "SF1058",
                f"SUREFOOT_ARCHIVE: {self.name} cannot be used: {cause}; correct the bucket or the "
                "permissions (docs/how-to/archive.md), or, where the store is not AWS's own, set "
                "SUREFOOT_AWS_CHECKSUMS=when_required",
            ) from error
        if made:
            raise ConfigError(
                "SF1059",
                f"SUREFOOT_ARCHIVE: {self.name} ignores If-None-Match and overwrites objects; use "
                "a store that supports it",
            )

    async def look(self) -> None:
        await self._call("list_objects_v2", Prefix=self._prefix, MaxKeys=1)

    def close(self) -> None:
        self._aws.close()

    async def _call(self, operation: str, **arguments: Any) -> AwsAnswer:
        try:
            return await self._ask(operation, **arguments)
        except AwsRefused as error:
            raise self._refused(error) from error

    async def _ask(self, operation: str, **arguments: Any) -> AwsAnswer:
        try:
            return await self._aws.call(operation, Bucket=self._bucket, **arguments)
        except Unavailable as error:
            raise Unavailable("SF3041", f"{self.name}: {error.message}") from error

    def _refused(self, error: AwsRefused) -> StoreRefused:
        return StoreRefused("SF3066", f"{self.name} refuses the request: {error}")
