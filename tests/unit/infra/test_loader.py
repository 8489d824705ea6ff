"""Agents are loaded as the modules that Python itself would import their files as."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.infra.runtime.loader import load_agents
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError

AGENT = """
from surefoot import Agent, Context, Done

{name} = Agent("{name}")

@{name}.step
async def only(ctx: Context, payload: int) -> Done:
    return Done()
"""


def write(path: Path, *texts: str, name: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(texts) + ("" if name is None else AGENT.format(name=name)))
    return path


def names(*paths: Path) -> list[str]:
    return [agent.name for agent in load_agents(paths)]


def module_of(agent: Agent) -> str:
    return agent.start_step.fn.__module__


def test_a_file_is_the_module_that_it_can_be_imported_as(tmp_path: Path) -> None:
    (agent,) = load_agents([write(tmp_path / "hello.py", name="hello")])
    assert module_of(agent) == "hello"
    assert importlib.import_module("hello").hello is agent


def test_a_file_in_a_package_is_a_part_of_it_and_imports_its_neighbours(tmp_path: Path) -> None:
    for folder in ("shop", "shop/agents"):
        write(tmp_path / folder / "__init__.py")
    write(tmp_path / "shop" / "rates.py", "RATE = 7\n")
    file = write(
        tmp_path / "shop" / "agents" / "refunds.py",
        "from ..rates import RATE\nfrom shop.rates import RATE as again\n",
        name="refunds",
    )
    (agent,) = load_agents([file])
    assert module_of(agent) == "shop.agents.refunds"
    assert agent.start_step.fn.__globals__["again"] == 7


def test_a_package_is_loaded_by_its_folder_and_a_module_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "shop" / "__init__.py", name="shop")
    write(tmp_path / "shop" / "refunds.py", name="refunds")
    write(tmp_path / "plain" / "agent.py", name="plain")
    monkeypatch.chdir(tmp_path)
    assert names(Path("shop"), Path("shop.refunds"), Path("plain.agent")) == [
        "shop",
        "refunds",
        "plain",
    ]


@pytest.mark.parametrize("name", ["nowhere", "no.where", "nowhere.py", "a folder"])
def test_what_is_neither_a_file_nor_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        load_agents([Path(name)])


def test_what_is_imported_later_is_found(tmp_path: Path) -> None:
    write(tmp_path / "later.py", "VALUE = 7\n")
    file = write(
        tmp_path / "agent.py", "def late():\n    import later\n    return later.VALUE\n", name="one"
    )
    (agent,) = load_agents([file])
    assert agent.start_step.fn.__globals__["late"]() == 7


def test_another_process_finds_a_function_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "agents" / "heavy.py", "def double(x):\n    return 2 * x\n", name="heavy")
    main = write(
        tmp_path / "main.py",
        """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from surefoot.infra.runtime.loader import load_agents

if __name__ == "__main__":
    (agent,) = load_agents([Path("agents/heavy.py")])
    double = agent.start_step.fn.__globals__["double"]
    for way in ("spawn", "forkserver"):
        with ProcessPoolExecutor(1, multiprocessing.get_context(way)) as pool:
            print(pool.submit(double, 21).result())
""",
    )
    ran = subprocess.run(
        [sys.executable, str(main)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.stdout.split() == ["42", "42"], ran.stderr


# Whose agent it is -----------------------------------------------------------------------------


def test_an_agent_of_another_file_is_loaded_once_and_served_where_it_is_defined(
    tmp_path: Path,
) -> None:
    one = write(tmp_path / "one.py", name="one")
    two = write(tmp_path / "two.py", "from one import one\nimport one as whole\n", name="two")
    assert names(two) == ["two"]
    assert names(one, two) == ["one", "two"]
    assert names(two, one) == ["two", "one"]


@pytest.mark.parametrize(
    ("export", "served"),
    [
        ("from one import one\n__all__ = ['one']\n", ["one"]),
        ("from one import one as one\n", ["one"]),
        ("from one import one\nagents = [one]\n", ["one"]),
        ("from one import one\nagents = (one,)\n", ["one"]),
        ("import one\nagents = {'first': one.one}\n", ["one"]),
        ("import one\nmine = one.one\n", ["one"]),
        ("from one import *\nagents = [one]\n", ["one"]),
        ("try:\n    from one import one\nexcept ImportError:\n    one = None\n", ["one"]),
    ],
)
def test_a_file_can_export_agents_of_others(tmp_path: Path, export: str, served: list[str]) -> None:
    write(tmp_path / "one.py", name="one")
    assert names(write(tmp_path / "all.py", export)) == served


@pytest.mark.parametrize("text", ["from one import one\n", "from one import *\n", "import one\n"])
def test_a_file_that_only_imports_agents_defines_none(tmp_path: Path, text: str) -> None:
    write(tmp_path / "one.py", name="one")
    with pytest.raises(ConfigError, match=r"agents = \[my_agent\]"):
        load_agents([write(tmp_path / "all.py", text)])


def test_agents_that_are_made_in_a_loop_are_found_in_their_list(tmp_path: Path) -> None:
    text = (
        AGENT.format(name="one")
        + """
agents = [one]
for name in ("two", "three"):
    agents.append(Agent(name))
    agents[-1].step(only)
"""
    )
    assert names(write(tmp_path / "many.py", text)) == ["one", "two", "three"]


# What Python cannot tell apart -----------------------------------------------------------------


def test_two_files_of_one_name_are_refused_and_their_modules_from_above_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        write(tmp_path / name / "helpers.py", f"WHOSE = '{name}'\n")
        write(tmp_path / name / "agent.py", "from . import helpers\n", name=name)
    monkeypatch.chdir(tmp_path)
    loaded = load_agents([Path("one.agent"), Path("two.agent")])
    assert [each.start_step.fn.__globals__["helpers"].WHOSE for each in loaded] == ["one", "two"]

    write(tmp_path / "a" / "agent.py", name="one")
    write(tmp_path / "b" / "agent.py", name="two")
    with pytest.raises(ConfigError, match="both have a module 'agent'"):
        load_agents([tmp_path / "a" / "agent.py", tmp_path / "b" / "agent.py"])


def test_two_helpers_of_one_name_are_refused_whenever_they_are_imported(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name / "helpers.py")
        write(tmp_path / name / "later.py")
    late = "def late():\n    import later\n"
    one = write(tmp_path / "one" / "a.py", late, name="one")
    two = write(tmp_path / "two" / "b.py", late, name="two")
    loaded = load_agents([one, two])
    for agent in loaded:
        with pytest.raises(ConfigError, match="both have a module 'later'"):
            agent.start_step.fn.__globals__["late"]()

    three = write(tmp_path / "two" / "c.py", "import helpers\n", name="three")
    with pytest.raises(ConfigError, match="both have a module 'helpers'"):
        load_agents([three])


def test_a_file_that_is_called_as_a_module_of_pythons(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"would be module 'json', which is already .*json"):
        load_agents([write(tmp_path / "json.py", name="one")])


@pytest.mark.parametrize("name", ["my.agent.py", "agent.txt"])
def test_a_file_that_no_import_could_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not a Python file that can be imported"):
        load_agents([write(tmp_path / name, name="one")])
