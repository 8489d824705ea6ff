"""What every broker started here has in common: the pinned version, its settings, its failures."""

from __future__ import annotations

import re
import socket
import sys
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Protocol

#: pom.xml (the pinned jars), log4j2.properties, image.sh
KAFKA_FOLDER = Path(__file__).resolve().parent

#: One node for one machine: nothing is replicated, internal topics are small, rebalances start at
#: once, and a topic exists only when it was created on purpose.
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

#: below those that Linux and macOS give to whoever asks for any port, and to connections
_PORTS = (10_000, 32_000)

_VERSION_LINE = re.compile(r"Kafka version: (\S+)")


class CannotStart(Exception):
    """One way of starting a broker does not work here; the message says what it needs."""


class Node(Protocol):
    """A broker process or container that was started here and must be stopped here."""

    #: where its clients connect
    bootstrap: str

    @property
    def pid(self) -> int | None: ...
    @property
    def log_path(self) -> Path | None: ...
    def failure(self) -> str | None:
        """Why it is no longer running, with the end of its log; None while it runs."""

    def log_text(self) -> str: ...
    def stop(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


def pinned_version() -> str:
    """The Kafka version that pom.xml pins."""
    pom = (KAFKA_FOLDER / "pom.xml").read_text(encoding="utf-8")
    match = re.search(r"<kafka\.version>([^<]+)</kafka\.version>", pom)
    if match is None:
        raise AssertionError("infra/broker/pom.xml has no <kafka.version>")
    return match[1]


def version_in_log(text: str) -> str | None:
    """The version that a broker wrote to its own log when it had started, as in "4.4.0"."""
    match = _VERSION_LINE.search(text)
    return match[1] if match else None


def free_ports(count: int) -> list[int]:
    """Distinct ports of 127.0.0.1 that nobody listens on at this moment, and that no connection is
    given by chance before their servers have taken them."""
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
    """Tell the person at the terminal; stdout stays free for results."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
