"""Ports for servers that have to be told theirs beforehand."""

from __future__ import annotations

import socket
from random import SystemRandom

#: below those that Linux gives to whoever asks for any port, and to connections
_FIRST, _LAST = 10_000, 32_000


def unused_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that nobody is given by chance before the
    server of the test has taken it."""
    (port,) = unused_ports(1)
    return port


def unused_ports(count: int) -> list[int]:
    """So many of them, each another one."""
    found: set[int] = set()
    while len(found) < count:
        port = SystemRandom().randint(_FIRST, _LAST)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.add(port)
    return list(found)
