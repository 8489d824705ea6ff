"""Files that are there whole or not at all, also when the machine dies."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes, *, top: Path, replace: bool = True) -> bool:
    """Returns once it will not be lost; False: there is one already, that is not to be replaced.
    `top`: the folder from which on folders may have to be made.

    Raises: OSError — it is there whole, or not at all.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
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
