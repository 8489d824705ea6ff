"""Turns failures of a Kafka client into errors that name the cause and the fix.

aiokafka reports "unable to bootstrap" for every connection problem and keeps the cause in its log.
So after a client fails to connect, one probe of each address, with the client's own security
settings, finds the cause.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from surefoot.infra.kafka_client.failover import turned_away
from surefoot.infra.runtime.settings import Settings
from surefoot.infra.sign_in.tokens import NoToken
from surefoot.state.errors import NotAllowed, Unavailable

#: time limit of each step of the probe, in seconds
_LOOK_S = 4.0
#: how long to wait for a server to end a handshake, in seconds
_ALERT_S = 1.0
#: how many addresses of a long list are probed
_LOOK_MOST = 3

#: error numbers of the catalogue
_NO_ANSWER = "SF3001"
_AUTHENTICATION, _CERTIFICATE, _PROTOCOL = "SF3090", "SF3091", "SF3092"

#: OpenSSL's numbers of certificate errors. Source: X509_STORE_CTX_get_error(3)
_DATES = {9: "is not valid yet", 10: "has expired"}
_UNTRUSTED = {2, 18, 19, 20, 21}
_OTHER_HOST = {62, 64}
#: in the alert of a broker that requires a client certificate and got none, or a bad one
_CLIENT_CERTIFICATE = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE")

#: by the broker's error: kind of resource, usual operation, option of kafka-acls
_RIGHTS: dict[type[BaseException], tuple[str, str, str]] = {
    TopicAuthorizationFailedError: ("topic", "Read", "--topic"),
    GroupAuthorizationFailedError: ("group", "Read", "--group"),
    TransactionalIdAuthorizationFailed: ("transactional id", "Write", "--transactional-id"),
    ClusterAuthorizationFailedError: ("cluster", "IdempotentWrite", "--cluster"),
}


class Unreachable(KafkaConnectionError):
    """A client cannot connect: `number` is the error's; the text says where, and why."""

    def __init__(self, number: str, sentence: str) -> None:
        super().__init__(sentence)
        self.number = number
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence

    __repr__ = __str__


async def start_client(client: Any) -> None:
    """Start a consumer, a producer or an admin client.

    Raises: Unreachable — no address accepts it; whatever else `start` raises. The caller closes the
    client then.
    """
    try:
        await client.start()
    except Unreachable:
        raise
    except KafkaConnectionError as error:
        low_level = client.client if hasattr(client, "client") else client._client
        raise await why_unreachable(low_level) from error


def unavailable(
    doing: str,
    error: BaseException,
    settings: Settings,
    *,
    operation: str | None = None,
    starting: bool = False,
) -> Unavailable:
    """Return the ports' error for what a client raised while `doing` something, or `starting`.

    `operation` is the right to name if the error turns out to be a missing right."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Unreachable):
            return Unavailable(cause.number, f"{doing}: {cause.sentence}")
        if type(cause) in _RIGHTS:
            needed = None if isinstance(cause, ClusterAuthorizationFailedError) else operation
            return not_allowed(doing, type(cause), _named(cause), settings, operation=needed)
        cause = cause.__cause__
    if starting:
        return Unavailable("SF3001", f"{doing}: {error!r}")
    return Unavailable("SF3002", f"{doing}: {error!r}")


@asynccontextmanager
async def told(doing: str, settings: Settings) -> AsyncIterator[None]:
    """Raise whatever a client raises inside as `unavailable`."""
    try:
        yield
    except (KafkaError, OSError) as error:
        raise unavailable(doing, error, settings) from error


def not_allowed(
    doing: str,
    denied: type[BaseException],
    resource: str,
    settings: Settings,
    *,
    operation: str | None = None,
) -> NotAllowed:
    """Return the error for a missing right: whose, to what, and the command that grants it."""
    kind, usual, option = _RIGHTS[denied]
    operation = operation or usual
    name = "" if kind == "cluster" or not resource else f" {resource}"
    return NotAllowed(
        "SF3093",
        f"{doing}: {settings.principal} lacks {operation} on {kind}{name}; grant it: kafka-acls "
        f"--bootstrap-server {settings.bootstrap_servers} --add --allow-principal "
        f"'{settings.principal}' --operation {operation} {option}{name}",
    )


def is_denied(error: object) -> bool:
    """Whether an aiokafka error class means a missing right."""
    return error in _RIGHTS


def _named(error: BaseException) -> str:
    """Return the topic, group or id that aiokafka puts into the error, where it knows it."""
    told = error.args[0] if error.args else ""
    if isinstance(told, str):
        return told
    return ", ".join(sorted(map(str, told))) if isinstance(told, Iterable) else ""


async def why_unreachable(client: AIOKafkaClient) -> Unreachable:
    """Probe the client's addresses, a few seconds each, and return why none accepts it."""
    places = sorted((host, port) for host, port, _ in client.hosts)[:_LOOK_MOST]
    looked = [await _look(client, host, port) for host, port in places]
    # A rejection says more than a missing answer.
    telling = [found for found in looked if found.number != _NO_ANSWER] or looked
    return Unreachable(telling[0].number, "; ".join(found.sentence for found in telling))


async def _look(client: AIOKafkaClient, host: str, port: int) -> Unreachable:
    place = f"Kafka at {host}:{port}"
    try:
        conn = await create_conn(
            host,
            port,
            client_id=client._client_id,
            request_timeout_ms=int(_LOOK_S * 1000),
            **_security(client, client._security_protocol),
        )
        try:
            answer = await conn.send(MetadataRequest([]))
        finally:
            await conn.close()
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the answer)
        number, why = await _why(client, host, port, error)
        return Unreachable(number, f"{place} {why}")
    if turned_away(answer):
        why = f"refuses {client._sasl_oauth_token_provider.refused}"
        return Unreachable(_AUTHENTICATION, f"{place} {why}")
    return Unreachable(_NO_ANSWER, f"{place} could not be reached a moment ago, and answers now")


def _security(client: AIOKafkaClient, protocol: str) -> dict[str, Any]:
    return {
        "security_protocol": protocol,
        "ssl_context": client._ssl_context,
        "sasl_mechanism": client._sasl_mechanism,
        "sasl_plain_username": client._sasl_plain_username,
        "sasl_plain_password": client._sasl_plain_password,
        "sasl_oauth_token_provider": client._sasl_oauth_token_provider,
    }


async def _why(client: AIOKafkaClient, host: str, port: int, error: Exception) -> tuple[str, str]:
    """Return (number, what follows "Kafka at HOST:PORT")."""
    protocol = client._security_protocol
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    if isinstance(root, SaslAuthenticationFailed):
        return _AUTHENTICATION, (
            f"refuses the sign-in: authentication failed for {client._sasl_plain_username!r} with "
            f"{client._sasl_mechanism}; check SUREFOOT_SASL_USERNAME, SUREFOOT_SASL_PASSWORD and "
            "SUREFOOT_SASL_MECHANISM"
        )
    if isinstance(root, NoToken):
        return _AUTHENTICATION, f"wants a sign-in, and {root}"
    if isinstance(root, UnsupportedSaslMechanismError):
        return _AUTHENTICATION, (
            f"does not take SUREFOOT_SASL_MECHANISM={client._sasl_mechanism}; set it to one that "
            "the listener has enabled"
        )
    if isinstance(root, IllegalSaslStateError):
        return _PROTOCOL, (
            f"asks for no sign-in, and SUREFOOT_SECURITY_PROTOCOL is {protocol}; set it to "
            f"{protocol.removeprefix('SASL_')}, or use the address of the listener with SASL"
        )
    if isinstance(root, ssl.SSLCertVerificationError):
        return _CERTIFICATE, _why_not_trusted(root)
    if isinstance(root, socket.gaierror):
        return _NO_ANSWER, f"cannot be found: its name does not resolve ({_plain(root)})"
    if isinstance(root, ConnectionRefusedError):
        return _NO_ANSWER, (
            "refuses the connection: nothing listens there; start it, or check "
            "SUREFOOT_BOOTSTRAP_SERVERS"
        )
    if protocol.endswith("SSL"):
        return await _why_not_tls(client, host, port, root)
    if await asyncio.to_thread(_speaks_tls, host, port):
        return _PROTOCOL, (
            f"speaks TLS, and SUREFOOT_SECURITY_PROTOCOL is {protocol}; set it to "
            f"{protocol.replace('PLAINTEXT', 'SSL')}"
        )
    if protocol == "PLAINTEXT" and isinstance(error, KafkaConnectionError):
        return _PROTOCOL, (
            "ends the connection when it is asked something: it may want a sign-in "
            "(SUREFOOT_SECURITY_PROTOCOL=SASL_PLAINTEXT), or be no Kafka"
        )
    return _NO_ANSWER, f"does not answer: {_plain(root)}"


async def _why_not_tls(
    client: AIOKafkaClient, host: str, port: int, error: BaseException
) -> tuple[str, str]:
    alert = await asyncio.to_thread(_shake_hands, client._ssl_context, host, port)
    if any(word in alert for word in _CLIENT_CERTIFICATE):
        return _CERTIFICATE, (
            "does not accept this client's certificate, or wants one: check SUREFOOT_SSL_CERTFILE "
            f"and SUREFOOT_SSL_KEYFILE ({alert})"
        )
    plain = {"SSL": "PLAINTEXT", "SASL_SSL": "SASL_PLAINTEXT"}[client._security_protocol]
    try:
        conn = await create_conn(host, port, request_timeout_ms=int(_LOOK_S * 1000))
        await conn.close()
    except Exception:  # noqa: BLE001  (not that either)
        return _NO_ANSWER, f"does not answer over TLS: {_plain(error)}"
    return _PROTOCOL, (
        f"speaks no TLS, and SUREFOOT_SECURITY_PROTOCOL is {client._security_protocol}; use the "
        f"address of its TLS listener, or set it to {plain}"
    )


def _shake_hands(context: ssl.SSLContext, host: str, port: int) -> str:
    """Return the alert with which the server ends a handshake; asyncio only sees the stream end.

    With TLS 1.3 it arrives after the client's part is done, at the first read (RFC 8446,
    4.4.2.4)."""
    try:
        with (
            socket.create_connection((host, port), timeout=_LOOK_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            secured.settimeout(_ALERT_S)
            secured.recv(1)
    except OSError as error:
        return _plain(error)
    return ""


def _speaks_tls(host: str, port: int) -> bool:
    """Whether a TLS handshake succeeds. Nothing is sent, so the certificate does not matter."""
    anyone = ssl.create_default_context()
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=_LOOK_S) as plain,
            anyone.wrap_socket(plain),
        ):
            return True
    except OSError:
        return False


def _why_not_trusted(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _DATES:
        return f"has a certificate that {_DATES[error.verify_code]}: renew it, or mend the clock"
    if error.verify_code in _OTHER_HOST:
        return (
            f"has a certificate for another name: {error.verify_message}; use a name that it has, "
            "or have this one added to its subject alternative names"
        )
    if error.verify_code in _UNTRUSTED:
        return (
            f"has a certificate of an authority that is not trusted here: {error.verify_message}; "
            "set SUREFOOT_SSL_CAFILE to the PEM file of its authority"
        )
    return (
        f"has a certificate, or an authority, that does not conform: {error.verify_message}; "
        "make it anew with the extensions that RFC 5280 asks for"
    )


def _plain(error: BaseException) -> str:
    """Return the error's own text on one line."""
    words = " ".join(str(error).split())
    return words or type(error).__name__
