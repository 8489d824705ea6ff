"""Certificates that are renewed while a process runs, seen through connections of one context."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from surefoot.infra.sign_in.certificates import RenewedContext, client_context
from surefoot.state.errors import ConfigError
from tests.support.certificates import Issued, issue

OLD, NEW = issue("old", authority=True), issue("new", authority=True)


@asynccontextmanager
async def serving(authority: Issued, folder: Path) -> AsyncIterator[int]:
    """A server of that authority, which lets in whom the same authority has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issue("127.0.0.1", by=authority).write(folder / "server.pem"))
    context.load_verify_locations(cadata=authority.certificate_pem().decode())
    context.verify_mode = ssl.CERT_REQUIRED

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"in")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def lets_in(port: int, context: ssl.SSLContext) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        said = await reader.read()  # with TLS 1.3, a refusal comes after the handshake
        writer.close()
    except (ssl.SSLError, ConnectionError):
        return False
    return said == b"in"


class Files:
    def __init__(self, folder: Path) -> None:
        self.authority, self.own = folder / "ca.pem", folder / "client.pem"

    def write(self, authority: Issued, password: str | None = None) -> None:
        self.authority.write_bytes(authority.certificate_pem())
        issue("client", by=authority).write(self.own, password)

    def context(self, password: str | None = None) -> RenewedContext:
        def given() -> str:
            if password is None:
                raise ConfigError("SF1003", "the key is encrypted")
            return password

        return client_context(self.authority, self.own, None, given)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_the_next_connection_has_the_renewed_certificates(
    files: Files, tmp_path: Path
) -> None:
    files.write(OLD)
    context = files.context("secret")
    async with serving(OLD, tmp_path) as port:
        assert await lets_in(port, context)
    async with serving(NEW, tmp_path) as port:
        assert not await lets_in(port, context)
        files.write(NEW, password="secret")
        with capture_logs() as logs:
            assert await lets_in(port, context)
            assert await lets_in(port, context)
        assert [line["event"] for line in logs] == ["certificates_renewed"]


@pytest.mark.parametrize("how", ["no certificate", "missing", "locked", "of another key"])
async def test_files_that_do_not_fit_are_told_once_and_the_last_ones_serve_on(
    how: str, files: Files, tmp_path: Path
) -> None:
    files.write(OLD)
    context = files.context()
    good = files.own.read_bytes()
    match how:
        case "no certificate":
            files.own.write_text("-----BEGIN CERT")
        case "missing":
            files.own.unlink()
        case "locked":  # and nobody has given the password
            issue("client", by=OLD).write(files.own, "secret")
        case _:  # a key of one, the certificate of another
            other = issue("client", by=OLD)
            files.own.write_bytes(good.partition(b"-----BEGIN CERT")[0] + other.certificate_pem())
    async with serving(OLD, tmp_path) as port:
        with capture_logs() as logs:
            assert await lets_in(port, context)
            assert await lets_in(port, context)
        assert [line["event"] for line in logs] == ["certificates_not_renewed"]
        issue("client", by=OLD).write(files.own)
        with capture_logs() as logs:
            assert await lets_in(port, context)
        assert [line["event"] for line in logs] == ["certificates_renewed"]


def test_it_checks_as_much_as_any_client(files: Files) -> None:
    files.write(OLD)
    made, usual = files.context(), ssl.create_default_context()
    for name in ("verify_mode", "check_hostname", "verify_flags", "options", "minimum_version"):
        assert getattr(made, name) == getattr(usual, name), name


def test_without_an_authority_of_its_own_it_trusts_the_systems(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(OLD)
    monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
    made = client_context(None, None, None, str)
    assert made.cert_store_stats()["x509_ca"] == 1
