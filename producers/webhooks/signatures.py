"""Verifies who sent a delivery: the senders' signature schemes. Pure.

A signature is checked over the raw bytes received, before anything parses them, and in constant
time. Whatever a header contains, the result is None or a text that says what is wrong; nothing here
raises. The text is for the operator: the sender, who may be anybody, always gets the same answer.

Before the sender is known, a body is read once per live secret, however many signatures a header
has: the right signature is computed, and each given one compared with it. A public key is the
exception, as each check reads the body, so only a few signatures are tried.

Signatures are compared as bytes, so notation matters little: hex in either case, base64 of either
alphabet with or without padding, one or several in a header. Accepting more than one notation or
signature is safe: only a holder of the secret can make the right one.

A signed timestamp is in epoch seconds or milliseconds, or ISO 8601 with a zone, and at most five
minutes away on either side. Within that time whoever has seen a delivery can replay it; as the id
that names its runs is signed too, or part of the body, it is the same runs. GitHub is the
exception: it signs only the body, without a timestamp, and X-GitHub-Delivery is not covered. So a
captured delivery, resent with a new delivery id, starts another run; only TLS and the secrecy of
deliveries protect from that.

Sources: docs.github.com, "Validating webhook deliveries"; docs.stripe.com, "Verify webhook
signatures manually"; docs.slack.dev, "Verifying requests from Slack"; the Standard Webhooks
specification, 1.0.0; docs.svix.com, "Verifying webhooks manually"
"""

from __future__ import annotations

import base64
import binascii
import hmac
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial

from surefoot.state.declare.webhooks import SECRET_MIN_BYTES, Bearer, Hmac
from surefoot.state.errors import ConfigError

#: how far a timestamp may be from now, in seconds
TOLERANCE_S = 300
#: longest accepted signature header, in characters
PROOF_CHARACTERS_MAX = 4_096
#: most signatures tried with a public key
_TRIED_MAX = 4
_PLACEHOLDERS = ("changeme", "change-me", "change_me", "your-secret", "your_secret")

#: parts of a template for signed content: text, or a placeholder
_PIECES = re.compile(r"([^{]+)|\{([a-z]+)\}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+", re.ASCII)
#: separators between the signatures of one header
_BETWEEN = re.compile(r"[\s,;]+")
_URL_SAFE = str.maketrans("-_", "+/")
_EPOCH = re.compile(r"0|[1-9][0-9]{0,13}", re.ASCII)
#: epoch seconds have fewer digits until the year 5138
_MILLISECONDS_DIGITS = 12
_TIME_CHARACTERS_MAX = 40
_PUBLIC_KEY = "whpk_"
_PRIVATE_KEY = "whsec_"
_ED25519_KEY_BYTES, _ED25519_BYTES = 32, 64

#: names in lower case
RequestHeaders = Mapping[str, str]
#: takes headers, raw body and the time in epoch seconds; returns what is wrong, or None
Verify = Callable[[RequestHeaders, bytes, int], str | None]


class BadSecret(ValueError):
    """A secret that must not be used; the message completes "the secret ..."."""


# Shared secrets in one header -----------------------------------------------------------------


def hmac_verifier(declared: Hmac, secret: str) -> Verify:
    """Return a check that the signature is the HMAC, with the secret, of `signed`."""
    return partial(_verify_hmac, declared, strong(secret))


def _verify_hmac(
    declared: Hmac, secret: bytes, headers: RequestHeaders, body: bytes, now_s: int
) -> str | None:
    name = declared.header.lower()
    given = headers.get(name)
    if not given:
        return f"{name} is missing"
    found = _signatures(given, declared.prefix, declared.encoding)
    if not found:
        return f"{name} is malformed"
    values = {"body": body}
    if declared.timestamp_header is not None:
        text = headers.get(declared.timestamp_header.lower(), "")
        if fault := stale(text, now_s):
            return fault
        values["timestamp"] = text.encode()
    if declared.id_header is not None:
        values["id"] = _raw(headers.get(declared.id_header.lower(), ""))
    right = hmac.digest(secret, _filled(declared.signed, values), declared.algorithm)
    return None if _among(found, right) else f"{name} does not match this body and secret"


def _signatures(given: str, prefix: str, encoding: str) -> list[bytes]:
    """Return the signatures in a header: each follows the prefix, and perhaps a space."""
    spaced, before = _BETWEEN.sub(" ", given), _BETWEEN.sub(" ", prefix).strip()
    texts = re.findall(rf"(?<![^ ]){re.escape(before)} ?(?=([^ ]+))", spaced)
    decoded = [_decoded(text, encoding) for text in texts]
    return [each for each in decoded if each is not None]


def _filled(template: str, values: Mapping[str, bytes]) -> bytes:
    """Fill in the template's placeholders; inserted values are not expanded again."""
    out = bytearray()
    for text, place in _PIECES.findall(template):
        out += values[place] if place else text.encode()
    return bytes(out)


def bearer_verifier(declared: Bearer, secret: str) -> Verify:
    """Return a check that the header contains the secret."""
    return partial(_verify_bearer, declared, strong(secret))


def _verify_bearer(
    declared: Bearer, secret: bytes, headers: RequestHeaders, _body: bytes, _now_s: int
) -> str | None:
    name, size = declared.header.lower(), len(declared.prefix)
    given = headers.get(name, "")
    if not given:
        return f"{name} is missing"
    right = hmac.compare_digest(_raw(given[size:]), secret)
    if given[:size].lower() != declared.prefix.lower():
        return f"{name} does not begin with {declared.prefix!r}"
    return None if right else f"{name} has another token"


# Stripe ---------------------------------------------------------------------------------------


def stripe_verifier(secret: str) -> Verify:
    """Return a check of `Stripe-Signature: t=<seconds>,v1=<hex>,...`.

    One of the v1 must be the HMAC-SHA256 of `<seconds>.<body>`. There are several while Stripe
    rolls a secret; v0 is ignored."""
    return partial(_verify_stripe, strong(secret))


def _verify_stripe(secret: bytes, headers: RequestHeaders, body: bytes, now_s: int) -> str | None:
    given = headers.get("stripe-signature")
    if not given:
        return "stripe-signature is missing"
    pairs = [item.strip().partition("=") for item in given.split(",")]
    times = [value for key, _, value in pairs if key == "t"]
    decoded = [_decoded(value, "hex") for key, _, value in pairs if key == "v1"]
    found = [each for each in decoded if each is not None]
    if len(times) != 1 or not found:
        return "stripe-signature is malformed"
    if fault := stale(times[0], now_s):
        return fault
    right = hmac.digest(secret, times[0].encode() + b"." + body, "sha256")
    return None if _among(found, right) else "stripe-signature does not match this body and secret"


# Standard Webhooks ----------------------------------------------------------------------------


STANDARD_SIGNATURES = ("webhook-signature", "svix-signature")
STANDARD_IDS = ("webhook-id", "svix-id")
_STANDARD_TIMES = ("webhook-timestamp", "svix-timestamp")


def standard_verifier(secret: str) -> Verify:
    """Return a check of Standard Webhooks' signatures.

    `webhook-signature: v1,<base64> v1a,<base64> ...` over `<id>.<seconds>.<body>`. Svix, the origin
    of the specification, names the headers svix-...; where both are sent they must agree.

    `whsec_...` (or bare base64) is a shared secret, for v1; `whpk_...` is the sender's public
    ed25519 key, for v1a.
    """
    if secret.startswith(_PUBLIC_KEY):
        return partial(_verify_standard, "v1a", _ed25519(secret.removeprefix(_PUBLIC_KEY)))
    bare = secret.removeprefix(_PRIVATE_KEY)
    key = _decoded(bare, "base64")
    if key is None:
        strong(secret)  # report an empty secret or a placeholder as such
        raise BadSecret("is not base64; a valid one looks like whsec_...")
    if len(key) < SECRET_MIN_BYTES:
        raise BadSecret(f"is shorter than {SECRET_MIN_BYTES} bytes")
    return partial(_verify_standard, "v1", partial(_is_hmac, key))


#: takes signatures and the signed content: whether one of them is right
_Right = Callable[[list[bytes], bytes], bool]


def _verify_standard(
    version: str, right: _Right, headers: RequestHeaders, body: bytes, now_s: int
) -> str | None:
    given = [text for name in STANDARD_SIGNATURES if (text := headers.get(name))]
    if not given:
        return "webhook-signature is missing"
    message, text = (_agreed(headers, names) for names in (STANDARD_IDS, _STANDARD_TIMES))
    if not message or text is None:
        return "webhook-id is missing, or the webhook-... and svix-... headers differ"
    if fault := stale(text, now_s):
        return fault
    found = _signatures(" ".join(given), version, "base64")
    if not found:
        return f"webhook-signature has no {version}"
    if right(found, b".".join((_raw(message), text.encode(), body))):
        return None
    return "webhook-signature does not match this body and secret"


def _agreed(headers: RequestHeaders, names: Iterable[str]) -> str | None:
    """Return the common value of those of the headers that are present.

    "" if none is; None if they differ: only one of them would have been signed."""
    said = {headers[name] for name in names if name in headers}
    return "" if not said else said.pop() if len(said) == 1 else None


def _is_hmac(key: bytes, found: list[bytes], signed: bytes) -> bool:
    return _among(found, hmac.digest(key, signed, "sha256"))


def _ed25519(key: str) -> _Right:
    raw = _decoded(key, "base64")
    if raw is None or len(raw) != _ED25519_KEY_BYTES:
        raise BadSecret("is not an ed25519 public key: whpk_ and the base64 of 32 bytes")
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PublicKey,
        )
    except ImportError:
        raise ConfigError(
            "SF1020",
            "signatures of a public key (whpk_...) need cryptography: "
            "pip install 'surefoot[ed25519]'",
        ) from None
    public = Ed25519PublicKey.from_public_bytes(raw)

    def is_signed(signature: bytes, signed: bytes) -> bool:
        try:
            public.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    def right(found: list[bytes], signed: bytes) -> bool:
        sized = [each for each in found if len(each) == _ED25519_BYTES]
        return any(is_signed(each, signed) for each in sized[:_TRIED_MAX])

    return right


# Parts ----------------------------------------------------------------------------------------


def strong(secret: str) -> bytes:
    """Return the bytes of a shared secret. Raises BadSecret — it is not usable."""
    raw = secret.encode("utf-8", "surrogateescape")
    if not secret.strip():
        raise BadSecret("is empty")
    if any(word in secret.lower() for word in _PLACEHOLDERS):
        raise BadSecret("is a placeholder")
    if len(raw) < SECRET_MIN_BYTES:
        raise BadSecret(f"is shorter than {SECRET_MIN_BYTES} bytes")
    return raw


def stale(text: str, now_s: int) -> str | None:
    """Return what is wrong with a timestamp; None if it is close enough to now, on either side."""
    at_s = _seconds(text)
    if at_s is None:
        return "the timestamp is missing, or neither epoch seconds or ms nor ISO 8601 with a zone"
    away_s = math.floor(at_s - now_s)
    if abs(at_s - now_s) <= TOLERANCE_S:
        return None
    side = "in the future" if away_s > 0 else "old"
    return f"the timestamp is {abs(away_s)} s {side}; {TOLERANCE_S} s are allowed"


def _seconds(text: str) -> float | None:
    """Return a timestamp in epoch seconds; None if it is not one."""
    if _EPOCH.fullmatch(text):
        return int(text) / 1000 if len(text) >= _MILLISECONDS_DIGITS else int(text)
    if not text.isascii() or len(text) > _TIME_CHARACTERS_MAX:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if at.tzinfo is None else at.timestamp()


def _among(found: Iterable[bytes], right: bytes) -> bool:
    """Whether one of them is right. Compares all, so that the time taken reveals nothing."""
    verdicts = [hmac.compare_digest(each, right) for each in found]
    return any(verdicts)


def _decoded(text: str, encoding: str) -> bytes | None:
    """Decode hex or base64; None for anything else."""
    if not text.isascii():
        return None
    if encoding == "hex":
        return bytes.fromhex(text) if _HEX.fullmatch(text) else None
    bare = text.rstrip("=").translate(_URL_SAFE)
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except binascii.Error:
        return None


def _raw(text: str) -> bytes:
    """Return a header's value as the bytes received."""
    return text.encode("latin-1", "replace")
