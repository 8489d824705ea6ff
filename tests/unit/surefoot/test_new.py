"""What `surefoot new` writes works as it was written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.commands.develop.new import files, new
from surefoot.infra.broker.config import pinned_version
from surefoot.infra.runtime.loader import load_agents
from surefoot.state.egress.hosts import parse_hosts
from surefoot.state.errors import ConfigError


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    new("say-hello")
    return tmp_path / "say-hello"


def test_the_agent_is_short_and_loads(written: Path) -> None:
    (agent,) = load_agents([written / "agent.py"])

    assert agent.name == "say-hello"
    assert len((written / "agent.py").read_text().splitlines()) < 20


def test_its_tests_pass(written: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=written,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_its_tests_fail_when_the_agent_cannot_stand_a_crash(written: Path) -> None:
    file = written / "agent.py"
    file.write_text(
        file.read_text().replace(
            'await ctx.call("compose", compose, name)', "f'{name} {times.append(0)}{len(times)}'"
        )
        + "\n\ntimes = []\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=written,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert "test_a_crash_at_any_commit_makes_no_difference" in ran.stdout
    assert "SF7003" in ran.stdout


def test_the_compose_file_has_one_kafka_and_one_worker(written: Path) -> None:
    yaml = pytest.importorskip("yaml")
    assert re.findall(r"@[A-Z]+@", "".join(files("hello").values())) == []
    services = yaml.safe_load((written / "compose.yaml").read_text())["services"]

    assert services.keys() == {"kafka", "worker"}
    assert services["kafka"]["image"] == f"apache/kafka:{pinned_version()}"
    node = services["kafka"]["environment"]
    assert node["KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR"] == "1"
    assert node["KAFKA_CONTROLLER_LISTENER_NAMES"] == "CONTROLLER"
    assert node["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://kafka:9092"
    worker = services["worker"]["environment"]
    assert worker["SUREFOOT_BOOTSTRAP_SERVERS"] == "kafka:9092"
    hosts = parse_hosts(worker["SUREFOOT_GATEWAY_HOSTS"])
    assert hosts.allow(["worker:8787"], "172.18.0.3")
    assert "surefoot serve agent.py" in services["worker"]["command"]


def test_nothing_is_written_into_a_folder_that_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "hello" / "agent.py"
    mine.parent.mkdir()
    mine.write_text("mine")

    with pytest.raises(ConfigError, match="SF1011"):
        new("hello")

    assert [path.name for path in mine.parent.iterdir()] == ["agent.py"]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["Hello", "../up", "", "a b", "outbox"])
def test_a_name_that_no_agent_can_have_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="SF1103"):
        new(name)

    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello").mkdir()

    new("hello")

    assert {path.name for path in (tmp_path / "hello").iterdir()} == files("hello").keys()
