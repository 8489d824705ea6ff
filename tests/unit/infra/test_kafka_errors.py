"""Certificates that a client does not accept, servers that are no Kafka: what it says of them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import TopicAuthorizationFailedError, TransactionalIdAuthorizationFailed
from pydantic import SecretStr

from surefoot.infra.kafka_client.errors import (
    Unreachable,
    start_client,
    unavailable,
    why_unreachable,
)
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.errors import ConfigError, NotAllowed
from tests.support.certificates import Issued, issue

AUTHORITY = issue("an authority", authority=True)


@asynccontextmanager
async def serving(context: ssl.SSLContext | None, answer: bytes = b"") -> AsyncIterator[int]:
    """A server that answers whoever sends something with that, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


def presenting(issued: Issued, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.write(folder / "server.pem"))
    return context


def trusting(authority: Issued) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=authority.certificate_pem().decode())
    return context


async def said(port: int, context: ssl.SSLContext | None) -> str:
    client = AIOKafkaClient(
        bootstrap_servers=f"127.0.0.1:{port}",
        security_protocol="SSL" if context else "PLAINTEXT",
        ssl_context=context,
    )
    found = await why_unreachable(client)
    return f"{found.number} {found}"


@pytest.mark.parametrize(
    ("issued", "why"),
    [
        (issue("127.0.0.1", by=AUTHORITY, days_ago=9), "a certificate that has expired"),
        (issue("127.0.0.1", by=AUTHORITY, days_ago=-9), "a certificate that is not valid yet"),
        (issue("kafka.example", by=AUTHORITY), "a certificate for another name"),
        (issue("127.0.0.1"), "a certificate of an authority that is not trusted here"),
        # signed by one that may sign nothing
        (issue("127.0.0.1", by=issue("no authority", by=AUTHORITY)), "not trusted here"),
    ],
    ids=["expired", "early", "name", "self-signed", "not-an-authority"],
)
async def test_which_check_of_a_certificate_failed(tmp_path, issued, why):
    async with serving(presenting(issued, tmp_path)) as port:
        line = await said(port, trusting(AUTHORITY))
    assert line.startswith(f"SF3091 Kafka at 127.0.0.1:{port} has ")
    assert why in line


async def test_an_authority_that_does_not_conform(tmp_path):
    """One whose certificate does not say that it is one."""
    odd = issue("an odd authority")
    async with serving(presenting(issue("127.0.0.1", by=odd), tmp_path)) as port:
        line = await said(port, trusting(odd))
    assert line.startswith("SF3091 ")
    assert "does not conform" in line


async def test_something_that_is_no_kafka():
    async with serving(None, b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        line = await said(port, None)
    assert line.startswith("SF3092 ")
    assert "or be no Kafka" in line


async def test_nobody_and_no_such_name():
    client = AIOKafkaClient(bootstrap_servers="127.0.0.1:1,no-such-host.invalid:9092")
    found = await why_unreachable(client)
    assert found.number == "SF3001"
    assert "Kafka at 127.0.0.1:1 refuses the connection: nothing listens there" in str(found)
    assert "no-such-host.invalid:9092 cannot be found: its name does not resolve" in str(found)


async def test_who_turns_away_is_told_rather_than_who_does_not_answer(tmp_path):
    async with serving(presenting(issue("127.0.0.1"), tmp_path)) as port:
        client = AIOKafkaClient(
            bootstrap_servers=f"127.0.0.1:1,127.0.0.1:{port}",
            security_protocol="SSL",
            ssl_context=trusting(AUTHORITY),
        )
        assert (await why_unreachable(client)).number == "SF3091"


def test_an_encrypted_key_is_never_asked_for_at_the_terminal(tmp_path):
    pair = issue("a client", by=AUTHORITY).write(tmp_path / "client.pem", password="sesame")
    settings = load_settings(
        bootstrap_servers="kafka:9093", security_protocol="SSL", ssl_certfile=pair, ssl_keyfile=pair
    )
    with pytest.raises(ConfigError, match="SUREFOOT_SSL_KEY_PASSWORD"):
        settings.kafka()
    with_it = settings.model_copy(update={"ssl_key_password": SecretStr("sesame")})
    assert with_it.kafka()["ssl_context"] is not None


def test_a_missing_right_names_principal_operation_resource_and_command():
    settings = load_settings(
        bootstrap_servers="kafka:9093",
        security_protocol="SASL_SSL",
        sasl_username="ann",
        sasl_password="secret-of-ann",
    )
    chained = RuntimeError("the transaction")
    chained.__cause__ = TransactionalIdAuthorizationFailed("app.triage.0")
    error = unavailable("cannot start", chained, settings)
    assert isinstance(error, NotAllowed)
    assert str(error) == (
        "SF3093: cannot start: User:ann lacks Write on transactional id app.triage.0; grant it: "
        "kafka-acls --bootstrap-server kafka:9093 --add --allow-principal 'User:ann' --operation "
        "Write --transactional-id app.triage.0"
    )
    several = TopicAuthorizationFailedError({"b", "a"})
    assert "lacks Read on topic a, b" in str(unavailable("reading", several, settings))


async def test_a_client_that_cannot_start_is_told_by_its_cause_however_deep_it_lies():
    consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(Unreachable) as caught:
        await start_client(consumer)
    await consumer.stop()
    chained = RuntimeError("the consumer")
    chained.__cause__ = caught.value
    error = unavailable("cannot read", chained, load_settings())
    assert str(error).startswith("SF3001: cannot read: Kafka at 127.0.0.1:1 refuses the connection")
    turned_away = Unreachable("SF3090", "Kafka at kafka:9093 refuses the sign-in")
    assert str(unavailable("cannot read", turned_away, load_settings())) == (
        "SF3090: cannot read: Kafka at kafka:9093 refuses the sign-in"
    )


@pytest.mark.parametrize(("starting", "number"), [(True, "SF3001"), (False, "SF3002")])
def test_any_other_failure_is_told_as_it_is(starting, number):
    error = unavailable("cannot read", OSError("odd"), load_settings(), starting=starting)
    assert str(error) == f"{number}: cannot read: OSError('odd')"
