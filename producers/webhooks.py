"""Who sent a delivery: signature schemes by source.

A signature is checked over the raw bytes that came in, before anything parses them, and in
constant time. Whatever is wrong with it, the answer is the same.

GitHub signs the body only: X-GitHub-Delivery is not covered, and there is no timestamp. So a
captured delivery, sent again with a new delivery id, starts another run; TLS and the secrecy of
deliveries are what protects from that.
Source: docs.github.com, "Validating webhook deliveries".
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from surefoot.state.errors import ConfigError

#: shortest secret that is taken, in bytes (the lower bound of the Standard Webhooks specification)
SECRET_MIN_BYTES = 24
_PLACEHOLDERS = ("changeme", "change-me", "change_me", "your-secret", "your_secret")

_SHA256 = re.compile(r"sha256=([0-9a-f]{64})", re.ASCII)

#: given the secret, the headers (names in lower case) and the raw body
Verify = Callable[[bytes, Mapping[str, str], bytes], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One sender's way of signing and naming its deliveries."""

    #: True only when the signature is right; must not raise, whatever the headers hold
    verify: Verify
    #: header with the id that is equal on every redelivery; lower case
    id_header: str
    #: header with the name of the event; lower case
    event_header: str
    #: headers that must not be shown to anybody; lower case
    signature_headers: frozenset[str]


def verify_github(secret: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    """HMAC-SHA256 of the raw body in X-Hub-Signature-256; the old SHA-1 header is not looked at."""
    match = _SHA256.fullmatch(headers.get("x-hub-signature-256", ""))
    if match is None:
        return False
    right = hmac.new(secret, body, hashlib.sha256).digest()
    return hmac.compare_digest(bytes.fromhex(match[1]), right)


#: add a sender here; its webhooks are then served at /webhooks/<key>
PROVIDERS: Mapping[str, Provider] = {
    "github": Provider(
        verify=verify_github,
        id_header="x-github-delivery",
        event_header="x-github-event",
        signature_headers=frozenset({"x-hub-signature", "x-hub-signature-256"}),
    ),
}


@dataclass(frozen=True, slots=True, repr=False)
class Door:
    """One source with its secrets: opens for what carries a right signature."""

    provider: Provider
    _secrets: tuple[bytes, ...]

    def opens(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Every live secret is tried, so that how long it takes does not tell which one fits."""
        verdicts = [self.provider.verify(secret, headers, body) for secret in self._secrets]
        return any(verdicts)


def doors(sources: set[str], secrets: Mapping[str, Sequence[str]]) -> dict[str, Door]:
    """One door for each source that an agent listens to.

    Raises: ConfigError — unknown source, or a secret that is missing, empty, a placeholder or too
    short; says which variable to set and shows no secret.
    """
    return {source: _door(source, secrets.get(source, ())) for source in sorted(sources)}


def _door(source: str, secrets: Sequence[str]) -> Door:
    provider = PROVIDERS.get(source)
    if provider is None:
        raise ConfigError(
            f"webhook source {source!r} is not known; known are: {', '.join(sorted(PROVIDERS))}"
        )
    variable = f"SUREFOOT_WEBHOOK_{source.upper().replace('-', '_')}_SECRET"
    if not secrets:
        raise ConfigError(
            f"webhooks from {source!r} have no secret; set {variable} to the secret configured at "
            f"the sender (make one with `openssl rand -hex 32`)"
        )
    for number, secret in enumerate(secrets, start=1):
        if fault := _fault(secret):
            raise ConfigError(
                f"secret {number} of {len(secrets)} in {variable} {fault}; separate two live "
                "secrets by one comma, and make each with `openssl rand -hex 32`"
            )
    return Door(provider, tuple(secret.encode("utf-8", "surrogateescape") for secret in secrets))


def _fault(secret: str) -> str | None:
    if not secret.strip():
        return "is empty"
    if any(word in secret.lower() for word in _PLACEHOLDERS):
        return "is a placeholder"
    if len(secret.encode("utf-8", "surrogateescape")) < SECRET_MIN_BYTES:
        return f"is shorter than {SECRET_MIN_BYTES} bytes"
    return None
