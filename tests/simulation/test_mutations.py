"""The simulation has teeth: protections are taken out of a copy of the engine, one by one, and it
has to notice each within 1,000 seeds."""

from __future__ import annotations

import compileall
import re
import shutil
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
COPIED = ("consumers", "infra", "producers", "schemas", "state", "surefoot", "tests")
WITHIN = 1_000

pytestmark = pytest.mark.timeout(2_700)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine and its tests, to be changed."""
    folder = tmp_path_factory.mktemp("engine")
    for name in COPIED:
        shutil.copytree(
            ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    # By default what was compiled is told by the second in which its source was written, and by its
    # length: a mutation, and what it was before, can have both in common.
    compileall.compile_dir(folder, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return folder


def first_failure(folder: Path, seeds: range, only: str = "") -> int | None:
    """The seed at which something was noticed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.simulation", "--once", "--jobs", "1"),
            *("--seeds", str(len(seeds)), "--from", str(seeds[0])),
            *(("--only", only) if only else ()),
        ],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found = re.search(r"^seed (\d+) at", done.stdout, re.MULTILINE)
    assert (found is not None) == bool(done.returncode)
    return int(found[1]) if found is not None else None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_protection_that_is_taken_out_is_missed(copy: Path, mutation: Mutation) -> None:
    file = copy / mutation.file
    source = file.read_text()
    assert source.count(mutation.old) == 1, "the mutation has lost its place"
    file.write_text(source.replace(mutation.old, mutation.new))
    try:
        assert mutation.seed < WITHIN
        found = first_failure(copy, range(mutation.seed, mutation.seed + 1), mutation.only)
        if found is None:
            found = first_failure(copy, range(WITHIN), mutation.only)
        assert found is not None, f"nobody noticed within {WITHIN} seeds"
    finally:
        file.write_text(source)


def test_the_engine_as_it_is_passes(copy: Path) -> None:
    """What the mutations are told from."""
    for mutation in MUTATIONS:
        assert mutation.new != mutation.old
    seeds = sorted({mutation.seed for mutation in MUTATIONS})
    assert [first_failure(copy, range(seed, seed + 1)) for seed in seeds] == [None] * len(seeds)
