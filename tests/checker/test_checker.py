"""The checker bites: a good history is clean, and each fault that is planted in it is found by the
check that is there for it."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checker import check
from tests.checker.history import History, Programs
from tests.checker.planted import FAULTS
from tests.checker.verdict import CHECKS, JUDGED
from tests.checker.view import View

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: what the checker is made of; the rest of the folder puts it to the test
PARTS = (
    "__init__",
    "history",
    "inputs",
    "log",
    "outside",
    "runs",
    "state",
    "verdict",
    "view",
    "wire",
)

Good = tuple[History, Programs]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    file = tmp_path_factory.mktemp("life") / "history"
    command = [sys.executable, "-m", "tests.checker.good_life", str(file)]
    subprocess.run(command, cwd=ROOT, check=True)
    history, programs = pickle.loads(file.read_bytes())
    assert isinstance(history, History)
    return history, programs


def test_a_good_history_is_clean(good: Good) -> None:
    history, programs = good
    assert history.at_rest
    assert check(history, programs) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_the_check_that_is_there_for_it(good: Good, name: str) -> None:
    history, programs = good
    fault = FAULTS[name]
    spoiled = fault.plant(View(history))
    given = (View(spoiled), programs) if fault.check in JUDGED else (View(spoiled),)
    assert fault.invariant in {violation.invariant for violation in fault.check(*given)}


def test_every_check_has_a_fault_to_find() -> None:
    assert {fault.check for fault in FAULTS.values()} == {*CHECKS, *JUDGED}


def test_checking_is_pure(good: Good) -> None:
    history, programs = good
    spoiled = FAULTS["a step is left out"].plant(View(history))
    assert check(spoiled, programs) == check(spoiled, programs) != []
    assert check(history, programs) == []


@pytest.mark.parametrize("part", PARTS)
def test_the_checker_knows_nothing_of_the_engine(part: str) -> None:
    tree = ast.parse((HERE / f"{part}.py").read_text())
    names = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    known = {"__future__", "fastavro", *(f"tests.checker.{other}" for other in PARTS)}
    strange = {
        name
        for name in names - known
        if name.partition(".")[0] not in sys.stdlib_module_names | {"fastavro"}
        and name != "tests.checker"
    }
    assert strange == set()
