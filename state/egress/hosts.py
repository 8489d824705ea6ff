"""Which Host a request to one of our servers may name. Pure.

Any page can make its own name resolve to this machine; its browser then sends us requests that look
like same-site requests ("DNS rebinding"). Only the Host shows that they are foreign.
Source: RFC 9110, sections 7.2 and 15.5.20; RFC 6761, section 6.3
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]*)?", re.IGNORECASE)
_NAME = re.compile(r"\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class Hosts:
    """Allowed names and addresses besides this machine's own loopback, in lower case."""

    names: frozenset[str] = frozenset()

    def allow(self, given: Collection[str], here: str | None) -> bool:
        """Whether a request with these Host headers is for us.

        The port does not matter, since ports are forwarded.

        Args: here: address of this machine that the connection was made to
        """
        if "*" in self.names:
            return True
        host = _named(next(iter(given))) if len(given) == 1 else None
        if host is None:
            return False
        return (
            host in self.names
            or _is_loopback(host)
            or (here is not None and host == _plain(here))
            or any(name.startswith("*.") and host.endswith(name[1:]) for name in self.names)
        )

    def also(self, *names: str | None) -> Hosts:
        """Return the hosts with more names added; None adds nothing."""
        return Hosts(self.names | {_plain(name) for name in names if name})


def parse_hosts(text: str) -> Hosts:
    """Parse `SUREFOOT_GATEWAY_HOSTS`: names, `*.suffix`, addresses, `*`, separated by commas.

    Raises: ValueError - names the invalid entry
    """
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word and not _NAME.fullmatch(word) and _address(word.strip("[]")) is None:
            raise ValueError(f"{word!r} must be a name, *.suffix, an address or *, without a port")
    return Hosts().also(*words)


def _named(header: str) -> str | None:
    """Return the host of a Host header; None if it is malformed."""
    match = _HOST.fullmatch(header.strip())
    return None if match is None else _plain(match[1])


def _plain(name: str) -> str:
    """Normalise a name: lower case, canonical addresses, no trailing dot."""
    name = name.strip("[]").lower()
    address = _address(name)
    return name.removesuffix(".") if address is None else str(address)


def _is_loopback(host: str) -> bool:
    address = _address(host)
    if address is not None:
        return address.is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address; IPv4-mapped IPv6 becomes the IPv4 address in it."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
