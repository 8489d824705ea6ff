"""Verifies the deliveries of webhook sources, and reads their id and event.

A sender with a single signature header is a declaration (state.declare.webhooks.Hmac), even if
built in. The contents of a delivery are read only after its signature was verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from surefoot.producers.guards import utf8
from surefoot.producers.webhooks.signatures import (
    PROOF_CHARACTERS_MAX,
    STANDARD_IDS,
    STANDARD_SIGNATURES,
    BadSecret,
    RequestHeaders,
    Verify,
    bearer_verifier,
    hmac_verifier,
    standard_verifier,
    stripe_verifier,
)
from surefoot.schemas.payload import BadPayload, JsonObject
from surefoot.state.declare.webhook_body import form_fields
from surefoot.state.declare.webhooks import Bearer, Hmac, Naming, Provider, Webhook, WebhookTrigger
from surefoot.state.errors import ConfigError

#: longest ssl_check request of Slack, in bytes
_SSL_CHECK_MAX = 1_000

#: takes headers, body and its parsed values (None: it has none); returns (id, name of the event);
#: an id of "" is missing
NameDelivery = Callable[[RequestHeaders, bytes, Any], tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSpec:
    """One provider: how its deliveries are verified, named and answered."""

    #: makes a check from one secret. Raises BadSecret
    verifier: Callable[[str], Verify]
    name: NameDelivery
    #: where the id is, for people
    id_is: str
    #: headers that must not be shown, and those that name a delivery; lower case
    signature_headers: frozenset[str]
    naming_headers: frozenset[str] = frozenset()
    #: whether `name` needs the parsed values of the body
    reads: bool
    #: returns the answer for a delivery that starts nothing; None for most
    answer: Callable[[Webhook], JsonObject | None] = lambda _delivery: None
    #: whether the request only asks for an answer, which even a stranger may have
    greets: Callable[[RequestHeaders, bytes], bool] = lambda _headers, _body: False
    #: whether people see the answer, so that it must be an empty 200
    quiet: bool = False


def _named(naming: Naming, headers: RequestHeaders, body: bytes, values: Any) -> tuple[str, str]:
    id_ = _said(naming.id_header, naming.id_field, headers, values)
    if naming.id_header is None and naming.id_field is None:
        id_ = hashlib.sha256(body).hexdigest()[:32]
    return id_, _said(naming.event_header, naming.event_field, headers, values)


def _said(header: str | None, path: str | None, headers: RequestHeaders, values: Any) -> str:
    if header is not None:
        return utf8(headers.get(header.lower(), ""))
    return "" if path is None else _text(values, path)


def _text(values: Any, path: str) -> str:
    """Return the text or whole number at that path; "" if there is none."""
    for part in path.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return str(values) if isinstance(values, str | int) and not isinstance(values, bool) else ""


def _id_is(naming: Naming) -> str:
    if naming.id_header is not None:
        return naming.id_header.lower()
    return "the id" if naming.id_field is None else f"{naming.id_field!r} in the body"


def _sender(naming: Naming, verifier: Callable[[str], Verify], *signatures: str) -> ProviderSpec:
    headers = (naming.id_header, naming.event_header)
    return ProviderSpec(
        verifier=verifier,
        name=partial(_named, naming),
        reads=naming.id_field is not None or naming.event_field is not None,
        id_is=_id_is(naming),
        signature_headers=frozenset(name.lower() for name in signatures),
        naming_headers=frozenset(name.lower() for name in headers if name is not None),
    )


def _github() -> ProviderSpec:
    declared = Hmac(
        header="X-Hub-Signature-256",
        prefix="sha256=",
        id_header="X-GitHub-Delivery",
        event_header="X-GitHub-Event",
    )
    return _sender(declared, partial(hmac_verifier, declared), declared.header, "X-Hub-Signature")


def _stripe() -> ProviderSpec:
    return _sender(Naming(id_field="id", event_field="type"), stripe_verifier, "Stripe-Signature")


def _standard() -> ProviderSpec:
    """The specification's headers, or Svix's."""
    return ProviderSpec(
        verifier=standard_verifier,
        name=_standard_name,
        reads=True,
        id_is="webhook-id",
        signature_headers=frozenset(STANDARD_SIGNATURES),
        naming_headers=frozenset(STANDARD_IDS),
    )


def _standard_name(headers: RequestHeaders, _body: bytes, values: Any) -> tuple[str, str]:
    """If both headers are present they agree, or the signature would have been rejected."""
    ids = [headers[name] for name in STANDARD_IDS if name in headers]
    return utf8(ids[0]) if ids else "", _text(values, "type")


def _slack() -> ProviderSpec:
    declared = Hmac(
        header="X-Slack-Signature",
        prefix="v0=",
        signed="v0:{timestamp}:{body}",
        timestamp_header="X-Slack-Request-Timestamp",
    )
    return ProviderSpec(
        verifier=partial(hmac_verifier, declared),
        name=_slack_name,
        reads=True,
        id_is="the id",
        signature_headers=frozenset({"x-slack-signature"}),
        answer=_slack_challenge,
        greets=_is_slack_ssl_check,
        quiet=True,
    )


def _slack_name(_headers: RequestHeaders, body: bytes, values: Any) -> tuple[str, str]:
    """Return id and event name.

    Events have an id that is equal on every retry; commands and interactions are sent once, and
    most have a trigger id. Anything else is identified by its body.
    Source: docs.slack.dev, "The Events API", "Slash commands", "Handling user interaction"."""
    id_ = _text(values, "event_id") or _text(values, "trigger_id")
    event = _text(values, "event.type") or _text(values, "command") or _text(values, "type")
    return id_ or hashlib.sha256(body).hexdigest()[:32], event


def _slack_challenge(delivery: Webhook) -> JsonObject | None:
    """Answer the challenge that Slack sends once, when the address is set up."""
    if delivery.event != "url_verification":
        return None
    return {"challenge": _text(delivery.json, "challenge")}


def _is_slack_ssl_check(headers: RequestHeaders, body: bytes) -> bool:
    """Whether Slack checks the certificate of a command's address, which it does unsigned.

    Source: docs.slack.dev, "Slash commands"; Bolt, SslCheck."""
    if len(body) > _SSL_CHECK_MAX:
        return False
    try:
        return form_fields(headers.get("content-type", ""), body).get("ssl_check") == ["1"]
    except BadPayload:
        return False


_KNOWN: Mapping[str, Callable[[], ProviderSpec]] = {
    "github": _github,
    "slack": _slack,
    "standard": _standard,
    "stripe": _stripe,
}


def sender(provider: Provider) -> ProviderSpec:
    """Return the specification of a provider."""
    match provider:
        case Hmac():
            return _sender(provider, partial(hmac_verifier, provider), provider.header)
        case Bearer():
            return _sender(provider, partial(bearer_verifier, provider), provider.header)
        case _:
            return _KNOWN[provider]()


@dataclass(frozen=True, slots=True, repr=False)
class SourceVerifier:
    """One source with its secrets: accepts what has a valid signature."""

    sender: ProviderSpec
    _verifiers: tuple[Verify, ...]

    def refuses(self, headers: RequestHeaders, body: bytes, now_s: int) -> str | None:
        """Return why a delivery is refused, for the operator; None if it is accepted.

        Every live secret is tried, so that the time taken does not reveal which one fits."""
        for name in self.sender.signature_headers:
            if len(headers.get(name, "")) > PROOF_CHARACTERS_MAX:
                return f"{name} is longer than {PROOF_CHARACTERS_MAX} characters"
        faults = [verify(headers, body, now_s) for verify in self._verifiers]
        return None if None in faults else faults[0]


def doors(
    triggers: Iterable[WebhookTrigger], secrets: Mapping[str, Sequence[str]]
) -> dict[str, SourceVerifier]:
    """Return one verifier per source that an agent listens to.

    Raises: ConfigError — two triggers name different providers for a source, or a secret is
    missing, empty, a placeholder or too short; names the variable to set and shows no secret.
    """
    providers: dict[str, Provider] = {}
    for trigger in triggers:
        if providers.setdefault(trigger.source, trigger.provider) != trigger.provider:
            raise ConfigError(
                "SF1124",
                f"webhook source {trigger.source!r} has two providers, {trigger.provider!r} and "
                f"{providers[trigger.source]!r}; give each its own source",
            )
    return {
        source: _door(source, sender(provider), secrets.get(source, ()))
        for source, provider in sorted(providers.items())
    }


def _door(source: str, chosen: ProviderSpec, secrets: Sequence[str]) -> SourceVerifier:
    variable = f"SUREFOOT_WEBHOOK_{source.upper().replace('-', '_')}_SECRET"
    if not secrets:
        raise ConfigError(
            "SF5106",
            f"webhooks from {source!r} have no secret; set {variable} to the secret configured at "
            f"the sender (make one with `openssl rand -hex 32`)",
        )
    verifiers = []
    for number, secret in enumerate(secrets, start=1):
        try:
            verifiers.append(chosen.verifier(secret))
        except BadSecret as fault:
            raise ConfigError(
                "SF5107",
                f"secret {number} of {len(secrets)} in {variable} {fault}; separate two live "
                "secrets by one comma, and make each with `openssl rand -hex 32`",
            ) from None
    return SourceVerifier(chosen, tuple(verifiers))
