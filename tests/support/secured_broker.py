"""A broker with a listener of each kind (plain, SASL, TLS), and with ACLs.

Whoever comes by the plain listener is a super user; `ann` signs in with SASL, and has no right
until `allow` gives her some.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka.admin

from surefoot.infra.broker.config import free_ports
from surefoot.infra.broker.find import start_broker
from tests.support.certificates import issue

kafka: Any = confluent_kafka.admin  # it exports more than its types say

USER, PASSWORD = "ann", "open-sesame-9471"


@dataclass(frozen=True, kw_only=True, slots=True)
class Secured:
    """Addresses of the listeners, and the PEM file of the authority behind the TLS one."""

    plain: str
    sasl: str
    tls: str
    #: the same, for clients with a certificate only
    mutual: str
    authority: Path
    #: a client's certificate and its key, which `PASSWORD` opens
    client: Path

    def create(self, topic: str) -> None:
        """A topic that is none of ours, with one partition."""
        admin = kafka.AdminClient({"bootstrap.servers": self.plain})
        for done in admin.create_topics([kafka.NewTopic(topic, 1, 1)]).values():
            done.result(timeout=60)

    def allow(self, prefix: str, *operations: str, kind: str = "TOPIC") -> None:
        """Give the user a right on what has a name that begins so. It holds a moment later."""
        rights = [
            kafka.AclBinding(
                kafka.ResourceType[kind],
                prefix,
                kafka.ResourcePatternType.PREFIXED,
                f"User:{USER}",
                "*",
                kafka.AclOperation[operation],
                kafka.AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        admin = kafka.AdminClient({"bootstrap.servers": self.plain})
        for done in admin.create_acls(rights).values():
            done.result(timeout=60)

    def signed_in(self) -> dict[str, str]:
        """The settings of the user, as environment variables."""
        return {
            "SUREFOOT_BOOTSTRAP_SERVERS": self.sasl,
            "SUREFOOT_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "SUREFOOT_SASL_USERNAME": USER,
            "SUREFOOT_SASL_PASSWORD": PASSWORD,
        }


@contextmanager
def secured_broker(folder: Path) -> Iterator[Secured]:
    ports = dict(zip(("PLAIN", "SASL", "TLS", "MUTUAL", "CONTROLLER"), free_ports(5), strict=True))
    listeners = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    authority = issue("the tests' authority", authority=True)
    trusted = folder / "authority.pem"
    trusted.write_bytes(authority.certificate_pem())
    client = issue("ann", by=authority)
    keystore = issue("127.0.0.1", by=authority).write(folder / "server.pem")
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    properties = {
        "listeners": ",".join(f"{name}://{at}" for name, at in listeners.items()),
        "advertised.listeners": ",".join(
            f"{name}://{at}" for name, at in listeners.items() if name != "CONTROLLER"
        ),
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,"
        "MUTUAL:SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAIN",
        "controller.quorum.bootstrap.servers": listeners["CONTROLLER"],
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";',
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(keystore),
        "listener.name.mutual.ssl.keystore.type": "PEM",
        "listener.name.mutual.ssl.keystore.location": str(keystore),
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": str(trusted),
        "listener.name.mutual.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with start_broker(ways=("java",), port=ports["PLAIN"], properties=properties):
        yield Secured(
            plain=listeners["PLAIN"],
            sasl=listeners["SASL"],
            tls=listeners["TLS"],
            mutual=listeners["MUTUAL"],
            authority=trusted,
            client=client.write(folder / "client.pem", password=PASSWORD),
        )
