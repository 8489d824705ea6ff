"""Declarations of webhooks: who sends, how a delivery is verified, and which runs it starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from surefoot.state.declare.callables import label
from surefoot.state.declare.webhook_body import form_fields, json_values
from surefoot.state.errors import ConfigError

#: senders with a built-in signature scheme
Known = Literal["github", "slack", "standard", "stripe"]
KNOWN: tuple[Known, ...] = get_args(Known)
#: maximum number of runs that one delivery may start of one agent
STARTS_MAX = 1_000
#: shortest secret that signs webhooks, in bytes (the lower bound of Standard Webhooks)
SECRET_MIN_BYTES = 24

#: names that fit in a URL and in an environment variable
_SOURCE = re.compile(r"[a-z][a-z0-9-]{0,62}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
_SIGNED = re.compile(r"(?:[^{}]|\{(?:body|timestamp|id)\})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Where a delivery carries its id and its event name. A field is a path in the JSON body, such
    as "event.id"."""

    #: the id that is equal on every redelivery; with neither, equal bodies are the same delivery
    id_header: str | None = None
    id_field: str | None = None
    #: the name of the event
    event_header: str | None = None
    event_field: str | None = None

    def __post_init__(self) -> None:
        for one, other in (("id_header", "id_field"), ("event_header", "event_field")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ConfigError(
                    "SF1124", f"{type(self).__name__}: give {one} or {other}, not both"
                )
        for name in ("id_header", "event_header"):
            _check_header(self, name)


def _check_header(declared: Any, name: str) -> None:
    value = getattr(declared, name)
    if value is not None and not _HEADER.fullmatch(value):
        raise ConfigError(
            "SF1124", f"{type(declared).__name__}: {name}={value!r} is not a valid header name"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hmac(Naming):
    """A sender that signs with a shared secret in one header.

    `signed` is the text that is signed: "{body}", alone or in a template such as
    "v0:{timestamp}:{body}" or "{id}.{body}". Anybody who has seen one delivery can change a header
    that is not part of it: without a timestamp in `signed`, an old delivery stays valid forever.

    Raises: ConfigError - the parts contradict each other
    """

    header: str
    algorithm: Literal["sha256", "sha384", "sha512"] = "sha256"
    #: text in front of the signature
    prefix: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    signed: str = "{body}"
    #: epoch seconds; more than five minutes in the past or the future is refused
    timestamp_header: str | None = None

    def __post_init__(self) -> None:
        Naming.__post_init__(self)
        _check_header(self, "header")
        _check_header(self, "timestamp_header")
        if not _SIGNED.fullmatch(self.signed) or self.signed.count("{body}") != 1:
            raise ConfigError(
                "SF1124",
                "Hmac: signed must contain {body} exactly once, and may contain {timestamp} and "
                f"{{id}}; got {self.signed!r}",
            )
        for place, header in (("timestamp", self.timestamp_header), ("id", self.id_header)):
            if f"{{{place}}}" in self.signed and header is None:
                raise ConfigError("SF1124", f"Hmac: {{{place}}} in signed needs {place}_header")
        if self.timestamp_header is not None and "{timestamp}" not in self.signed:
            raise ConfigError(
                "SF1124",
                "Hmac: the timestamp is not signed, so anyone can change it; add {timestamp} to "
                "signed, or remove timestamp_header",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer(Naming):
    """A sender that shows a secret token in a header. Whoever sees one delivery can forge more."""

    header: str = "Authorization"
    prefix: str = "Bearer "

    def __post_init__(self) -> None:
        Naming.__post_init__(self)
        _check_header(self, "header")


Provider = Known | Hmac | Bearer


_UNREAD: Any = object()


@dataclass(frozen=True, kw_only=True, init=False)
class Webhook:
    """One verified delivery: the input of a webhook mapping."""

    source: str
    #: the sender's own id of the delivery, equal on every redelivery
    id: str
    event: str
    headers: Mapping[str, str]
    #: the bytes received, decompressed if they came as gzip
    body: bytes

    def __init__(
        self,
        *,
        source: str,
        id: str,  # noqa: A002  (the word for it)
        event: str,
        headers: Mapping[str, str],
        body: bytes,
        json: Any = _UNREAD,
    ) -> None:
        vars(self).update(source=source, id=id, event=event, headers=headers, body=body)
        if json is not _UNREAD:
            vars(self)["json"] = json

    @cached_property
    def json(self) -> Any:
        """The values of a JSON body; of a form, its fields as texts, or the JSON in its only field
        `payload`. Raises BadPayload for any other body: the sender gets a 422."""
        return json_values(self.headers.get("content-type", ""), self.body)

    @cached_property
    def form(self) -> Mapping[str, list[str]]:
        """The fields of a form, each with all its values. Raises BadPayload for other bodies."""
        return form_fields(self.headers.get("content-type", ""), self.body)


@dataclass(frozen=True, slots=True)
class Start:
    """One run that a delivery starts; a mapping may return a list of them.

    The run_id is made of the source and `id`; without `id`, of the delivery and the position in
    the list. The same delivery, sent again, therefore names the same runs.
    """

    payload: Any
    id: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTrigger:
    """Starts runs from a delivery when `fn` returns a payload, or a list of Start."""

    source: str
    provider: Provider
    #: names of the events to take; None: all
    events: frozenset[str] | None
    where: Callable[[Webhook], Any] | None
    fn: Callable[[Webhook], Any]


def declare_webhook(
    agent: str,
    fn: Callable[[Webhook], Any],
    source: str,
    *,
    provider: Provider | None,
    event: str | Iterable[str] | None,
    where: Callable[[Webhook], Any] | None,
) -> WebhookTrigger:
    """The trigger of one `@agent.webhook`. Raises ConfigError when it cannot work."""
    named = f"webhook {label(fn)!r} of agent {agent!r}"
    if not _SOURCE.fullmatch(source):
        raise ConfigError(
            "SF1124", f"{named}: source {source!r}: use a-z 0-9 -, beginning with a letter"
        )
    chosen = _known(source) if provider is None else provider
    if chosen is None or (isinstance(chosen, str) and chosen not in KNOWN):
        raise ConfigError(
            "SF5101",
            f"{named}: unknown provider; set provider= to one of {', '.join(KNOWN)}, or to "
            "Hmac(header=...) or Bearer() for others",
        )
    events = (event,) if isinstance(event, str) else event
    return WebhookTrigger(
        source=source,
        provider=chosen,
        events=None if events is None else frozenset(events),
        where=where,
        fn=fn,
    )


def _known(source: str) -> Known | None:
    return next((name for name in KNOWN if name == source), None)
