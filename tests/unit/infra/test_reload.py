"""What makes `surefoot dev` start anew: what the agent imports, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from surefoot.infra.dev.reload import Reload
from surefoot.infra.runtime.loader import load_agents
from tests.support.eventually import until
from tests.unit.infra.test_loader import write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_only_what_the_agent_imports_counts(folder: Path) -> None:
    write(folder / "now.py")
    write(folder / "words" / "english.py")
    write(folder / "test_agent.py")
    late = "import now\ndef late():\n    from words import english\n"
    agent = write(folder / "agent.py", late, name="one")
    load_agents([agent])
    reload = Reload(agent)

    write(folder / "test_agent.py", "# changed\n")
    write(folder / "words" / "french.py", "# new\n")
    write(folder / "now.py", "# changed\n")
    assert (await reload.changed()).files == [folder / "now.py"]

    write(folder / "words" / "english.py", "# changed\n")
    assert (await reload.changed()).files == [folder / "words" / "english.py"]


async def test_a_file_that_does_not_load_or_is_not_there_yet_is_waited_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = write(folder / "agent.py", name="one")
    load_agents([agent])
    reload = Reload(agent)

    write(agent, "import new\n", name="two")
    changed = asyncio.create_task(reload.changed())
    told = ""

    def refused(times: int) -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return told.count("does not load") == times

    await until(lambda: refused(1), what="the missing module to be told")
    write(folder / "new.py", "def\n")
    await until(lambda: refused(2), what="the broken module to be told")
    write(folder / "new.py", "VALUE = 1\n")
    found = await changed
    assert found.files == [agent, folder / "new.py"]
    assert [each.name for each in found.agents] == ["two"]
