"""Runs from a watched folder."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePath
from typing import Any

import pytest
from structlog.testing import capture_logs

from surefoot import Agent, ConfigError, Context, Done, Unavailable, WatchedFile
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.sources import files as file_source
from surefoot.infra.sources.files import FileSource, file_run_id
from surefoot.infra.sources.starter import Starter
from surefoot.state.errors import RecordTooLarge
from surefoot.state.ports.log import Position
from tests.integration.cli.test_cli_end_to_end import Cli
from tests.support.eventually import until, until_sync


class Starts:
    """The Commands port."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, bytes]] = []
        self.away = 0
        self.largest = 1_000_000
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def start(self, agent: str, run_id: str, payload: bytes, **_: Any) -> Position:
        assert agent == "orders"
        if self.away:
            self.away -= 1
            raise Unavailable("SF3002", "Kafka is away")
        if len(payload) > self.largest:
            raise RecordTooLarge("too large", size=len(payload), limit=self.largest)
        self.runs.append((run_id, payload))
        await self.let_go.wait()
        return Position(0, 0)

    async def send(self, *args: Any, **_: Any) -> Position:
        raise AssertionError(args)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_source, "RESCAN_S", 0.1)


def orders() -> Agent:
    agent = Agent("orders")

    @agent.step
    async def take(ctx: Context, order: dict[str, int]) -> Done:
        return Done(order)

    @agent.files("inbox/*.json")
    def on_file(file: WatchedFile) -> dict[str, int] | None:
        return file.json or None

    return agent


def source_of(tmp_path: Path, commands: Starts, agent: Agent) -> FileSource:
    return FileSource(
        tmp_path,
        "inbox/*.json",
        [(agent, agent.folders[0])],
        Starter(commands, SystemClock()),
        settle_s=0.1,
    )


@asynccontextmanager
async def watching(
    tmp_path: Path, commands: Starts, agent: Agent | None = None
) -> AsyncIterator[None]:
    source = source_of(tmp_path, commands, agent or orders())
    task = asyncio.create_task(source.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


async def test_what_is_there_at_the_start_and_what_comes_is_started_and_moved(
    tmp_path: Path, inbox: Path
) -> None:
    commands = Starts()
    (inbox / "a.json").write_text('{"n": 1}')
    (inbox / "b.txt").write_text("not asked for")
    async with watching(tmp_path, commands):
        await until((inbox / "done" / "a.json").exists, what="the first to be moved")
        (inbox / ".c.json.tmp").write_text('{"n": 2}')
        (inbox / ".c.json.tmp").rename(inbox / "c.json")
        await until((inbox / "done" / "c.json").exists, what="the second to be moved")
    assert [payload for _, payload in commands.runs] == [b'{"n":1}', b'{"n":2}']
    assert names(inbox) == {"b.txt"}


def test_a_file_is_taken_once_it_is_the_same_at_two_looks(tmp_path: Path, inbox: Path) -> None:
    source = source_of(tmp_path, Starts(), orders())
    path = inbox / "a.json"
    for piece in ("{", '"n"', ":"):
        with path.open("a") as file:
            file.write(piece)
        assert source._look() == []
    path.write_text("[")  # as long as the last one
    os.utime(path, ns=(0, 1))
    assert source._look() == []
    assert [found for found, _ in source._look()] == [path]


async def test_names_of_unfinished_files_are_not_looked_at(tmp_path: Path, inbox: Path) -> None:
    commands = Starts()
    (inbox / ".a.json").write_text("{")
    (inbox / "link.json").symlink_to("/etc/hostname")
    (inbox / "z.json").write_text('{"n": 1}')
    async with watching(tmp_path, commands):
        await until((inbox / "done" / "z.json").exists, what="it to be moved")
    assert names(inbox) == {".a.json", "link.json"}
    assert len(commands.runs) == 1


async def test_a_file_whose_process_died_before_it_was_moved_is_the_same_run(
    tmp_path: Path, inbox: Path
) -> None:
    (inbox / "a.json").write_text('{"n": 1}')
    first, second = Starts(), Starts()
    first.let_go.clear()
    async with watching(tmp_path, first):
        await until(lambda: first.runs, what="the start")
    assert names(inbox) == {"a.json"}
    async with watching(tmp_path, second):
        await until((inbox / "done" / "a.json").exists, what="it to be moved")
    assert first.runs == second.runs


async def test_the_same_name_with_another_content_is_another_run_and_loses_no_file(
    tmp_path: Path, inbox: Path
) -> None:
    commands = Starts()
    async with watching(tmp_path, commands):
        for n in (1, 2, 2):
            (inbox / "a.json").write_text(json.dumps({"n": n}))
            await until(lambda: not names(inbox), what="it to be moved")
    run_ids = [run_id for run_id, _ in commands.runs]
    assert len(set(run_ids)) == 2
    assert run_ids[1] == run_ids[2]
    contents = sorted(path.read_text() for path in (inbox / "done").iterdir())
    assert contents == ['{"n": 1}', '{"n": 2}']


async def test_a_bad_file_is_put_aside_with_the_reason_and_holds_up_no_other(
    tmp_path: Path, inbox: Path
) -> None:
    commands = Starts()
    commands.largest = 100
    (inbox / "a.json").write_text("{")
    (inbox / "b.json").write_text('{"n": "text"}')
    (inbox / "c.json").write_text(json.dumps({"n" * 200: 1}))
    (inbox / "d.json").write_text('{"n": 1}')
    async with watching(tmp_path, commands):
        await until(lambda: not names(inbox), what="all to be moved")
    failed = inbox / "failed"
    assert names(inbox / "done") == {"d.json"}
    assert "strict JSON" in (failed / "a.json.reason.txt").read_text()
    assert "orders.take" in (failed / "b.json.reason.txt").read_text()
    assert "too large" in (failed / "c.json.reason.txt").read_text()
    assert (failed / "a.json").read_text() == "{"


async def test_while_kafka_is_away_the_file_stays(tmp_path: Path, inbox: Path) -> None:
    commands = Starts()
    commands.away = 2
    (inbox / "a.json").write_text('{"n": 1}')
    async with watching(tmp_path, commands):
        await until((inbox / "done" / "a.json").exists, what="it to be moved")
    assert len(commands.runs) == 1


async def test_a_file_that_has_changed_since_it_was_read_is_a_run_of_its_own(
    tmp_path: Path, inbox: Path
) -> None:
    commands = Starts()
    commands.let_go.clear()
    (inbox / "a.json").write_text('{"n": 1}')
    async with watching(tmp_path, commands):
        await until(lambda: commands.runs, what="the start")
        (inbox / "new").write_text('{"n": 2}')
        (inbox / "new").rename(inbox / "a.json")
        commands.let_go.set()
        await until((inbox / "done" / "a.json").exists, what="it to be moved")
    assert [payload for _, payload in commands.runs] == [b'{"n":1}', b'{"n":2}']


async def test_a_file_that_cannot_be_moved_is_started_once(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Starts()
    (inbox / "a.json").write_text('{"n": 1}')

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "replace", refuse)
    async with watching(tmp_path, commands):
        await until(lambda: commands.runs, what="the start")
        os.utime(inbox)
        (inbox / "b.json").write_text('{"n": 2}')
        await until(lambda: len(commands.runs) > 1, what="the next start")
    assert [payload for _, payload in commands.runs] == [b'{"n":1}', b'{"n":2}']


# Odd files -----------------------------------------------------------------------------------


def path_of(folder: Path, name: bytes) -> Path:
    return Path(os.fsdecode(os.fsencode(folder) + b"/" + name))


async def test_a_name_that_is_not_utf_8_is_a_name(tmp_path: Path, inbox: Path) -> None:
    commands = Starts()
    odd = [b"\xff.json", b"\xfe.json", b"caf\xe9.json"]
    async with watching(tmp_path, commands):
        for name in odd:
            path_of(inbox, name).write_text('{"n": 1}')
        (inbox / "a.json").write_text('{"n": 1}')
        await until(lambda: not names(inbox), what="all to be moved")
    assert {os.fsencode(name) for name in names(inbox / "done")} == {*odd, b"a.json"}
    assert len({run_id for run_id, _ in commands.runs}) == 4


def test_the_run_id_of_a_name_that_is_utf_8_stays_what_it_was_and_others_do_not_meet() -> None:
    plain = WatchedFile(path=PurePath("inbox/a.json"), body=b"1")
    assert file_run_id(plain) == "file-773036c0077cf9424cefab12a8451175"
    one, two = (
        WatchedFile(path=PurePath(os.fsdecode(name)), body=b"1") for name in (b"\xff", b"\xfe")
    )
    assert one.name == two.name == "\ufffd"
    assert file_run_id(one) != file_run_id(two)


async def test_what_goes_wrong_with_a_file_is_told_with_its_name_and_done_to_no_other(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Starts()
    opening, naming = os.open, file_run_id

    def refusing(path: Any, *more: Any, **others: Any) -> int:
        if str(path).endswith("locked.json"):
            raise PermissionError(13, "Permission denied", str(path))
        return opening(path, *more, **others)

    def failing(file: WatchedFile) -> str:
        if file.name == "odd.json":
            raise RuntimeError("nobody thought of that")
        return naming(file)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(file_source, "file_run_id", failing)
    longest = "x" * 250 + ".json"
    (inbox / longest).write_text("no json")
    for name in ("locked.json", "odd.json", path_of(inbox, b"\xff.json").name):
        (inbox / name).write_text("{")
    (inbox / "odd.json").write_text('{"n": 1}')
    (inbox / "z.json").write_text('{"n": 1}')
    with capture_logs() as logs:
        async with watching(tmp_path, commands):
            await until(lambda: not names(inbox), what="all to be moved")
    told = {Path(line["file"]).name for line in logs if line["event"] == "file_bad"}
    assert told == {"locked.json", "odd.json", "\\xff.json", longest}
    assert names(inbox / "done") == {"z.json"}
    failed = names(inbox / "failed")
    assert len(failed) == 8
    (why,) = (name for name in failed if name.startswith("xx") and name != longest)
    assert "strict JSON" in (inbox / "failed" / why).read_text()
    assert "RuntimeError" in (inbox / "failed" / "odd.json.reason.txt").read_text()


async def test_what_is_no_file_is_left_where_it_is(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Starts()
    os.mkfifo(inbox / "pipe.json")
    (inbox / "folder.json").mkdir()
    (inbox / "broken.json").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as there:
        monkeypatch.chdir(inbox)  # the name of a socket is short
        there.bind("socket.json")
        (inbox / "z.json").write_text('{"n": 1}')
        async with watching(tmp_path, commands):
            await until((inbox / "done" / "z.json").exists, what="the file to be moved")
    for name in ("pipe.json", "folder.json", "broken.json", "socket.json"):
        assert (inbox / name).lstat()


def test_what_has_become_a_pipe_since_it_was_looked_at_holds_nobody_up(inbox: Path) -> None:
    (inbox / "a.json").write_text("1")
    look = file_source._look_at(inbox / "a.json")
    assert look is not None
    (inbox / "a.json").unlink()
    os.mkfifo(inbox / "a.json")
    with pytest.raises(file_source._Changed):
        file_source._read(inbox / "a.json", look)


@pytest.mark.parametrize(("first", "went_to"), [('{"n": 1}', "done"), ('{"n":', "failed")])
async def test_a_file_that_is_written_to_after_it_was_taken_is_taken_again(
    tmp_path: Path, inbox: Path, first: str, went_to: str
) -> None:
    commands = Starts()
    with capture_logs() as logs:
        async with watching(tmp_path, commands):
            with (inbox / "a.json").open("w") as writing:
                writing.write(first)
                writing.flush()
                await until((inbox / went_to / "a.json").exists, what="it to be moved")
                writing.seek(0)
                writing.write('{"n": 1234}')
            await until(
                lambda: b'{"n":1234}' in [payload for _, payload in commands.runs],
                what="the whole file to be taken",
            )
            await until(lambda: not names(inbox), what="it to be moved again")
    assert (inbox / "done" / "a.json").read_text() == '{"n": 1234}'
    assert not (inbox / "failed").exists() or names(inbox / "failed") == set()
    (late,) = (line for line in logs if line["event"] == "file_changed_late")
    assert late["file"] == str(inbox / "a.json")
    assert "SUREFOOT_FILE_SETTLE_S" in late["advice"]


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_a_mapping_that_would_end_the_process_is_a_matter_of_its_file(
    tmp_path: Path, inbox: Path, raised: BaseException
) -> None:
    commands, agent = Starts(), Agent("orders")

    @agent.step
    async def take(ctx: Context, order: Any) -> Done:
        return Done(order)

    @agent.files("inbox/*.json")
    def on_file(file: WatchedFile) -> Any:
        if file.name == "a.json":
            raise raised
        return file.json

    (inbox / "a.json").write_text("1")
    (inbox / "b.json").write_text("2")
    async with watching(tmp_path, commands, agent):
        await until(lambda: not names(inbox), what="both to be moved")
    assert names(inbox / "done") == {"b.json"}
    assert "on_file" in (inbox / "failed" / "a.json.reason.txt").read_text()


async def test_a_file_whose_mapping_takes_long_holds_up_no_other(
    tmp_path: Path, inbox: Path
) -> None:
    commands, go_on = Starts(), threading.Event()
    agent = Agent("orders")

    @agent.step
    async def take(ctx: Context, order: Any) -> Done:
        return Done(order)

    @agent.files("inbox/*.json")
    def on_file(file: WatchedFile) -> Any:
        if file.name == "slow.json":
            go_on.wait()
        return file.json

    (inbox / "slow.json").write_text('"slow"')
    try:
        async with watching(tmp_path, commands, agent):
            for number in range(2 * file_source.FILES_MAX):
                (inbox / f"{number}.json").write_text(f"{number}")
            await until(lambda: names(inbox) == {"slow.json"}, what="the others to be moved")
            go_on.set()
            await until(lambda: not names(inbox), what="the slow one to be moved")
    finally:
        go_on.set()


def test_a_declaration_that_cannot_work_is_told(tmp_path: Path) -> None:
    agent = orders()
    starter = Starter(Starts(), SystemClock())
    with pytest.raises(ConfigError, match="no folder"):
        FileSource(tmp_path, "nowhere/*.json", [(agent, agent.folders[0])], starter, settle_s=1)
    for pattern in ("*.json", "in*/x.json", "inbox/", ""):
        with pytest.raises(ConfigError, match="a folder and a file pattern"):
            agent.files(pattern)(agent.folders[0].fn)


FILES = """
from surefoot import Agent, Context, Done, WatchedFile

orders = Agent("orders")

@orders.files("inbox/*.json")
def on_file(file: WatchedFile) -> dict:
    return {"name": file.name, "order": file.json}

@orders.step
async def take(ctx: Context, order: dict) -> Done:
    return Done(order)
"""


def test_a_file_is_one_run_through_the_command_line_on_the_embedded_log(
    tmp_path: Path, inbox: Path
) -> None:
    (tmp_path / "orders.py").write_text(FILES)
    (inbox / "a.json").write_text('{"n": 1}')
    cli = Cli({"SUREFOOT_LOG": "sqlite:///runs.db", "SUREFOOT_GATEWAY_PORT": "0"}, tmp_path)
    try:
        serving = cli.start("serve", "orders.py")
        serving.wait_for("worker_ready")
        trigger = cli.start("trigger", "orders.py")
        until_sync((inbox / "done" / "a.json").exists, what="the file to be moved")
        (line,) = until_sync(
            lambda: cli.ok(
                "runs", "list", "orders", "--status", "completed", "--json"
            ).splitlines(),
            what="the run to be completed",
        )
        run_id = json.loads(line)["run_id"]
        shown = json.loads(cli.ok("runs", "show", "orders", run_id, "--json"))
        assert shown["result"] == {"name": "a.json", "order": {"n": 1}}
        assert trigger.stop() == 0
        assert serving.stop() == 0
    finally:
        cli.close()
