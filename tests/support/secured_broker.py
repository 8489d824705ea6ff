"""A broker with a listener of each kind (plain, SASL, TLS), and with ACLs.

Whoever comes by the plain listener is a super user. `ann` signs in with a password, and others with
SCRAM, a certificate or a token; none has a right until it is given some.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

import confluent_kafka.admin

from surefoot.infra.broker.config import free_ports
from surefoot.infra.broker.find import start_broker
from tests.support.certificates import issue

kafka: Any = confluent_kafka.admin  # it exports more than its types say

USER, PASSWORD = "ann", "open-sesame-9471"
#: how long a sign-in with SCRAM or a token lasts
SIGNED_IN_S = 3.0
_LOGINS = "org.apache.kafka.common.security"


@dataclass(frozen=True, kw_only=True, slots=True)
class Secured:
    """Addresses of the listeners, and the PEM file of the authority behind those with TLS."""

    plain: str
    sasl: str
    tls: str
    #: TLS, for clients with a certificate only
    mutual: str
    #: TLS, for users with a password in the cluster, or with an unsecured token
    scram: str
    bearer: str
    authority: Path
    #: a client's certificate and its key, which `PASSWORD` opens
    client: Path

    def create(self, topic: str) -> None:
        """A topic that is none of ours, with one partition."""
        admin = self._admin()
        for done in admin.create_topics([kafka.NewTopic(topic, 1, 1)]).values():
            done.result(timeout=60)

    def allow(self, prefix: str, *operations: str, kind: str = "TOPIC") -> None:
        """Give the user a right on what has a name that begins so. It holds a moment later."""
        pattern = kafka.ResourcePatternType.PREFIXED
        self._make(
            _binding(kind, prefix, pattern, f"User:{USER}", operation) for operation in operations
        )

    def run(self, commands: Iterable[str]) -> None:
        """Do what `kafka-acls` commands say, without their two seconds of Java each."""
        self._make(each for command in commands for each in _bindings(command))

    def register(self, user: str) -> None:
        """A user of SCRAM, whose password is `PASSWORD`."""
        how = kafka.ScramCredentialInfo(kafka.ScramMechanism.SCRAM_SHA_512, 4096)
        known = kafka.UserScramCredentialUpsertion(user, how, PASSWORD.encode())
        admin = self._admin()
        for done in admin.alter_user_scram_credentials([known]).values():
            done.result(timeout=60)

    def signed_in(self) -> dict[str, str]:
        """The settings of the user, as environment variables."""
        return {
            "SUREFOOT_BOOTSTRAP_SERVERS": self.sasl,
            "SUREFOOT_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "SUREFOOT_SASL_USERNAME": USER,
            "SUREFOOT_SASL_PASSWORD": PASSWORD,
        }

    def with_scram(self, user: str) -> dict[str, str]:
        return {
            "SUREFOOT_BOOTSTRAP_SERVERS": self.scram,
            "SUREFOOT_SECURITY_PROTOCOL": "SASL_SSL",
            "SUREFOOT_SASL_MECHANISM": "SCRAM-SHA-512",
            "SUREFOOT_SASL_USERNAME": user,
            "SUREFOOT_SASL_PASSWORD": PASSWORD,
            "SUREFOOT_SSL_CAFILE": str(self.authority),
        }

    def with_certificate(self) -> dict[str, str]:
        """Those of `User:CN=ann`."""
        return {
            "SUREFOOT_BOOTSTRAP_SERVERS": self.mutual,
            "SUREFOOT_SECURITY_PROTOCOL": "SSL",
            "SUREFOOT_SSL_CAFILE": str(self.authority),
            "SUREFOOT_SSL_CERTFILE": str(self.client),
            "SUREFOOT_SSL_KEYFILE": str(self.client),
            "SUREFOOT_SSL_KEY_PASSWORD": PASSWORD,
        }

    def with_token(self, file: Path) -> dict[str, str]:
        return {
            "SUREFOOT_BOOTSTRAP_SERVERS": self.bearer,
            "SUREFOOT_SECURITY_PROTOCOL": "SASL_SSL",
            "SUREFOOT_SASL_MECHANISM": "OAUTHBEARER",
            "SUREFOOT_SASL_TOKEN_FILE": str(file),
            "SUREFOOT_SSL_CAFILE": str(self.authority),
        }

    def _admin(self) -> Any:
        """A client of a super user; what it was asked ends with it."""
        return kafka.AdminClient({"bootstrap.servers": self.plain})

    def _make(self, rights: Iterable[Any]) -> None:
        admin = self._admin()
        for done in admin.create_acls(list(dict.fromkeys(rights))).values():
            done.result(timeout=60)


def unsecured_token(user: str, *, lasts_s: float) -> str:
    """A JWT that nobody has signed: Kafka takes it when told so."""
    now_s = time()
    parts = {"alg": "none"}, {"sub": user, "iat": now_s, "exp": now_s + lasts_s}
    return ".".join([*(_base64(json.dumps(part)) for part in parts), ""])


def _base64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _binding(kind: str, name: str, pattern: Any, principal: str, operation: str) -> Any:
    return kafka.AclBinding(
        kafka.ResourceType[kind],
        name,
        pattern,
        principal,
        "*",
        kafka.AclOperation[operation],
        kafka.AclPermissionType.ALLOW,
    )


def _bindings(command: str) -> Iterator[Any]:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--allow-principal", required=True)
    parser.add_argument("--operation", action="append", required=True)
    parser.add_argument("--resource-pattern-type", default="literal")
    resource = parser.add_mutually_exclusive_group(required=True)
    for option in ("--topic", "--group", "--transactional-id"):
        resource.add_argument(option)
    resource.add_argument("--cluster", action="store_const", const="kafka-cluster")
    program, *arguments = shlex.split(command)
    assert program == "kafka-acls"
    told = vars(parser.parse_args(arguments))
    kinds = {
        "topic": "TOPIC",
        "group": "GROUP",
        "transactional_id": "TRANSACTIONAL_ID",
        "cluster": "BROKER",  # as librdkafka calls it
    }
    ((kind, name),) = [(kinds[key], told[key]) for key in kinds if told[key] is not None]
    pattern = kafka.ResourcePatternType[told["resource_pattern_type"].upper()]
    for operation in told["operation"]:
        spelled = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()
        yield _binding(kind, name, pattern, told["allow_principal"], spelled)


@contextmanager
def secured_broker(folder: Path) -> Iterator[Secured]:
    names = ("PLAIN", "SASL", "TLS", "MUTUAL", "SCRAM", "BEARER", "CONTROLLER")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    listeners = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    authority = issue("the tests' authority", authority=True)
    trusted = folder / "authority.pem"
    trusted.write_bytes(authority.certificate_pem())
    client = issue("ann", by=authority)
    keystore = issue("127.0.0.1", by=authority).write(folder / "server.pem")
    signed_in_ms = str(int(SIGNED_IN_S * 1000))
    properties = {
        "listeners": ",".join(f"{name}://{at}" for name, at in listeners.items()),
        "advertised.listeners": ",".join(
            f"{name}://{at}" for name, at in listeners.items() if name != "CONTROLLER"
        ),
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,"
        "MUTUAL:SSL,SCRAM:SASL_SSL,BEARER:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAIN",
        "controller.quorum.bootstrap.servers": listeners["CONTROLLER"],
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{_LOGINS}.plain.PlainLoginModule required "
        f'user_{USER}="{PASSWORD}";',
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": (
            f"{_LOGINS}.scram.ScramLoginModule required;"
        ),
        "listener.name.scram.scram-sha-512.connections.max.reauth.ms": signed_in_ms,
        "listener.name.bearer.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.bearer.oauthbearer.sasl.jaas.config": (
            f"{_LOGINS}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.bearer.oauthbearer.connections.max.reauth.ms": signed_in_ms,
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": str(trusted),
        "listener.name.mutual.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    for name in ("tls", "mutual", "scram", "bearer"):
        properties[f"listener.name.{name}.ssl.keystore.type"] = "PEM"
        properties[f"listener.name.{name}.ssl.keystore.location"] = str(keystore)
    with start_broker(ways=("java",), port=ports["PLAIN"], properties=properties):
        yield Secured(
            plain=listeners["PLAIN"],
            sasl=listeners["SASL"],
            tls=listeners["TLS"],
            mutual=listeners["MUTUAL"],
            scram=listeners["SCRAM"],
            bearer=listeners["BEARER"],
            authority=trusted,
            client=client.write(folder / "client.pem", password=PASSWORD),
        )
