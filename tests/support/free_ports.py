"""Ports for servers that have to be told theirs beforehand, and for those that never come."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from surefoot.infra.broker.config import free_ports


def unused_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that nobody is given by chance before the
    server of the test has taken it."""
    (port,) = free_ports(1)
    return port


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections, and that nobody else is given meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
