"""Files that are there whole or not at all, and what killed writers leave."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from surefoot.infra.archive.store import FolderArchive
from surefoot.infra.blobs.stores import FolderBlobs
from surefoot.infra.runtime.atomic_files import is_unfinished, write_whole
from surefoot.schemas.pointer import pointer_to

KILLED = """
import os, sys
from pathlib import Path
from surefoot.infra.runtime.atomic_files import write_whole
os.fsync = lambda _: os._exit(9)
write_whole(Path(sys.argv[1]), b"half of it", top=Path(sys.argv[2]))
"""


def killed_while_writing(path: Path, top: Path) -> Path:
    """What is left of it."""
    before = set(top.rglob(".*"))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), str(top)], check=False)
    assert killed.returncode == 9
    (left,) = set(top.rglob(".*")) - before
    assert is_unfinished(left.name)
    return left


async def test_a_sweep_finds_what_a_killed_writer_has_left(tmp_path: Path) -> None:
    store = FolderBlobs(tmp_path / "blobs")
    pointer = pointer_to(b"1", 0)
    await store.put(pointer, b"1")
    left = killed_while_writing(tmp_path / "blobs" / pointer.key, tmp_path / "blobs")
    (left.parent / ".mine").write_text("somebody's")
    found = {key async for key, _ in store.keys()}  # noqa: SIM118
    assert found == {pointer.key, f"{pointer.day}/{left.name}"}
    for key in found:
        await store.delete(key)
    assert [path.name for path in left.parent.iterdir()] == [".mine"]


async def test_an_archive_deletes_at_its_start_what_killed_writers_have_left_long_ago(
    tmp_path: Path,
) -> None:
    store = FolderArchive(tmp_path / "archive")
    await store.put("2026/a", b"1")
    old, young = (
        killed_while_writing(tmp_path / "archive" / "2026" / "b", tmp_path / "archive")
        for _ in range(2)
    )
    long_ago_s = old.stat().st_mtime - 4_000
    os.utime(old, (long_ago_s, long_ago_s))
    await store.check()
    assert (old.exists(), young.exists()) == (False, True)
    assert await store.keys("") == ["2026/a"]


def test_a_folder_that_goes_away_while_a_file_is_begun_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, gone = tempfile.mkstemp, iter((True,))

    def beginning(**where: Any) -> tuple[int, str]:
        if next(gone, False):
            Path(where["dir"]).rmdir()
        return begin(**where)

    monkeypatch.setattr(tempfile, "mkstemp", beginning)
    assert write_whole(tmp_path / "day" / "a", b"1", top=tmp_path)
    assert (tmp_path / "day" / "a").read_bytes() == b"1"


@pytest.mark.skipif(sys.platform == "win32", reason="modes of files are those of POSIX")
def test_only_its_user_reads_a_file(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for replace in (True, False):
            path = tmp_path / f"{replace}"
            write_whole(path, b"1", top=tmp_path, replace=replace)
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
