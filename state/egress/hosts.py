"""Which Host a request to one of our servers may name. Pure.

A page of anybody's can have its own name resolve to this machine, and its browser then asks us as
if we were that page's own site ("DNS rebinding"): nothing of it looks foreign but the Host.
Sources: RFC 9110, sections 7.2 and 15.5.20; RFC 6761, section 6.3
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
    """Names and addresses beside this machine's own loopback, in lower case."""

    names: frozenset[str] = frozenset()

    def allow(self, given: Collection[str], here: str | None) -> bool:
        """Whether a request with these Host headers is for us, on a connection to the address
        `here` of this machine. Its port does not matter, as ports are forwarded."""
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
        """Those as well; None adds nothing."""
        return Hosts(self.names | {_plain(name) for name in names if name})


def parse_hosts(text: str) -> Hosts:
    """What `SUREFOOT_GATEWAY_HOSTS` says: names, `*.suffix`, addresses, `*`, separated by commas.

    Raises: ValueError — with the entry that is none.
    """
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word and not _NAME.fullmatch(word) and _address(word.strip("[]")) is None:
            raise ValueError(
                f"{word!r} is none of: a name, *.suffix, an address, *; each without a port"
            )
    return Hosts().also(*words)


def _named(header: str) -> str | None:
    """The host of a Host header; None: it has none."""
    match = _HOST.fullmatch(header.strip())
    return None if match is None else _plain(match[1])


def _plain(name: str) -> str:
    """One way of writing each: lower case, addresses in their usual form, no dot at the end."""
    name = name.strip("[]").lower()
    address = _address(name)
    return name.removesuffix(".") if address is None else str(address)


def _is_loopback(host: str) -> bool:
    address = _address(host)
    if address is not None:
        return address.is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """One that is wrapped for IPv6 sockets is the IPv4 one in it."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
