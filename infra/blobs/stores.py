"""Stores of large payloads: an S3 bucket, or a folder that every process sees."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from surefoot.consumers.attempts.claim_check import ClaimCheck
from surefoot.consumers.attempts.threads import in_thread
from surefoot.infra.aws.client import S3_CALLS_MAX, Aws, AwsAnswer, AwsRefused
from surefoot.infra.encryption.blobs import EncryptedBlobs
from surefoot.infra.runtime.atomic_files import is_unfinished, write_whole
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.payload import strict_json
from surefoot.schemas.pointer import Pointer, pointer_to
from surefoot.state.errors import ConfigError, StoreRefused, Unavailable
from surefoot.state.ports.blobs import Blobs
from surefoot.state.ports.clock import Clock

log = structlog.get_logger(__name__)

#: how long a check may take, in seconds
_CHECK_S = 15.0
_KEY = re.compile(r"\d{8}/[0-9a-f]{64}")
_DAY = re.compile(r"\d{8}")


def open_blobs(settings: Settings) -> Blobs | None:
    """Open the store that the settings name, encrypted if they name keys. Raises ConfigError — it
    cannot be used."""
    store = _open(settings)
    return None if store is None else EncryptedBlobs(store, settings)


def _open(settings: Settings) -> Blobs | None:
    where = settings.blobs
    if where is None:
        return None
    if where.startswith("s3://"):
        bucket, _, prefix = where.removeprefix("s3://").partition("/")
        start = "".join(f"{part}/" for part in (prefix.strip("/"), settings.app) if part)
        return S3Blobs(Aws(settings, "s3", at_once=S3_CALLS_MAX), bucket, start)
    folder = Path(where)
    if not folder.is_dir():
        raise ConfigError(
            "SF1022", f"SUREFOOT_BLOBS: there is no folder {where}; make it, or correct the setting"
        )
    return FolderBlobs(folder / settings.app)


def open_claims(settings: Settings, clock: Clock) -> ClaimCheck:
    """Return a claim check for one event loop. Raises ConfigError."""
    return ClaimCheck(
        clock, open_blobs(settings), settings.blob_over_bytes, settings.blob_step_max_bytes
    )


async def check_blobs(settings: Settings, clock: Clock) -> None:
    """Store, read and delete a probe, before there is anything to lose.

    A store that is unavailable does not prevent the start.

    Raises: ConfigError — it refuses, or does not return what was stored.
    """
    blobs = open_blobs(settings)
    if blobs is None:
        return
    # unique content, so that no other process deletes it meanwhile; if it cannot be deleted, for
    # lack of permission, a sweep removes it
    content = strict_json(["probe", settings.instance, os.getpid(), clock.now_ms(), clock.random()])
    pointer = pointer_to(content, clock.now_ms())
    try:
        async with asyncio.timeout(_CHECK_S):
            await blobs.put(pointer, content)
            found = await blobs.get(pointer)
            with suppress(StoreRefused):  # a process that stores and reads may lack that permission
                await blobs.delete(pointer.key)
    except StoreRefused as error:
        raise ConfigError(
            "SF1070",
            f"SUREFOOT_BLOBS: {error.message}; correct the bucket or the permissions, or, where "
            "the store is not AWS's own, set SUREFOOT_AWS_CHECKSUMS=when_required "
            "(docs/how-to/large-payloads.md)",
        ) from error
    except (Unavailable, TimeoutError) as error:
        log.warning("blobs_not_checked", store=blobs.name, reason=str(error) or "no answer")
        return
    if found != content:
        raise ConfigError(
            "SF1070",
            f"SUREFOOT_BLOBS: {blobs.name} does not return what was stored in it; use another "
            "store, or, where it is not AWS's own, set SUREFOOT_AWS_CHECKSUMS=when_required "
            "(docs/how-to/large-payloads.md)",
        )


class FolderBlobs:
    """Implements ports.Blobs."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder

    async def put(self, pointer: Pointer, content: bytes) -> None:
        await _told(self._put, self._folder / pointer.key, content)

    async def get(self, pointer: Pointer) -> bytes | None:
        return await _told(self._get, self._folder / pointer.key)  # type: ignore[no-any-return]

    async def keys(self) -> AsyncIterator[tuple[str, int]]:
        for found in await _told(self._keys):
            yield found

    async def delete(self, key: str) -> None:
        await _told(self._delete, self._folder / key)

    def _put(self, path: Path, content: bytes) -> None:
        write_whole(path, content, top=self._folder)

    def _get(self, path: Path) -> bytes | None:
        with suppress(FileNotFoundError):
            return path.read_bytes()
        return None

    def _keys(self) -> list[tuple[str, int]]:
        return list(self._walk())

    def _walk(self) -> Iterator[tuple[str, int]]:
        """Yield (key, size), including files of killed writers, which a sweep then deletes."""
        for path in self._folder.glob("*/*"):
            key = path.relative_to(self._folder).as_posix()
            left = is_unfinished(path.name) and _DAY.fullmatch(path.parent.name)
            if left or _KEY.fullmatch(key):
                with suppress(FileNotFoundError):  # its writer has just finished, and renamed it
                    yield key, path.stat().st_size

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # the day has other blobs
            path.parent.rmdir()


async def _told(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return await in_thread(fn, *args)
    except OSError as error:
        raise Unavailable("SF3014", str(error)) from error


class S3Blobs:
    """Implements ports.Blobs."""

    def __init__(self, aws: Aws, bucket: str, prefix: str) -> None:
        self.name = f"s3://{bucket}/{prefix}"
        self._aws = aws
        self._bucket = bucket
        self._prefix = prefix

    async def put(self, pointer: Pointer, content: bytes) -> None:
        await self._call("put_object", Key=self._prefix + pointer.key, Body=content)

    async def get(self, pointer: Pointer) -> bytes | None:
        answer = await self._call("get_object", Key=self._prefix + pointer.key)
        return None if answer is None else answer["Body"]

    async def keys(self) -> AsyncIterator[tuple[str, int]]:
        more: dict[str, str] = {}
        while True:
            page = await self._call("list_objects_v2", Prefix=self._prefix, **more) or {}
            for found in page.get("Contents", []):
                key = found["Key"].removeprefix(self._prefix)
                if _KEY.fullmatch(key):
                    yield key, found["Size"]
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    async def delete(self, key: str) -> None:
        await self._call("delete_object", Key=self._prefix + key)

    async def _call(self, operation: str, **arguments: Any) -> AwsAnswer | None:
        try:
            return await self._aws.call(operation, Bucket=self._bucket, **arguments)
        except AwsRefused as error:
            if error.code == "NoSuchKey":
                return None
            raise StoreRefused("SF3070", f"{self.name} refuses the request: {error}") from error
