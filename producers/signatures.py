"""Who sent a delivery: the ways in which senders sign. Pure.

A signature is checked over the raw bytes that came in, before anything parses them, and in constant
time. Whatever a header holds, the verdict is a text that says what is wrong, or None; nothing here
raises. The text is for the operator: the sender, who may be anybody, is always told the same.

Before it is known who sends, a body is read once for each live secret, however many signatures a
header holds: what is right is computed, and each signature compared with it. A public key is the
exception, as each check reads the body: so few signatures are tried.

A timestamp that is signed is a whole number of epoch seconds, and not more than five minutes away
on either side. Inside of these a delivery can be sent again by whoever has seen it; as the id that
names its runs is signed too, or part of the body, it is the same runs. GitHub is the exception: it
signs the body only, without a timestamp, and X-GitHub-Delivery is not covered. So a captured
delivery, sent again with a new delivery id, starts another run; TLS and the secrecy of deliveries
are what protects from that.

Sources: docs.github.com, "Validating webhook deliveries"; docs.stripe.com, "Verify webhook
signatures manually"; docs.slack.dev, "Verifying requests from Slack"; the Standard Webhooks
specification, 1.0.0
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from surefoot.state.errors import ConfigError
from surefoot.state.webhook import Bearer, Hmac

#: shortest secret that is taken, in bytes (the lower bound of the Standard Webhooks specification)
SECRET_MIN_BYTES = 24
#: how far a timestamp may be from now, in seconds
TOLERANCE_S = 300
#: longest header that proves who sends, in characters
PROOF_CHARACTERS_MAX = 4_096
#: signatures of a public key that are tried
_TRIED_MAX = 4
_PLACEHOLDERS = ("changeme", "change-me", "change_me", "your-secret", "your_secret")

#: of what is signed: text, or a place
_PIECES = re.compile(r"([^{]+)|\{([a-z]+)\}")
_HEX = re.compile(r"(?:[0-9a-f]{2})+", re.ASCII)
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SECONDS = re.compile(r"0|[1-9][0-9]{0,11}", re.ASCII)
_PUBLIC_KEY = "whpk_"
_PRIVATE_KEY = "whsec_"
_ED25519_KEY_BYTES, _ED25519_BYTES = 32, 64

#: names in lower case
Headers = Mapping[str, str]
#: given headers, raw body and the time in epoch seconds: what is wrong; None: it is right
Verify = Callable[[Headers, bytes, int], str | None]


class BadSecret(ValueError):
    """A secret that must not be used; the message goes on after "the secret"."""


# Shared secrets in one header -----------------------------------------------------------------


def hmac_verifier(declared: Hmac, secret: str) -> Verify:
    """The signature is right when it is the HMAC, with the secret, of what is `signed`."""
    return partial(_verify_hmac, declared, strong(secret))


def _verify_hmac(
    declared: Hmac, secret: bytes, headers: Headers, body: bytes, now_s: int
) -> str | None:
    name = declared.header.lower()
    given = headers.get(name)
    if not given:
        return f"no {name}"
    size = hashlib.new(declared.algorithm).digest_size
    found = _decoded(given.removeprefix(declared.prefix), declared.encoding)
    if not given.startswith(declared.prefix) or found is None or len(found) != size:
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
    return None if _among([found], right) else f"{name} is not of this body and secret"


def _filled(template: str, values: Mapping[str, bytes]) -> bytes:
    """The template with its places filled in; what is filled in is not looked at again."""
    out = bytearray()
    for text, place in _PIECES.findall(template):
        out += values[place] if place else text.encode()
    return bytes(out)


def bearer_verifier(declared: Bearer, secret: str) -> Verify:
    """The header is right when it holds the secret."""
    return partial(_verify_bearer, declared, strong(secret))


def _verify_bearer(
    declared: Bearer, secret: bytes, headers: Headers, _body: bytes, _now_s: int
) -> str | None:
    name, size = declared.header.lower(), len(declared.prefix)
    given = headers.get(name, "")
    if not given:
        return f"no {name}"
    right = hmac.compare_digest(_raw(given[size:]), secret)
    if given[:size].lower() != declared.prefix.lower():
        return f"{name} does not begin with {declared.prefix!r}"
    return None if right else f"{name} holds another token"


# Stripe ---------------------------------------------------------------------------------------


def stripe_verifier(secret: str) -> Verify:
    """`Stripe-Signature: t=<seconds>,v1=<hex>,...`: one of the v1 is the HMAC-SHA256 of
    `<seconds>.<body>`. While Stripe rolls a secret there are several; v0 is not looked at."""
    return partial(_verify_stripe, strong(secret))


def _verify_stripe(secret: bytes, headers: Headers, body: bytes, now_s: int) -> str | None:
    given = headers.get("stripe-signature")
    if not given:
        return "no stripe-signature"
    pairs = [item.partition("=") for item in given.split(",")]
    times = [value for key, _, value in pairs if key == "t"]
    found = [value for key, _, value in pairs if key == "v1" and _HEX_SHA256.fullmatch(value)]
    if len(times) != 1 or not found:
        return "stripe-signature is malformed"
    if fault := stale(times[0], now_s):
        return fault
    right = hmac.digest(secret, times[0].encode() + b"." + body, "sha256")
    if _among((bytes.fromhex(each) for each in found), right):
        return None
    return "stripe-signature is not of this body and secret"


# Standard Webhooks ----------------------------------------------------------------------------


def standard_verifier(secret: str) -> Verify:
    """`webhook-signature: v1,<base64> v1a,<base64> ...` over `<id>.<seconds>.<body>`.

    `whsec_...` (or bare base64) is a shared secret, for v1; `whpk_...` is the sender's public
    ed25519 key, for v1a.
    """
    if secret.startswith(_PUBLIC_KEY):
        return partial(_verify_standard, "v1a", _ed25519(secret.removeprefix(_PUBLIC_KEY)))
    bare = secret.removeprefix(_PRIVATE_KEY)
    key = _decoded(bare + "=" * (-len(bare) % 4), "base64")
    if key is None:
        strong(secret)  # what is a placeholder or empty is told as that
        raise BadSecret("is not base64; it looks like whsec_...")
    if len(key) < SECRET_MIN_BYTES:
        raise BadSecret(f"is shorter than {SECRET_MIN_BYTES} bytes")
    return partial(_verify_standard, "v1", partial(_is_hmac, key))


#: given signatures and what is signed: whether one of them is right
_Right = Callable[[list[bytes], bytes], bool]


def _verify_standard(
    version: str, right: _Right, headers: Headers, body: bytes, now_s: int
) -> str | None:
    signature, message = headers.get("webhook-signature"), headers.get("webhook-id")
    if not signature or not message:
        return "no webhook-signature" if not signature else "no webhook-id"
    text = headers.get("webhook-timestamp", "")
    if fault := stale(text, now_s):
        return fault
    pairs = [item.partition(",") for item in signature.split(" ")]
    found = [_decoded(value, "base64") for name, _, value in pairs if name == version]
    if not found:
        return f"webhook-signature has no {version}"
    signed = b".".join((_raw(message), text.encode(), body))
    if right([each for each in found if each is not None], signed):
        return None
    return "webhook-signature is not of this body and secret"


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
    """The bytes of a shared secret. Raises BadSecret for one that is none."""
    raw = secret.encode("utf-8", "surrogateescape")
    if not secret.strip():
        raise BadSecret("is empty")
    if any(word in secret.lower() for word in _PLACEHOLDERS):
        raise BadSecret("is a placeholder")
    if len(raw) < SECRET_MIN_BYTES:
        raise BadSecret(f"is shorter than {SECRET_MIN_BYTES} bytes")
    return raw


def stale(text: str, now_s: int) -> str | None:
    """What is wrong with a timestamp; None when it is near enough to now, on either side."""
    if not _SECONDS.fullmatch(text):
        return "the timestamp is missing or not whole seconds"
    away_s = int(text) - now_s
    if abs(away_s) <= TOLERANCE_S:
        return None
    side = "in the future" if away_s > 0 else "old"
    return f"the timestamp is {abs(away_s)} s {side}; {TOLERANCE_S} s are allowed"


def _among(found: Iterable[bytes], right: bytes) -> bool:
    """Whether one of them is the right one. All are compared, so that how long it takes tells
    nothing of any."""
    verdicts = [hmac.compare_digest(each, right) for each in found]
    return any(verdicts)


def _decoded(text: str, encoding: str) -> bytes | None:
    """The bytes of exactly that encoding; None for anything else."""
    if not text.isascii():
        return None
    if encoding == "hex":
        return bytes.fromhex(text) if _HEX.fullmatch(text) else None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def _raw(text: str) -> bytes:
    """A header's value as the bytes that came in."""
    return text.encode("latin-1", "replace")
