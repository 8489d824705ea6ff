"""`surefoot login` and `logout`: which token is kept, where, and which gateway is sent it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from surefoot import ConfigError, Refused
from surefoot.cli import app
from surefoot.client import Client
from surefoot.infra.http import logins
from surefoot.infra.http.client import gateway_address, with_token
from surefoot.infra.http.server import listen, server, url_of
from surefoot.state.access.accounts import Account
from surefoot.state.egress.hosts import Hosts, parse_hosts
from tests.unit.producers.test_access import Guarded
from tests.unit.producers.test_gateway import RUN, Gateway

LOOPBACK: Hosts = parse_hosts("127.0.0.1")
#: the token of an operator at the site's gateway
SECRET = "s3cret"


@dataclass
class Site:
    """A gateway with accounts, one without, and the environment of a user."""

    url: str
    without: str
    env: dict[str, str]

    @property
    def folder(self) -> Path:
        return Path(self.env["XDG_CONFIG_HOME"]) / "surefoot" / "logins"

    async def run(self, *args: str, typed: str = "") -> tuple[int, str]:
        done = await asyncio.to_thread(
            CliRunner().invoke, app, args, input=typed, env={**self.env, "SUREFOOT_TOKEN": ""}
        )
        return done.exit_code, done.output

    def headers(self, url: str, **environ: str) -> dict[str, str]:
        return with_token(url, {}, None, {**self.env, **environ})


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    guarded = Guarded()
    guarded.accounts.all = {SECRET: Account(name="ann", role="operator")}
    servers = [server(each.app, LOOPBACK, drain_s=1) for each in (guarded, Gateway())]
    sockets = [listen("127.0.0.1", 0, "SUREFOOT_GATEWAY") for _ in servers]
    pairs = zip(servers, sockets, strict=True)
    serving = [asyncio.create_task(one.serve(sockets=[socket])) for one, socket in pairs]
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    monkeypatch.setenv("XDG_CONFIG_HOME", env["XDG_CONFIG_HOME"])
    for variable in ("SUREFOOT_TOKEN", "SUREFOOT_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)
    first, second = (url_of("127.0.0.1", socket) for socket in sockets)
    yield Site(first, second, env)
    for one in servers:
        one.should_exit = True
    await asyncio.gather(*serving)


async def test_a_token_is_kept_for_its_gateway_until_logout(site: Site) -> None:
    code, told = await site.run("login", f"{site.url}/", typed=f"{SECRET}\n")
    assert (code, f"signed in to {site.url} as ann, operator" in told) == (0, True)
    assert SECRET not in told
    [file] = site.folder.iterdir()
    assert (file.stat().st_mode & 0o777, file.read_text()) == (0o600, f"{SECRET}\n")
    assert site.folder.stat().st_mode & 0o777 == 0o700
    async with Client.connect(site.url) as client:
        assert (await client.run("triage", RUN).show()).status == "completed"
    assert (await site.run("logout", site.url))[0] == 0
    async with Client.connect(site.url) as client:
        with pytest.raises(Refused, match="not_signed_in"):
            await client.run("triage", RUN).show()
    assert "there was no login" in (await site.run("logout", site.url))[1]


async def test_a_token_is_sent_to_no_other_address(site: Site) -> None:
    await site.run("login", site.url, typed=SECRET)
    signed = {"Authorization": f"Bearer {SECRET}"}
    for same in (site.url, f"{site.url}/", site.url.replace("http", "HTTP")):
        assert site.headers(same) == signed
    host, port = site.url.removeprefix("http://").split(":")
    for other in (
        f"https://{host}:{port}",
        f"http://{host}",
        f"http://{host}:{int(port) - 1}",
        f"http://localhost:{port}",
        f"{site.url}/shop",
        f"http://{host}.evil.example:{port}",
        site.without,
    ):
        assert site.headers(other) == {}, other


async def test_what_is_said_outright_is_sent_in_place_of_the_login(site: Site) -> None:
    await site.run("login", site.url, typed=SECRET)
    assert site.headers(site.url, SUREFOOT_TOKEN="x") == {"Authorization": "Bearer x"}
    own = {"Authorization": "Basic y"}
    assert with_token(site.url, own, None, site.env) == own
    assert with_token(site.url, {}, "z", site.env) == {"Authorization": "Bearer z"}


async def test_nothing_is_kept_that_signs_nobody_in(site: Site) -> None:
    for url, typed, number in (
        (site.url, "wrong", "SF1087"),
        (site.without, SECRET, "SF1087"),
        (site.url, "two words", "SF1085"),
        (site.url, "", "SF1085"),
        ("ftp://127.0.0.1", SECRET, "SF1026"),
    ):
        code, told = await site.run("login", url, typed=typed)
        assert (code, number in told) == (2, True), told
        assert not typed or typed not in told
    assert not site.folder.exists()


async def test_a_login_that_others_may_read_is_not_used(site: Site) -> None:
    await site.run("login", site.url, typed=SECRET)
    [file] = site.folder.iterdir()
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="SF1086"):
        site.headers(site.url)
    await site.run("login", site.url, typed=SECRET)
    assert site.headers(site.url) == {"Authorization": f"Bearer {SECRET}"}


async def test_the_terminal_does_not_show_what_is_typed(site: Site) -> None:
    typist = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"
    command = [sys.executable, "-m", "surefoot", "login", site.url]

    def type_it() -> bytes:
        with subprocess.Popen(
            [sys.executable, "-c", typist, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **site.env},
        ) as running:
            assert running.stdin is not None
            assert running.stdout is not None
            shown = b""
            while not shown.endswith(b"Token: "):
                byte = running.stdout.read(1)
                assert byte, shown
                shown += byte
            running.stdin.write(f"{SECRET}\n".encode())
            running.stdin.flush()
            return shown + running.stdout.read()

    shown = (await asyncio.to_thread(type_it)).decode()
    assert "as ann, operator" in shown
    assert SECRET not in shown
    assert logins.read_login(gateway_address(site.url), site.env) == SECRET


def test_without_a_home_there_is_no_login() -> None:
    assert logins.read_login("http://gateway", {}) is None
    assert logins.forget_login("http://gateway", {"XDG_CONFIG_HOME": "relative"}) is False
    with pytest.raises(ConfigError, match="SF1086"):
        logins.keep_login("http://gateway", SECRET, {})
