"""Files that exist whole or not at all, also after a crash of the machine."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

#: name of a file while it is written; it stays if the writer is killed
_UNFINISHED = re.compile(r"\.[a-z0-9_]{8}")


def is_unfinished(name: str) -> bool:
    """Whether a file with that name is being written, or was when its writer was killed."""
    return _UNFINISHED.fullmatch(name) is not None


def write_whole(path: Path, content: bytes, *, top: Path, replace: bool = True) -> bool:
    """Write a file; returns once it is durable. False: it exists, and `replace` is not set.

    `top`: the folder below which missing folders are created.

    Raises: OSError — the file exists whole, or not at all.
    """
    handle, name = _begin(path.parent)
    made = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            made.replace(path)
        else:
            path.hardlink_to(made)
    except FileExistsError:
        return False
    finally:
        made.unlink(missing_ok=True)
    folder = path.parent
    while True:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if folder in (top, folder.parent):
            return True
        folder = folder.parent


def _begin(folder: Path) -> tuple[int, str]:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # empty folders may be removed concurrently
            return tempfile.mkstemp(dir=folder, prefix=".")
