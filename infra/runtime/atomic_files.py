"""Files that are there whole or not at all, also when the machine dies."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

#: what a file is called while it is written; it keeps that name when its writer is killed
_UNFINISHED = re.compile(r"\.[a-z0-9_]{8}")


def is_unfinished(name: str) -> bool:
    """Whether a file of that name is being written, or was when its writer was killed."""
    return _UNFINISHED.fullmatch(name) is not None


def write_whole(path: Path, content: bytes, *, top: Path, replace: bool = True) -> bool:
    """Returns once it will not be lost; False: there is one already, that is not to be replaced.
    `top`: the folder from which on folders may have to be made.

    Raises: OSError — it is there whole, or not at all.
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
        with suppress(FileNotFoundError):  # as it was empty, somebody has just taken it away
            return tempfile.mkstemp(dir=folder, prefix=".")
