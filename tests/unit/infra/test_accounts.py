"""Tokens and the audit trail on a log: what holds, what ends, and what cannot be written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done
from surefoot.infra.access import tokens as tokens_module
from surefoot.infra.access.audit import AuditReader, AuditWriter
from surefoot.infra.access.tokens import FollowedAccounts, TokenBook, TokenTable, new_token_secret
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.log.ports import Backend
from surefoot.infra.open_log import open_backend
from surefoot.infra.processes.gateway import serve_gateway
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.access.accounts import (
    SECRET_PREFIX,
    AccessToken,
    Account,
    check_account,
    revocation_out,
    secret_digest,
    token_out,
)
from surefoot.state.access.audit import AuditEntry
from surefoot.state.errors import BadArgument, ConfigError, RecordTooLarge, Unavailable
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from tests.support.eventually import until

ANN = AccessToken(
    account=Account(name="ann", role="operator", agents=("triage", "billing-*")),
    digest=secret_digest("ann's secret"),
    created_ms=1,
)
ENTRY = AuditEntry(id="a1", at_ms=1_000, who="ann", action="pause", status=200)


class MovedClock(SystemClock):
    """The wall clock, so many milliseconds later."""

    later_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.later_ms


@pytest.fixture
def chosen(tmp_path: Path) -> Settings:
    made = load_settings(log=f"sqlite:///{tmp_path / 'x.db'}", partitions=3, auth="tokens")
    return made.within(read_s=180, send_s=180, start_s=180)


@pytest.fixture
async def backend(chosen: Settings) -> AsyncIterator[Backend]:
    async with open_backend(chosen, SystemClock(), owner=True) as made:
        async with made.topics() as topics:
            await topics.apply(specs_for([], chosen))
        yield made


@asynccontextmanager
async def followed(
    settings: Settings, backend: Backend, clock: SystemClock
) -> AsyncIterator[FollowedAccounts]:
    accounts = FollowedAccounts(settings, backend, clock)
    accounts.start()
    try:
        yield accounts
    finally:
        await accounts.stop()


@pytest.fixture
async def book(chosen: Settings, backend: Backend) -> AsyncIterator[TokenBook]:
    made = TokenBook(chosen, backend)
    yield made
    await made.stop()


async def test_a_token_signs_in_until_it_is_revoked(
    chosen: Settings, backend: Backend, book: TokenBook
) -> None:
    await book.write(ANN)
    async with followed(chosen, backend, SystemClock()) as accounts:
        assert await accounts.sign_in("ann's secret") == ANN.account
        assert await accounts.sign_in("ann") is None
        ending = asyncio.create_task(accounts.ended(ANN.account))
        others = asyncio.create_task(accounts.ended(ANN.account))
        await book.write(replace(ANN, account=Account(name="bob", role="viewer"), digest=b"b" * 32))
        assert [token.account.name for token in await book.tokens()] == ["ann", "bob"]
        assert not ending.done()
        await book.revoke("ann")
        await asyncio.gather(ending, others)
        assert await accounts.sign_in("ann's secret") is None
    assert [token.account.name for token in await book.tokens()] == ["bob"]


async def test_a_token_in_place_of_another_ends_the_other(
    chosen: Settings, backend: Backend, book: TokenBook
) -> None:
    await book.write(ANN)
    async with followed(chosen, backend, SystemClock()) as accounts:
        assert await accounts.sign_in("ann's secret") == ANN.account
        ending = asyncio.create_task(accounts.ended(ANN.account))
        less = replace(ANN.account, role="viewer")
        await book.write(replace(ANN, account=less, digest=secret_digest("new")))
        await ending
        assert await accounts.sign_in("ann's secret") is None
        assert await accounts.sign_in("new") == less


async def test_a_token_expires(
    chosen: Settings, backend: Backend, book: TokenBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "_LOOK_S", 0.01)
    clock = MovedClock()
    account = replace(ANN.account, expires_ms=clock.now_ms() + 3_600_000)
    await book.write(replace(ANN, account=account))
    async with followed(chosen, backend, clock) as accounts:
        assert await accounts.sign_in("ann's secret") == account
        ending = asyncio.create_task(accounts.ended(account))
        clock.later_ms = 3_600_000
        await ending
        assert await accounts.sign_in("ann's secret") is None


async def test_nobody_signs_in_before_all_tokens_are_known(
    chosen: Settings, backend: Backend, book: TokenBook
) -> None:
    await book.write(ANN)
    accounts = FollowedAccounts(chosen.within(read_s=0.01), backend, SystemClock())
    with pytest.raises(Unavailable):
        await accounts.sign_in("ann's secret")
    await accounts.stop()


def as_read(out: ProducerRecord) -> ConsumerRecord:
    return ConsumerRecord(out.topic, out.partition, 0, 0, out.key, out.value)


def test_a_record_that_cannot_be_read_revokes_its_token() -> None:
    table, written = TokenTable(), as_read(token_out("x", 3, ANN))
    for unreadable in (b"", b"nonsense", written.value[:-1] if written.value else b""):
        table.apply(written)
        assert table.find("ann's secret") == ANN
        with capture_logs() as logs:
            table.apply(written._replace(value=unreadable))
        assert table.find("ann's secret") is None
        assert [line["event"] for line in logs] == ["access_record_unreadable"]
    table.apply(as_read(revocation_out("x", 3, "ann")))
    assert table.tokens == {}


def test_a_role_of_a_later_version_is_none() -> None:
    later: AccessToken = replace(ANN, account=replace(ANN.account, role="owner"))  # type: ignore[arg-type]
    table = TokenTable()
    table.apply(as_read(token_out("x", 3, later)))
    assert table.tokens == {}


def test_a_secret_is_random_and_not_in_its_record() -> None:
    secrets = {new_token_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(len(secret) == len(SECRET_PREFIX) + 43 for secret in secrets)
    assert b"secret" not in (token_out("x", 3, ANN).value or b"")


@pytest.mark.parametrize(
    ("agents", "seen", "unseen"),
    [
        (("*",), ["triage", "outbox", None], []),
        (("triage", "billing-*"), ["triage", "billing-eu"], ["billing", "outbox", "Triage", None]),
        (("tri?ge",), ["triage"], ["triiage", None]),
    ],
)
def test_an_account_sees_what_its_patterns_match(
    agents: tuple[str, ...], seen: list[str | None], unseen: list[str | None]
) -> None:
    account = Account(name="a", role="viewer", agents=agents)
    assert all(account.covers(agent) for agent in seen)
    assert not any(account.covers(agent) for agent in unseen)


@pytest.mark.parametrize(
    ("name", "agents"),
    [
        ("", "*"),
        ("a b", "*"),
        ("-a", "*"),
        ("a" * 129, "*"),
        ("a", ""),
        ("a", "b.c"),
        ("a", "[ab]"),
    ],
)
def test_an_account_that_cannot_be_is_refused(name: str, agents: str) -> None:
    with pytest.raises(BadArgument, match="SF1082"):
        check_account(Account(name=name, role="viewer", agents=(agents,)))


# The audit trail ------------------------------------------------------------------------------


async def test_the_audit_trail_is_read_from_a_time_on(chosen: Settings, backend: Backend) -> None:
    writer, reader = AuditWriter(chosen, backend.appender()), AuditReader(chosen, backend)
    first_ms = SystemClock().now_ms() - 100  # an entry is written after its time
    for number in range(20):
        who = "ann" if number % 2 else None
        await writer.record(replace(ENTRY, id=f"a{number:02}", at_ms=first_ms + number, who=who))
    found = await reader.entries(first_ms + 10, lambda entry: entry.who == "ann")
    assert [entry.id for entry in found] == ["a11", "a13", "a15", "a17", "a19"]
    assert found[0] == replace(ENTRY, id="a11", at_ms=first_ms + 11)
    await writer.stop()
    await reader.stop()


@pytest.mark.parametrize(
    "error", [Unavailable("SF3002", "away"), RecordTooLarge("much", size=2, limit=1)]
)
async def test_what_the_log_does_not_take_is_in_the_log_of_the_process(
    chosen: Settings, error: Exception
) -> None:
    class Away:
        async def append(self, *_: object, **_options: object) -> None:
            raise error

        async def stop(self) -> None: ...

    with capture_logs() as logs:
        await AuditWriter(chosen, Away()).record(ENTRY)  # type: ignore[arg-type]
    [line] = logs
    assert (line["event"], line["who"], line["action"]) == ("audit_not_recorded", "ann", "pause")


# The gateway ----------------------------------------------------------------------------------


def an_agent() -> Agent:
    agent = Agent("greeter")

    @agent.step
    async def greet(ctx: Context, name: str) -> Done:
        return Done(name)

    return agent


@pytest.mark.parametrize(
    ("told", "listens"),
    [
        ({}, True),
        ({"gateway_host": "0.0.0.0"}, False),
        ({"gateway_host": "0.0.0.0", "insecure": True}, True),
        ({"gateway_host": "0.0.0.0", "auth": "tokens"}, True),
    ],
)
async def test_a_gateway_listens_for_others_only_with_authentication(
    tmp_path: Path, told: dict[str, object], listens: bool
) -> None:
    settings = load_settings(
        log=f"sqlite:///{tmp_path}/x.db", partitions=1, gateway_port=0, **told
    ).within(verify_s=180)
    stop, urls = asyncio.Event(), list[str]()
    async with open_backend(settings, SystemClock(), owner=True) as backend:
        async with backend.topics() as topics:
            await topics.apply(specs_for(["greeter"], settings))
        serving = asyncio.create_task(
            serve_gateway([an_agent()], settings, backend, stop, urls.append)
        )
        await until(lambda: urls or serving.done(), what="the gateway")
        stop.set()
        if listens:
            await serving
        else:
            with pytest.raises(ConfigError, match=r"SF1081.*SUREFOOT_AUTH=tokens"):
                await serving
    assert bool(urls) is listens
