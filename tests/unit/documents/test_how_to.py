"""The code on the how-to pages works: each page is a module with tests of its own (that of the tool
loop is run by test_tool_loop.py, that of the client by
tests/integration/gateway/test_client_page.py)."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from surefoot import Agent
from surefoot.state.inspect.lint import lint_agent

FOLDER = Path(__file__).parents[3] / "docs" / "how-to"
PAGES = sorted(page.stem for page in FOLDER.glob("*.md") if page.stem != "README")
#: pages whose code needs a broker or a model, is that of a shell, or that have none
TESTED_ELSEWHERE = ("client", "deploy", "runbooks", "secured-kafka", "sizing", "tool-loop")
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def module(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModuleType]:
    """All Python of a page, imported as a user's file would be."""
    page = request.param
    source = "\n\n".join(_BLOCK.findall((FOLDER / f"{page}.md").read_text()))
    name = f"how_to_{page.replace('-', '_')}"
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    yield loaded
    del sys.modules[name]


@pytest.mark.parametrize("module", [p for p in PAGES if p not in TESTED_ELSEWHERE], indirect=True)
def test_the_code_of_the_page_does_what_the_page_says(module: ModuleType) -> None:
    for agent in vars(module).values():
        if isinstance(agent, Agent):
            lint_agent(agent)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert tests, "the page shows no test of its code"
    for test in tests:
        test()


def test_every_page_is_in_the_list() -> None:
    listed = set(re.findall(r"\]\(([a-z-]+)\.md\)", (FOLDER / "README.md").read_text()))
    assert listed == set(PAGES)
