"""Ports for servers that have to be told theirs beforehand, and for those that never come."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from random import SystemRandom

#: below those that Linux gives to whoever asks for any port, and to connections
_FIRST, _LAST = 10_000, 32_000


def unused_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that nobody is given by chance before the
    server of the test has taken it."""
    while True:
        port = SystemRandom().randint(_FIRST, _LAST)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections, and that nobody else is given meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
