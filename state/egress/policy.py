"""Where a request may go: to public addresses, and to what the operator allows. Pure.

A URL may come from a delivery or a receiver, so from anybody, and must not reach what only this
machine can. A name proves nothing, since its owner decides at each lookup what it resolves to. What
counts is the address that is dialled (infra.http.guarded_dialer).

Source: IANA special-purpose address registries (RFC 6890); RFC 6052 (NAT64); RFC 3056 (6to4);
WHATWG URL, "host parsing", for what counts as an IPv4 address
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import NamedTuple
from urllib.parse import urlsplit

from surefoot.state.errors import TerminalError

Address = IPv4Address | IPv6Address

#: ports of targets that no entry of the operator allows
PORTS = frozenset({80, 443, 8080, 8443})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PORT_MAX = 65_535
#: longest URL that clients send, in bytes
_URL_MAX = 65_536

_NOT_PUBLIC = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
#: the only allocated part of IPv6, and what in it is not for hosts (Teredo, 6to4, examples)
_GLOBAL_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")

_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_NAME_MAX = 253
_UNSEEN = re.compile(r"[\0- \x7f]")
#: a last label that some resolver reads as an IPv4 address: 2130706433, 0x7f.1, 0177.0.0.1
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_ENTRY = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?", re.IGNORECASE)


class Forbidden(TerminalError):
    """A request whose target is not allowed; sending it again changes nothing."""


class Target(NamedTuple):
    """Host and port of a URL."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class _Host:
    """An allowed name, with every address it resolves to."""

    name: str
    port: int | None

    def allows(self, target: Target, _address: Address | None) -> bool:
        if self.port not in (None, target.port):
            return False
        if self.name.startswith("*"):
            return target.host.endswith(self.name[1:])
        return target.host == self.name


@dataclass(frozen=True, slots=True)
class _Network:
    """An allowed network, whatever name resolves to it."""

    network: IPv4Network | IPv6Network
    port: int | None

    def allows(self, target: Target, address: Address | None) -> bool:
        return address is not None and self.port in (None, target.port) and address in self.network


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may be reached besides public addresses; made by `parse_allowed`."""

    entries: tuple[_Host | _Network, ...] = ()

    def check(self, target: Target, addresses: Iterable[str]) -> None:
        """Raise Forbidden unless every address that the target resolved to may be dialled. The
        error does not say why: reasons would map the network."""
        found = [_plain(address) for address in addresses]
        if not found or not all(self._may(target, address) for address in found):
            raise forbidden(target)

    def _may(self, target: Target, address: Address) -> bool:
        if any(entry.allows(target, address) for entry in self.entries):
            return True
        return target.port in PORTS and is_public(address)


def forbidden(target: Target) -> Forbidden:
    """Return the error, with one message for all reasons."""
    return Forbidden(
        f"{target.host} port {target.port} is not an allowed target: only public addresses on "
        f"ports {', '.join(map(str, sorted(PORTS)))} are, and what SUREFOOT_OUT_ALLOW of the "
        "sending process names"
    )


def parse_allowed(text: str) -> Allowed:
    """Parse `SUREFOOT_OUT_ALLOW`: names, `*.suffix`, `*`, addresses and networks, each with or
    without `:port`, separated by commas.

    Raises: ValueError - names the invalid entry
    """
    words = [word.strip().lower() for word in text.split(",")]
    return Allowed(tuple(_entry(word) for word in words if word))


def _entry(word: str) -> _Host | _Network:
    try:
        return _Network(ip_network(word), None)  # an IPv6 network contains colons
    except ValueError:
        pass
    match = _ENTRY.fullmatch(word)
    port = int(match[2]) if match is not None and match[2] else None
    if match is not None and (port is None or 0 < port <= _PORT_MAX):
        name = match[1].strip("[]")
        try:
            return _Network(ip_network(name), port)
        except ValueError:
            if name == "*" or (_NAME.fullmatch(name.removeprefix("*.")) and not _number(name)):
                return _Host(name, port)
    raise ValueError(
        f"{word!r} must be a name, *.suffix, an address or a network such as 10.0.0.0/8, each with "
        "or without :port"
    )


def target_of(url: str) -> Target:
    """Return the target that a URL names.

    Raises: Forbidden - two parsers could read different hosts (credentials, numbers that are not a
            dotted quad, a trailing dot, letters that are not ASCII: write a name's xn-- form), or
            no client sends such a URL
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        length = len(url.encode())
    except ValueError:
        raise Forbidden("the URL cannot be parsed; ports are from 1 to 65535") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise Forbidden("the URL must begin with http:// or https://")
    if "@" in parts.netloc or "\\" in url or _UNSEEN.search(url):
        raise Forbidden(
            "the URL contains credentials, a backslash, a space or a control character; put "
            "credentials into headers, and percent-encode the others"
        )
    if port == 0 or length > _URL_MAX:
        raise Forbidden(f"the URL has port 0, or is longer than {_URL_MAX} bytes")
    target = Target(host, _DEFAULT_PORTS[parts.scheme] if port is None else port)
    check_host(target)
    return target


def check_host(target: Target) -> None:
    """Raise Forbidden for a host that is neither a plain name nor a canonical address."""
    if _address(target.host) is not None:
        return
    named = len(target.host) <= _NAME_MAX and _NAME.fullmatch(target.host)
    if not named or _number(target.host):
        raise Forbidden(
            f"the host {target.host!r} is neither a canonical address nor a name of letters, "
            "digits, -, _ and dots; write other names in their xn-- form"
        )


def is_public(address: Address) -> bool:
    """Whether the address is public."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC)
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in _GLOBAL_6 and not any(address in network for network in _NOT_PUBLIC_6)


def _plain(text: str) -> Address:
    """Return the address that is dialled; IPv4-mapped IPv6 becomes the IPv4 address in it."""
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _address(host: str) -> Address | None:
    """Parse an address; None for a name or anything else. An address with a zone is refused."""
    try:
        return ip_address(host) if "%" not in host else None
    except ValueError:
        return None


def _number(host: str) -> bool:
    return _NUMBER.fullmatch(host) is not None
