"""The account that a proxy in front of the gateway vouches for, by headers. Pure.

Only a connection that comes from the proxy itself can be believed: anybody can send the headers. So
the address that counts is that of the connection, whatever X-Forwarded-For says; and a header that
is there twice, the client's and the proxy's, is not believed at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from surefoot.state.access.accounts import EVERYTHING, Account
from surefoot.state.access.claims import vouched_account
from surefoot.state.errors import BadArgument
from surefoot.state.names.roles import ROLES, Role

#: how long the proxy's word holds for an open stream: whether somebody has signed out there is
#: heard with the next request only
PROXIED_MS = 15 * 60_000
#: in place of an identity provider's URL
_ISSUER = "proxy"

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedProxy:
    """Whose headers are believed, which, and what they mean. Names of headers in lower case."""

    networks: tuple[Network, ...]
    name_header: str
    groups_header: str
    #: None: every account sees every agent
    agents_header: str | None
    #: by group
    roles: Mapping[str, Role]

    def vouches(self, peer: str | None, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether the proxy says who sends this request. `peer`: who has made the connection."""
        if peer is None or not any(name == self.name_header.encode() for name, _ in headers):
            return False
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return any((mapped or address) in network for network in self.networks)

    def account(self, headers: Iterable[tuple[bytes, bytes]], now_ms: int) -> Account:
        """Return the account that the headers of a request of the proxy name.

        Raises: BadArgument — they name nobody, or not exactly one role.
        """
        headers = list(headers)
        name = _only(headers, self.name_header)
        groups = _listed(_only(headers, self.groups_header))
        agents = [EVERYTHING]
        if self.agents_header is not None:
            agents = _listed(_only(headers, self.agents_header))
        account = vouched_account(
            name,
            {self.roles[group] for group in groups if group in self.roles},
            agents,
            expires_ms=now_ms + PROXIED_MS,
            issuer=_ISSUER,
        )
        if account is None:
            told = f"{name[:128]!r}, whose groups have not exactly one role" if name else "nobody"
            raise BadArgument("SF5085", f"the proxy names {told}")
        return account


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse `SUREFOOT_PROXY_NETWORKS`: addresses and networks, separated by commas.

    Raises: ValueError — names the entry that is neither, or that is every address.
    """
    found = []
    for word in (word.strip() for word in text.split(",")):
        if word:
            network = ip_network(word)
            if network.prefixlen == 0:
                raise ValueError(f"{word} is every address: anybody could say who they are")
            found.append(network)
    return tuple(found)


def parse_roles(text: str) -> dict[str, Role]:
    """Parse `SUREFOOT_PROXY_ROLES`: `GROUP=ROLE`, separated by commas.

    Raises: ValueError — names the entry that is malformed, or a group that is there twice.
    """
    found: dict[str, Role] = {}
    for word in (word.strip() for word in text.split(",")):
        group, _, name = (part.strip() for part in word.rpartition("="))
        role = next((role for role in ROLES if role == name), None)
        if not word:
            continue
        if not group or role is None:
            raise ValueError(f"{word!r} must be GROUP=ROLE, with a role of {', '.join(ROLES)}")
        if group in found:
            raise ValueError(f"the group {group!r} is there twice")
        found[group] = role
    return found


def _only(headers: Iterable[tuple[bytes, bytes]], wanted: str) -> str:
    """Return the value of a header; "" if it is not there, or not once."""
    values = [value for name, value in headers if name == wanted.encode()]
    try:
        return values[0].decode() if len(values) == 1 else ""
    except UnicodeDecodeError:
        return ""


def _listed(value: str) -> list[str]:
    return [word for word in (word.strip() for word in value.split(",")) if word]
