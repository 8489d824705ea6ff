"""Signs outgoing webhooks: Standard Webhooks, with each secret in force.

Source: the Standard Webhooks specification, 1.0.0
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from standardwebhooks import Webhook

from surefoot.state.declare.webhooks import SECRET_MIN_BYTES
from surefoot.state.errors import ConfigError

#: takes id, epoch seconds and body; returns one entry of webhook-signature
Sign = Callable[[str, int, str], str]

#: the specification's upper bound, in bytes
SECRET_MAX_BYTES = 64
_SECRET, _PRIVATE_KEY = "whsec_", "whsk_"
_ED25519_BYTES = (32, 64)


def secret_variable(hook: str) -> str:
    """Return the environment variable for the secret of a subscription."""
    return f"SUREFOOT_HOOK_{hook.upper().replace('-', '_')}_SECRET"


def signers_of(secrets: Mapping[str, Sequence[str]]) -> dict[str, list[Sign]]:
    """Return the signers of each subscription; several during a rotation of secrets.

    Raises: ConfigError — a secret is invalid; its value is not shown.
    """
    return {hook: [signer(secret, hook) for secret in found] for hook, found in secrets.items()}


def signer(secret: str, hook: str) -> Sign:
    """Return the signer of one secret. Raises ConfigError."""
    prefix = _PRIVATE_KEY if secret.startswith(_PRIVATE_KEY) else _SECRET
    try:
        raw = base64.b64decode(secret.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if prefix == _PRIVATE_KEY and len(raw) in _ED25519_BYTES:
        return _ed25519(raw[:32])
    if prefix == _SECRET and SECRET_MIN_BYTES <= len(raw) <= SECRET_MAX_BYTES:
        return partial(_hmac, Webhook(secret))
    raise ConfigError(
        "SF1039",
        f"{secret_variable(hook)} has an invalid secret: use whsec_ and the base64 of "
        f"{SECRET_MIN_BYTES} to {SECRET_MAX_BYTES} random bytes, or whsk_ and the base64 of an "
        "ed25519 key",
    )


def _hmac(webhook: Webhook, message: str, at_s: int, body: str) -> str:
    return webhook.sign(message, datetime.fromtimestamp(at_s, UTC), body)


def _ed25519(seed: bytes) -> Sign:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PrivateKey,
        )
    except ImportError:
        raise ConfigError(
            "SF1020",
            "signing with a private key (whsk_...) needs cryptography: "
            "pip install 'surefoot[ed25519]'",
        ) from None
    key = Ed25519PrivateKey.from_private_bytes(seed)

    def sign(message: str, at_s: int, body: str) -> str:
        signature = key.sign(f"{message}.{at_s}.{body}".encode())
        return "v1a," + base64.b64encode(signature).decode()

    return sign
