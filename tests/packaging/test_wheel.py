"""The wheel holds `surefoot/` and nothing else, and works far from the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {"consumers", "infra", "producers", "schemas", "state"}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return its stdout; its output is in the failure otherwise."""
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{command}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist, cwd=ROOT)
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment with the wheel; the dependencies are borrowed."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=True)
    bin_folder = home / "bin"
    site = run(
        bin_folder / "python",
        "-c",
        "import sysconfig; print(sysconfig.get_path('purelib'))",
        cwd=home,
    ).strip()
    run(
        *(sys.executable, "-m", "pip", "--python", bin_folder / "python", "install"),
        *("--no-deps", "--no-index", "--disable-pip-version-check", wheel),
        cwd=home,
    )
    # Only the folder itself: the .pth of this checkout's editable install is not read from it.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return bin_folder


def test_the_wheel_installs_only_surefoot(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"surefoot"}


def test_whoever_builds_it_gets_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """From the sdist, in another time zone, with files that only their owner may read."""
    build = (sys.executable, "-m", "hatchling", "build", "-d", tmp_path, "-t")
    run(*build, "sdist", cwd=ROOT)
    (sdist,) = tmp_path.glob("*.tar.gz")
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    run("tar", "--extract", "--touch", "--file", sdist, "--strip-components=1", cwd=unpacked)
    run("chmod", "-R", "go-rwx", unpacked, cwd=tmp_path)
    run("env", "TZ=Asia/Kolkata", *build, "wheel", cwd=unpacked)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_wheel_holds_every_room_and_its_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for room in ROOMS:
        assert f"surefoot/{room}/__init__.py" in names
    in_checkout = {
        f"surefoot/{path.relative_to(ROOT)}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert in_checkout <= names
    assert {"surefoot/py.typed", "surefoot/infra/broker/pom.xml"} <= names
    assert "surefoot/schemas/avro/Checkpoint.avsc" in names


def test_an_installed_wheel_is_used_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = "import surefoot, surefoot.state, surefoot.schemas; print(surefoot.__file__)"
    where = Path(run(installed / "python", "-c", code, cwd=tmp_path).strip())
    assert where.is_relative_to(installed.parent)


def test_the_rooms_are_not_importable_by_a_second_name(installed: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.util\n"
        f"print([room for room in {sorted(ROOMS)} if importlib.util.find_spec(room)])"
    )
    assert run(installed / "python", "-c", code, cwd=tmp_path).strip() == "[]"


def test_records_are_encoded_with_the_schemas_that_were_installed(
    installed: Path, tmp_path: Path
) -> None:
    code = (
        "from surefoot.schemas.codec.codec import decode, encode\n"
        "record = {'commands': 7, 'tasks': None, 'answered': [], 'answered_tasks': []}\n"
        "assert decode(encode('Applied', record)) == ('Applied', record)"
    )
    run(installed / "python", "-c", code, cwd=tmp_path)


def test_the_console_script_runs(installed: Path, tmp_path: Path) -> None:
    assert "worker" in run(installed / "surefoot", "--help", cwd=tmp_path)


def test_the_jars_of_the_broker_are_pinned_by_the_installed_pom(
    installed: Path, tmp_path: Path
) -> None:
    code = (
        "from surefoot.infra.broker.config import KAFKA_FOLDER, pinned_version\n"
        "print(pinned_version(), KAFKA_FOLDER)"
    )
    version, folder = run(installed / "python", "-c", code, cwd=tmp_path).split()
    assert version.split(".")[0] == "4"
    assert Path(folder).is_relative_to(installed.parent)


def test_the_demo_runs_in_an_empty_folder_without_kafka(installed: Path, tmp_path: Path) -> None:
    """Two commands: pip install, surefoot demo."""
    bare = tmp_path / "bin"
    bare.mkdir()
    folder = tmp_path / "empty"
    folder.mkdir()
    ran = subprocess.run(
        [installed / "surefoot", "demo", "--deliveries", "10", "--kills", "1"],
        cwd=folder,
        env={"PATH": str(bare), "HOME": str(tmp_path), "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"
    assert "embedded log, one process; not Kafka" in ran.stderr
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert figures["runs"] == figures["completed"] == 10
    assert list(folder.iterdir()) == []
