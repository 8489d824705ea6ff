"""What all brokers started here share: the pinned version, settings, failures."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Protocol

#: pom.xml (the pinned jars), log4j2.properties, image.sh
KAFKA_FOLDER = Path(__file__).resolve().parent

#: One node for one machine: nothing is replicated, internal topics are small, rebalances start at
#: once, and topics are never created implicitly.
ONE_NODE = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.num.partitions": "8",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "8",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    # A quarter of the heap by default; compaction here needs far less.
    "log.cleaner.dedupe.buffer.size": "16777216",
}

#: below the ports that Linux and macOS assign automatically
_PORTS = (10_000, 32_000)

_VERSION_LINE = re.compile(r"Kafka version: (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """What a node's data folder is formatted with, at its first start."""

    #: the same for all nodes of a cluster; None: a cluster of its own
    cluster_id: str | None = None
    #: levels of features that are not the release's own, as in {"transaction.version": 1}
    features: Mapping[str, int] = field(default_factory=dict)


#: of a cluster of its own, with the features of the release
STORAGE = Storage()


class CannotStart(Exception):
    """One way of starting a broker does not work here; the message says what it needs."""


class Node(Protocol):
    """A broker process or container that was started here and must be stopped here."""

    #: the address for clients
    bootstrap: str

    @property
    def pid(self) -> int | None: ...
    @property
    def log_path(self) -> Path | None: ...
    def failure(self) -> str | None:
        """Return why it no longer runs, with the end of its log; None while it runs."""

    def log_text(self) -> str: ...
    def stop(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


def pinned_version() -> str:
    """Return the Kafka version that pom.xml pins."""
    pom = (KAFKA_FOLDER / "pom.xml").read_text(encoding="utf-8")
    match = re.search(r"<kafka\.version>([^<]+)</kafka\.version>", pom)
    if match is None:
        raise AssertionError("infra/broker/pom.xml has no <kafka.version>")
    return match[1]


def version_in_log(text: str) -> str | None:
    """Return the version that a broker writes to its log once started, as in "4.4.0"."""
    match = _VERSION_LINE.search(text)
    return match[1] if match else None


def free_ports(count: int) -> list[int]:
    """Return distinct free ports of 127.0.0.1.

    From a range that the system does not assign, so no connection takes one by chance before its
    server does."""
    found: set[int] = set()
    while len(found) < count:
        port = SystemRandom().randint(*_PORTS)
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            found.add(port)
    return list(found)


def tail(text: str, lines: int = 15) -> str:
    return "\n".join(text.splitlines()[-lines:])


def say(line: str) -> None:
    """Print a line for the person at the terminal, on stderr; stdout stays free for results."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
