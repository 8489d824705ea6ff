"""Where requests may go: every address that is dialled is looked at, whatever the name was."""

from __future__ import annotations

import asyncio
import gzip
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpcore
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from surefoot import RetryableError, TerminalError
from surefoot.infra.http.deliver import HttpDeliver
from surefoot.infra.http.guarded_dialer import GuardedBackend, GuardedTransport
from surefoot.state.egress.policy import (
    Allowed,
    Forbidden,
    Target,
    forbidden,
    parse_allowed,
    target_of,
)
from surefoot.state.ports.http import HttpRequest
from surefoot.state.steps.http_effect import check_request
from tests.support.effect_target import Reply, sink
from tests.support.eventually import until
from tests.support.free_ports import deaf_port
from tests.support.long_deadlines import LONG_S

ROOT = Path(__file__).parents[3]
#: reading the certificates of the world takes longer than a test
TLS = ssl.create_default_context()
PUBLIC = "93.184.215.14"
INSIDE = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "198.18.0.1",
    "192.0.0.8",
    "192.0.2.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fd00::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:a9fe:a9fe",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a00:1",
    "2002:7f00:1::1",
    "2002:a00:1::1",
    "2001:0:4136:e378::1",
    "2001:db8::1",
    "fd00:ec2::254",
]
OUTSIDE = [PUBLIC, "8.8.8.8", "172.32.0.1", "2606:4700::6810:1", "64:ff9b::5db8:d70e"]


class Wire(httpcore.AsyncMockBackend):
    """Answers 200 to whoever is dialled, and keeps who that was."""

    def __init__(self) -> None:
        super().__init__([])
        self.dialled: list[tuple[str, int]] = []
        self.names: list[str | None] = []
        self.sent: list[bytes] = []
        #: nobody is there
        self.deaf: set[str] = set()
        #: nobody says anything
        self.silent: set[str] = set()
        #: silent ones that are not waited for any more
        self.left: list[str] = []
        self.limits: list[float | None] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        *_: Any,
        **__: Any,
    ) -> Any:
        self.dialled.append((host, port))
        self.limits.append(timeout)
        if host in self.deaf:
            raise httpcore.ConnectError("deaf")
        if host in self.silent:
            try:
                await asyncio.Event().wait()
            finally:
                self.left.append(host)
        return Stream(self)


class Stream(httpcore.AsyncMockStream):
    def __init__(self, wire: Wire) -> None:
        super().__init__([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"])
        self.wire = wire

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109
        self.wire.sent.append(buffer)

    async def start_tls(self, *_: Any, server_hostname: str | None = None, **__: Any) -> Any:
        self.wire.names.append(server_hostname)
        return self


class Names:
    """A resolver that gives another answer each time it is asked."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self._answers = list(answers)

    async def __call__(self, _host: str, _port: int) -> list[str]:
        answer = self._answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return list(answer)


@asynccontextmanager
async def client(wire: Wire, names: Names, allow: str = "") -> AsyncIterator[httpx.AsyncClient]:
    backend = GuardedBackend(parse_allowed(allow), resolve=names, connect=wire)
    async with httpx.AsyncClient(transport=GuardedTransport(backend, verify=TLS)) as made:
        yield made


def a_request(url: str) -> HttpRequest:
    return HttpRequest(method="POST", url=url, headers={"webhook-id": "m"}, body=b"")


def patient_deliver() -> HttpDeliver:
    """To targets on this machine, which may have much else to do."""
    return HttpDeliver(parse_allowed("127.0.0.1"), timeout_s=LONG_S)


def why(error: pytest.ExceptionInfo[Forbidden]) -> str:
    return str(error.value).partition("is not")[2]


def why_not() -> str:
    return str(forbidden(Target("hook.example", 1))).partition("is not")[2]


@pytest.mark.parametrize("address", INSIDE)
def test_what_only_this_machine_can_reach_is_no_target(address: str) -> None:
    for found in ([address], [PUBLIC, address]):
        with pytest.raises(Forbidden) as refused:
            Allowed().check(Target("hook.example", 443), found)
        assert why(refused) == why_not()  # nobody learns which of them it was


async def test_and_is_not_dialled() -> None:
    wire = Wire()
    for address in INSIDE:
        literal = f"[{address}]" if ":" in address else address
        async with client(wire, Names([address], [address])) as outside:
            for host in ("hook.example", literal):
                with pytest.raises(Forbidden) as refused:
                    await outside.get(f"http://{host}/")
                assert why(refused) == why_not()
    assert wire.dialled == []


@pytest.mark.parametrize("address", OUTSIDE)
def test_what_anybody_can_reach_is_allowed(address: str) -> None:
    Allowed().check(Target("hook.example", 443), [address])


ODD = [
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://134744072/",
    "http://8.8.8.010/",
    "http://127.0.0.1./",
    "http://hook.example./",
    "http://user@hook.example/",
    "http://hook.example@10.0.0.1/",
    "http://a:b@hook.example/",
    "http://hook.example\\@10.0.0.1/",
    "http://bücher.example/",
    "http://①②⑦.0.0.1/",
    "http://１２７.0.0.1/",  # noqa: RUF001
    "http://hook。example/",
    "http://[fe80::1%25lo]/",
    "http://[::1/",
    "http:///x",
    "http://",
    "http://ho st/",
    "http://h/\nx",
    "http://h:99999/",
    "http://h:0/",
    "http://h/\x7f",
    "http://h/\ud800",
    f"http://h/{'x' * 65_536}",
    "file:///etc/passwd",
    "gopher://hook.example/",
    "ftp://hook.example/",
    "hook.example",
    f"http://{'a' * 64}.example/",
    "http://-a.example/",
    "http://a..b/",
    "http://1.2.3.4.5/",
]


async def test_what_two_readers_could_take_for_two_hosts_is_no_target() -> None:
    deliver = HttpDeliver(parse_allowed("*"))
    for url in ODD:
        with pytest.raises(Forbidden):
            target_of(url)
        with pytest.raises(Forbidden):
            await deliver(a_request(url))


async def test_ports_of_other_protocols_are_not_dialled() -> None:
    wire = Wire()
    for port in (22, 25, 6379, 9092, 1):
        async with client(wire, Names([PUBLIC])) as outside:
            with pytest.raises(Forbidden):
                await outside.get(f"http://hook.example:{port}/")
    assert wire.dialled == []


async def test_a_number_is_no_host_for_whoever_dials_either() -> None:
    wire = Wire()
    for host in ("134744072", "0x08080808", "8.8.2056", "hook.example."):
        async with client(wire, Names([PUBLIC])) as outside:
            with pytest.raises(Forbidden):
                await outside.get(f"http://{host}/")
    assert wire.dialled == []


async def test_a_name_that_changes_its_mind_is_dialled_where_it_was_checked() -> None:
    wire, names = Wire(), Names([PUBLIC], ["127.0.0.1"], [PUBLIC, "10.0.0.1"])
    async with client(wire, names) as outside:
        await outside.get("https://hook.example/")
        for _ in range(2):
            with pytest.raises(Forbidden):
                await outside.get("https://hook.example/")
    assert wire.dialled == [(PUBLIC, 443)]
    assert wire.names == ["hook.example"]  # TLS is with the name, whatever was dialled
    assert b"Host: hook.example" in b"".join(wire.sent)


async def test_a_lookup_that_fails_opens_nothing() -> None:
    wire = Wire()
    async with client(wire, Names(OSError("NXDOMAIN"), ["127.0.0.1"])) as outside:
        with pytest.raises(httpx.TransportError, match="cannot be resolved"):
            await outside.get("http://hook.example/")
        with pytest.raises(Forbidden):
            await outside.get("http://hook.example/")
    assert wire.dialled == []


async def test_the_next_address_is_tried_where_nobody_answers() -> None:
    wire = Wire()
    wire.deaf = {PUBLIC}
    async with client(wire, Names([PUBLIC, "8.8.8.8"], [PUBLIC])) as outside:
        assert (await outside.get("http://hook.example/")).status_code == 200
        with pytest.raises(httpx.TransportError):
            await outside.get("http://hook.example/")
    assert [host for host, _ in wire.dialled] == [PUBLIC, "8.8.8.8", PUBLIC]


async def test_an_address_that_says_nothing_does_not_keep_the_next_ones_waiting() -> None:
    wire = Wire()
    wire.silent = {PUBLIC, "8.8.4.4"}
    async with client(wire, Names([PUBLIC, "8.8.4.4", "8.8.8.8"])) as outside:
        assert (await outside.get("http://hook.example/")).status_code == 200
    assert [host for host, _ in wire.dialled] == [PUBLIC, "8.8.4.4", "8.8.8.8"]
    assert sorted(wire.left) == ["8.8.4.4", PUBLIC]


async def test_whoever_gives_up_leaves_nobody_dialling() -> None:
    wire = Wire()
    wire.silent = {PUBLIC, "8.8.8.8"}
    async with client(wire, Names([PUBLIC, "8.8.8.8"])) as outside:
        asking = asyncio.create_task(outside.get("http://hook.example/"))
        await until(lambda: len(wire.dialled) == 2, what="both to be dialled")
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
    assert sorted(wire.left) == ["8.8.8.8", PUBLIC]


async def test_no_address_may_take_all_of_the_time() -> None:
    wire = Wire()
    async with client(wire, Names([PUBLIC], [PUBLIC])) as outside:
        for limit_s in (30.0, 2.0):
            await outside.get("http://hook.example/", timeout=limit_s)
    assert wire.limits == [10.0, 2.0]


async def test_families_take_turns() -> None:
    wire = Wire()
    six = [f"2606:4700::6810:{n}" for n in (1, 2, 3)]
    wire.deaf = {*six, PUBLIC}
    async with client(wire, Names([*six, PUBLIC])) as outside:
        with pytest.raises(httpx.TransportError):
            await outside.get("http://hook.example/")
    assert [host for host, _ in wire.dialled] == [six[0], PUBLIC, six[1], six[2]]


MORE = [
    ("10.0.0.0/8", "http://in.example/", "10.9.8.7"),
    ("10.0.0.0/8", "http://in.example/", "::ffff:10.9.8.7"),
    ("in.example", "http://in.example:9000/", "10.9.8.7"),
    ("*.example", "http://a.b.example:9000/", "10.9.8.7"),
    ("in.example:9000", "http://in.example:9000/", "10.9.8.7"),
    ("127.0.0.1:9000", "http://127.0.0.1:9000/", "127.0.0.1"),
    ("[::1]:9000", "http://[::1]:9000/", "::1"),
    ("::1, fc00::/7", "http://in.example/", "fd00::7"),
    ("*", "http://in.example:6379/", "169.254.169.254"),
]


async def test_the_operator_can_allow_more() -> None:
    for allow, url, address in MORE:
        wire = Wire()
        async with client(wire, Names([address]), allow) as outside:
            assert (await outside.get(url)).status_code == 200
        assert wire.dialled == [(address, httpx.URL(url).port or 80)]


@pytest.mark.parametrize(
    ("allow", "host", "port", "addresses"),
    [
        ("10.0.0.0/8", "in.example", 80, ["10.0.0.1", "127.0.0.1"]),
        ("in.example", "notin.example", 80, ["10.0.0.1"]),
        ("*.example", "example", 80, ["10.0.0.1"]),
        ("*.example", "evilexample", 80, ["10.0.0.1"]),
        ("in.example:9000", "in.example", 9001, ["10.0.0.1"]),
        ("10.0.0.0/8:9000", "in.example", 80, ["10.0.0.1"]),
        ("in.example", "in.example", 80, []),
    ],
)
def test_and_not_one_address_more(allow: str, host: str, port: int, addresses: list[str]) -> None:
    with pytest.raises(Forbidden):
        parse_allowed(allow).check(Target(host, port), addresses)


@pytest.mark.parametrize(
    "text",
    ["10.0.0.0/33", "http://h", "h:0", "h:99999", "10.0.0.1/8", "127.1", "*x", "a,b c", "h:"],
)
def test_what_allows_nothing_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="must be a name"):
        parse_allowed(text)


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async with sink() as target:
        for where in ("http://169.254.169.254/latest", "file:///etc/passwd", "gopher://h/"):
            target.script = {"/hook": [Reply(302, {"Location": where})]}
            deliver = patient_deliver()
            assert (await deliver(a_request(f"{target.url}/hook"))).status == 302
            await deliver.close()
        assert [request.path for request in target.book] == ["/hook"] * 3


async def test_each_hop_is_looked_at_by_a_client_that_follows() -> None:
    async with sink() as target:
        target.script = {"/hook": [Reply(302, {"Location": "http://169.254.169.254/latest"})]}
        backend = GuardedBackend(parse_allowed("127.0.0.1"))
        transport = GuardedTransport(backend, verify=TLS)
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as following:
            with pytest.raises(Forbidden):
                await following.get(f"{target.url}/hook", headers={"webhook-id": "m"})


async def test_nothing_is_sent_to_this_machine_unless_it_is_allowed() -> None:
    async with sink() as target:
        for url in (target.url, target.url.replace("127.0.0.1", "localhost")):
            with pytest.raises(Forbidden, match="SUREFOOT_OUT_ALLOW"):
                await HttpDeliver(Allowed())(a_request(url))
        assert target.book == []


async def test_a_target_that_is_not_there_may_be_later() -> None:
    deliver = patient_deliver()
    with deaf_port() as port, pytest.raises(RetryableError, match="ConnectError"):
        await deliver(a_request(f"http://127.0.0.1:{port}/"))
    await deliver.close()


@asynccontextmanager
async def answering(answer: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that says this to whoever asks; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def test_an_answer_is_not_unpacked_and_only_its_beginning_is_kept() -> None:
    packed = gzip.compress(b"\0" * 10_000_000)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    deliver = patient_deliver()
    async with answering(head.encode() + packed) as port:
        response = await deliver(a_request(f"http://127.0.0.1:{port}/"))
        await deliver.close()
    assert response.body == packed[:1024]


UNSENDABLE = [
    {"": "1"},
    {"A B": "1"},
    {"A": " 1"},
    {"A": "1\r\nB: 2"},
    {"A": "ü"},
    {"Transfer-Encoding": "gzip"},
]


@pytest.mark.parametrize("headers", UNSENDABLE)
async def test_what_no_client_could_send_is_final(headers: dict[str, str]) -> None:
    deliver = patient_deliver()
    async with sink() as target:
        with pytest.raises(TerminalError, match="can never be sent"):
            await deliver(HttpRequest(method="GET", url=target.url, headers=headers, body=b""))
        await deliver.close()
    assert target.book == []


async def test_what_a_step_may_ask_for_is_sent_as_it_is() -> None:
    every = "".join(map(chr, range(ord("!"), ord("~") + 1)))
    token = "".join(char for char in every if char.isalnum() or char in "!#$%&'*+-.^_`|~")
    headers = {token: every, "x-inside": "a \t b", "x-empty": "", "accept": "text/plain"}
    check_request("GET", "http://h/", headers)
    deliver = patient_deliver()
    async with sink() as target:
        sent = HttpRequest(
            method="GET", url=target.url, headers={**headers, "webhook-id": "m"}, body=b""
        )
        assert (await deliver(sent)).status == 200
        await deliver.close()
    (asked,) = target.book
    assert {name: asked.headers[name.lower()] for name in headers} == headers


@pytest.mark.parametrize("where", ["http://[::1", "http://h:99999999/", "http://\x7f"])
async def test_a_redirect_to_nowhere_is_an_answer_too(where: str) -> None:
    deliver = patient_deliver()
    async with sink() as target:
        target.script = {"/hook": [Reply(302, {"Location": where})]}
        answer = await deliver(a_request(f"{target.url}/hook"))
        assert (answer.status, answer.headers["location"]) == (302, where)
        await deliver.close()


async def test_a_cookie_goes_out_with_no_other_effect() -> None:
    deliver = patient_deliver()
    async with sink() as target:
        target.script = {"/first": [Reply(200, {"Set-Cookie": "session=of-another; Path=/"})]}
        for path in ("/first", "/first", "/second"):
            await deliver(a_request(f"{target.url}{path}"))
        own = HttpRequest(
            method="GET",
            url=f"{target.url}/third",
            headers={"Cookie": "mine=1", "webhook-id": "m"},
            body=b"",
        )
        await deliver(own)
        await deliver.close()
    assert [request.headers.get("cookie") for request in target.book] == [None] * 3 + ["mine=1"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("nothing", None),
        ("nobody vouches", "CERTIFICATE_VERIFY_FAILED.*self-signed"),
        ("host", "CERTIFICATE_VERIFY_FAILED.*mismatch"),
        ("expired", "CERTIFICATE_VERIFY_FAILED.*expired"),
        ("TLS 1.0", "no answer"),
    ],
)
async def test_tls_that_proves_nothing_is_a_failure_that_is_tried_again(
    wrong: str, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "both.pem"
    path.write_bytes(
        self_signed("127.0.0.2" if wrong == "host" else "127.0.0.1", 2 if wrong == "expired" else 0)
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(path)
    if wrong == "TLS 1.0":
        tls.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
            tls.minimum_version = tls.maximum_version = ssl.TLSVersion.TLSv1
    if wrong != "nobody vouches":
        monkeypatch.setattr(httpx, "create_ssl_context", partial(vouching, path))
    deliver = patient_deliver()
    async with answering(b"HTTP/1.1 204 \r\n\r\n", tls) as port:
        try:
            if told is None:
                assert (await deliver(a_request(f"https://127.0.0.1:{port}/"))).status == 204
            else:
                with pytest.raises(RetryableError, match=told):
                    await deliver(a_request(f"https://127.0.0.1:{port}/"))
        finally:
            await deliver.close()


_CONTEXT = httpx.create_ssl_context


def vouching(path: Path, **how: Any) -> ssl.SSLContext:
    """What is used otherwise, and who has signed this."""
    context = _CONTEXT(**how)
    context.load_verify_locations(path)
    return context


def self_signed(host: str, days_ago: int) -> bytes:
    """A certificate, good for a day before and after then, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    then = datetime.now(UTC) - timedelta(days=days_ago)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(then - timedelta(days=1))
        .not_valid_after(then + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    ) + certificate.public_bytes(Encoding.PEM)


#: whoever opens a connection of HTTP, and why not through the guard
CALL_SITES = {
    "infra/http/guarded_dialer.py": "it is the guard",
    "infra/http/deliver.py": "through it",
    "infra/registry/confluent.py": "the operator's own setting",
    "infra/local/stack.py": "its own gateway on this machine",
    "infra/views/http.py": "the operator's own setting, and its instances' addresses",
    "infra/http/client.py": "the client's, in the user's own process, to the user's own gateway",
    "infra/access/oidc.py": "the operator's own setting, and what that issuer names",
    "infra/encryption/providers.py": "the operator's own setting",
    "infra/demo/deliveries.py": "the demo's own gateway on this machine",
}


def test_every_place_that_fetches_is_known() -> None:
    clients = "httpx|httpcore|urllib\\.request|requests|aiohttp"
    imported = re.compile(rf"^\s*(?:from|import) (?:{clients})\b", re.MULTILINE)
    found = {
        path.relative_to(ROOT).as_posix()
        for room in ("schemas", "state", "consumers", "producers", "infra", "surefoot")
        for path in (ROOT / room).rglob("*.py")
        if path.parent.resolve() == path.parent  # rooms are linked into surefoot/ as well
        and imported.search(path.read_text("utf-8"))
    }
    assert found == set(CALL_SITES)
