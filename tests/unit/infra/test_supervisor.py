"""Children are started again when they die, asked to finish, and killed when the grace is over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from surefoot.infra.runtime import supervisor as module
from surefoot.infra.runtime.exits import EXIT_CONFIG, EXIT_DENIED
from surefoot.infra.runtime.supervisor import Child, Spare, Supervisor
from tests.support.eventually import until

#: stands in for `python -m surefoot WHAT`; says what it does in the child's log
SCRIPT = """\
#!/bin/sh
if [ "$2" = surefoot.spare ]; then
    echo "$$" >> "$SPARES/begun"
    read -r told || exit 0
    echo "$told" >> "$SPARES/told"
    while :; do sleep 0.05; done
fi
shift 2
echo "begun $1 $SLOT"
case "$1" in
    exit) exit "$2" ;;
    polite) trap 'echo asked; exit 0' TERM ;;
    stubborn) trap 'echo asked' TERM ;;
esac
echo ready
while :; do sleep 0.05; done
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "program"
    path.write_text(SCRIPT)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(path))
    monkeypatch.setenv("SPARES", str(tmp_path))
    monkeypatch.setattr(module, "SPARE_AFTER_S", 0.0)


def child(folder: Path, *args: str, name: str = "one") -> Child:
    return Child(name=name, args=args, env={"SLOT": name}, log_path=folder / f"{name}.log")


def lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []


def said(folder: Path, name: str = "one") -> list[str]:
    return lines(folder / f"{name}.log")


async def until_run(supervisor: Supervisor, folder: Path, *names: str, times: int = 1) -> None:
    """Wait until each child has said so often that it is ready, and the supervisor knows the last
    process of it (a child may speak before the call that started it has returned)."""

    def known(name: str) -> bool:
        process = supervisor.running.get(name)
        return process is not None and process.returncode is None

    await until(
        lambda: all(said(folder, n).count("ready") == times and known(n) for n in names),
        what=f"{names} to run",
    )


async def test_a_child_that_does_not_listen_to_signals_yet_has_ended_well(tmp_path: Path) -> None:
    supervisor = Supervisor([child(tmp_path, "starting")], grace_s=90.0)
    running = asyncio.create_task(supervisor.run())
    await until_run(supervisor, tmp_path, "one")
    supervisor.stop()
    assert await running == 0


async def test_a_child_that_is_killed_is_started_again(tmp_path: Path) -> None:
    supervisor = Supervisor([child(tmp_path, "polite")], grace_s=90.0)
    running = asyncio.create_task(supervisor.run())
    await until_run(supervisor, tmp_path, "one")
    first = supervisor.running["one"].pid
    os.kill(first, signal.SIGKILL)
    await until_run(supervisor, tmp_path, "one", times=2)
    assert supervisor.restarts == 1
    assert supervisor.running["one"].pid != first
    supervisor.stop()
    assert await running == 0
    assert said(tmp_path) == ["begun polite one", "ready"] * 2 + ["asked"]


async def test_all_children_are_asked_and_the_worst_status_counts(tmp_path: Path) -> None:
    children = [child(tmp_path, "polite", name=f"c{n}") for n in range(3)]
    supervisor = Supervisor(children, grace_s=90.0)
    running = asyncio.create_task(supervisor.run())
    await until_run(supervisor, tmp_path, *(c.name for c in children))
    assert {said(tmp_path, c.name)[0] for c in children} == {f"begun polite c{n}" for n in range(3)}
    supervisor.running["c1"].send_signal(signal.SIGSTOP)
    supervisor.stop()
    await until(lambda: "asked" in said(tmp_path, "c2"), what="the others to be asked")
    os.kill(supervisor.running["c1"].pid, signal.SIGKILL)
    assert await running == signal.SIGKILL


async def test_a_child_that_does_not_finish_is_killed_when_the_grace_is_over(
    tmp_path: Path,
) -> None:
    supervisor = Supervisor([child(tmp_path, "stubborn")], grace_s=0.3)
    running = asyncio.create_task(supervisor.run())
    await until_run(supervisor, tmp_path, "one")
    supervisor.stop()
    assert await running == signal.SIGKILL
    assert said(tmp_path)[:2] == ["begun stubborn one", "ready"]


async def test_asking_again_passes_the_second_signal_on(tmp_path: Path) -> None:
    supervisor = Supervisor([child(tmp_path, "stubborn")], grace_s=90.0)
    running = asyncio.create_task(supervisor.run())
    await until_run(supervisor, tmp_path, "one")
    for times in (1, 2):
        supervisor.stop()
        await until(lambda n=times: said(tmp_path).count("asked") == n, what="a signal")  # type: ignore[misc]
    os.kill(supervisor.running["one"].pid, signal.SIGKILL)
    assert await running == signal.SIGKILL


async def test_a_child_that_keeps_dying_is_started_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    timeout = asyncio.timeout

    def noting(delay_s: float) -> asyncio.Timeout:
        """The last wait has no end: when it is asked to stop, no child is running."""
        waits.append(delay_s)
        return timeout(None if len(waits) > 10 else 0.0)

    monkeypatch.setattr(module, "HEALTHY_S", float("inf"))  # however long it took to start
    supervisor = Supervisor([child(tmp_path, "exit", "7")], grace_s=90.0)
    monkeypatch.setattr(asyncio, "timeout", noting)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: len(waits) > 10, what="eleven waits")
    supervisor.stop()
    assert await running == 7
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


async def test_a_child_that_worked_for_a_while_is_started_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEALTHY_S", 0.0)
    supervisor = Supervisor([child(tmp_path, "exit", "1")], grace_s=90.0)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: supervisor.restarts >= 10, what="ten restarts")
    supervisor.stop()
    assert await running in (0, 1, signal.SIGTERM)


@pytest.mark.parametrize("code", [EXIT_CONFIG, EXIT_DENIED])
async def test_what_no_restart_mends_ends_all_and_is_told(tmp_path: Path, code: int) -> None:
    children = [
        child(tmp_path, "exit", str(code), name="wrong"),
        child(tmp_path, "polite", name="right"),
    ]
    supervisor = Supervisor(children, grace_s=90.0)
    with capture_logs() as logs:
        assert await supervisor.run() == code
    (told,) = [line for line in logs if line["event"] == "all_stop"]
    assert (told["child"], told["code"]) == ("wrong", code)
    assert said(tmp_path, "wrong") == ["begun exit wrong"]
    assert supervisor.restarts == 0


# A spare process ------------------------------------------------------------------------------


async def until_waits(folder: Path, *, times: int = 1) -> int:
    """Wait for so many spare processes to have begun; returns the id of the last one."""
    await until(lambda: len(lines(folder / "begun")) == times, what="a spare process")
    return int(lines(folder / "begun")[-1])


async def test_a_spare_process_becomes_the_child_that_died(tmp_path: Path) -> None:
    one = Child(name="one", args=["polite"], env={"SLOT": "7"})
    supervisor = Supervisor([one], grace_s=90.0, spare=Spare())
    running = asyncio.create_task(supervisor.run())
    spare = await until_waits(tmp_path)
    await until(lambda: supervisor.running, what="the child to run")
    supervisor.running["one"].kill()
    await until(lambda: supervisor.running["one"].pid == spare, what="the spare to take over")
    told = await until(lambda: lines(tmp_path / "told"), what="the spare to be told")
    assert [json.loads(line) for line in told] == [{"args": ["polite"], "env": {"SLOT": "7"}}]
    next_spare = await until_waits(tmp_path, times=2)
    supervisor.stop()
    assert await running == 0
    assert not psutil.pid_exists(next_spare)


async def test_a_spare_process_that_has_died_becomes_nothing(tmp_path: Path) -> None:
    supervisor = Supervisor([child(tmp_path, "polite")], grace_s=90.0, spare=Spare())
    running = asyncio.create_task(supervisor.run())
    spare = await until_waits(tmp_path)
    await until_run(supervisor, tmp_path, "one")
    psutil.Process(spare).kill()
    await until(lambda: not psutil.pid_exists(spare), what="the spare to be gone")
    supervisor.running["one"].kill()
    await until_run(supervisor, tmp_path, "one", times=2)
    assert supervisor.restarts == 1
    supervisor.stop()
    assert await running == 0
