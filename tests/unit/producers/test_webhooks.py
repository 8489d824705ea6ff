import hashlib
import hmac

import pytest

from surefoot import Agent, Bearer, Webhook
from surefoot.producers.webhooks.verification import SourceVerifier, doors
from surefoot.schemas.payload import BadPayload
from surefoot.state.errors import ConfigError

SECRET = "0123456789abcdef0123456789abcdef"
OTHER = "fedcba9876543210fedcba9876543210"
BODY = '{"action": "opened",  "title": "caf\\u00e9 ☕"}\n'.encode()


def signed(body: bytes = BODY, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def door(*secrets: str, source: str = "github", **options) -> SourceVerifier:
    """The door of one source that one agent listens to."""
    agent = Agent("a")
    agent.webhook(source, **options)(lambda delivery: delivery.id)
    return doors(agent.webhooks, {source: secrets} if secrets else {})[source]


def opens(header: str | None, body: bytes = BODY, secrets: tuple[str, ...] = (SECRET,)) -> bool:
    headers = {} if header is None else {"x-hub-signature-256": header}
    return door(*secrets).refuses(headers, body, 0) is None


def test_the_documented_example_of_github_verifies():
    header = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert opens(header, b"Hello, World!", ("It's a Secret to Everybody",))


@pytest.mark.parametrize("body", [BODY, b"", b"\xff\xfe not utf-8", b'{"a":1,"a":2}'])
def test_the_raw_bytes_are_what_is_verified(body):
    assert opens(signed(body), body)
    assert not opens(signed(body), body + b" ")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "sha256=",
        signed()[:-1],
        signed() + "0",
        signed()[: len("sha256=") + 2],
        signed().removeprefix("sha256="),
        signed().upper(),
        "sha256=" + "zz" * 32,
        "sha256=" + "é" * 64,
        "sha256=" + "\u0660" * 64,
        "sha1=" + hmac.new(SECRET.encode(), BODY, hashlib.sha1).hexdigest(),
        "sha256=" + "0" * 64,
    ],
)
def test_what_is_no_right_signature_is_refused(header):
    assert not opens(header)


def test_the_old_sha1_header_alone_opens_nothing():
    sha1 = "sha1=" + hmac.new(SECRET.encode(), BODY, hashlib.sha1).hexdigest()
    assert (
        door(SECRET).refuses({"x-hub-signature": sha1}, BODY, 0) == "x-hub-signature-256 is missing"
    )


def test_both_secrets_are_good_while_one_is_being_replaced_and_only_then():
    assert opens(signed(secret=OTHER), secrets=(SECRET, OTHER))
    assert opens(signed(secret=SECRET), secrets=(SECRET, OTHER))
    assert not opens(signed(secret=SECRET), secrets=(OTHER,))


def test_every_secret_is_tried_even_after_one_has_fitted(monkeypatch):
    compared = []
    real = hmac.compare_digest

    def compare(a, b):
        compared.append(b)
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert opens(signed(secret=SECRET), secrets=(SECRET, OTHER))
    assert len(compared) == 2


@pytest.mark.parametrize(
    "secrets",
    [
        (),
        ("",),
        (" " * 30,),
        ("changeme",),
        ("ChangeMe-ChangeMe-ChangeMe-ChangeMe",),
        ("x" * 23,),
        (SECRET, ""),
        ("", SECRET),
    ],
)
def test_a_source_without_a_real_secret_stops_the_start_and_names_the_variable(secrets):
    with pytest.raises(ConfigError, match="SUREFOOT_WEBHOOK_GITHUB_SECRET") as caught:
        door(*secrets)
    assert all(secret not in str(caught.value) for secret in secrets if secret.strip("x "))


def test_a_secret_is_measured_in_bytes():
    door("☕" * 8)


def test_secrets_of_sources_that_no_agent_listens_to_are_not_looked_at():
    assert doors([], {"github": [""]}) == {}


def test_a_door_does_not_show_its_secrets():
    assert SECRET not in repr(door(SECRET))


def test_a_source_has_one_provider():
    one, other = Agent("one"), Agent("other")
    one.webhook("shop", provider="stripe")(len)
    other.webhook("shop", provider=Bearer())(len)
    with pytest.raises(ConfigError, match="two providers"):
        doors([*one.webhooks, *other.webhooks], {"shop": [SECRET]})


# What a body says ------------------------------------------------------------------------------

FORM = "application/x-www-form-urlencoded"
LATIN_1 = f"{FORM}; charset=ISO-8859-1"
MULTIPART = "multipart/form-data; boundary=x"


def came(content_type: str, body: bytes) -> Webhook:
    headers = {"content-type": content_type}
    return Webhook(source="s", id="1", event="", headers=headers, body=body)


@pytest.mark.parametrize(
    ("content_type", "body", "values"),
    [
        ("application/json", b'{"a": "\xc3\xa9"}', {"a": "é"}),
        ("application/json; charset=latin1", b'{"a": "\xe9"}', {"a": "é"}),
        ("", b"[1]", [1]),
        ("text/plain", b"1", 1),
        (FORM, b"", {}),
        (FORM, b"payload=%7B%22a%22%3A%22%C3%A9%22%7D", {"a": "é"}),
        (
            "Application/X-WWW-Form-URLencoded; charset=utf-8",
            b"command=%2Fdeploy&text=caf%C3%A9+now&empty=",
            {"command": "/deploy", "text": "café now", "empty": ""},
        ),
        (FORM, b"payload=1&other=2", {"payload": "1", "other": "2"}),
        (FORM, b"a=\xc3\xa9", {"a": "é"}),
        (LATIN_1, b"a=%E9&b=\xe9&%E9=1", {"a": "é", "b": "é", "é": "1"}),
        (f'{FORM};charset="windows-1252"', b"a=%80", {"a": "€"}),
    ],
)
def test_the_values_of_a_body_are_those_of_its_json_or_its_form(content_type, body, values):
    assert came(content_type, body).json == values


@pytest.mark.parametrize(
    ("content_type", "body", "fields"),
    [
        (FORM, b"", {}),
        (FORM, b"to=a&to=b&cc=&to=a", {"to": ["a", "b", "a"], "cc": [""]}),
        (FORM, b"payload=%7B%7D&payload=x", {"payload": ["{}", "x"]}),
        (LATIN_1, b"who=J%FCrgen&who=Zo%EB", {"who": ["Jürgen", "Zoë"]}),
    ],
)
def test_a_form_has_every_value_of_every_field(content_type, body, fields):
    assert came(content_type, body).form == fields


@pytest.mark.parametrize(
    ("content_type", "body", "told"),
    [
        ("application/json", b"payload=%7B%7D", "not strict JSON"),
        ("application/json", b'{"a": 1, "a": 2}', "twice"),
        ("application/json", b"\xff", "not strict JSON"),
        ("application/json", b"", "the body is empty"),
        ("", b"", "the body is empty"),
        (MULTIPART, b"--x--", "multipart/form-data, not JSON; read delivery.body"),
        (FORM, b'{"a": 1}', "not a form"),
        (FORM, b"payload=x", "not strict JSON"),
        (FORM, b"to=a&to=b", "'to' twice; delivery.form has all its values"),
        (FORM, b"payload={}&payload={}", "'payload' twice"),
        (FORM, b"a=%ff", "not utf-8, and names no other charset; decode delivery.body"),
        (f"{FORM}; charset=punycode", b"a=1", "'punycode' is not supported; decode delivery.body"),
        (f"{FORM}; charset=nonsense", b"a=1", "'nonsense' is not supported"),
        (FORM, b"&".join(b"f%d=" % n for n in range(1001)), "not a form"),
    ],
)
def test_what_cannot_be_read_as_json_says_why_and_the_bytes_are_there(content_type, body, told):
    delivery = came(content_type, body)
    with pytest.raises(BadPayload, match=told):
        _ = delivery.json
    assert delivery.body == body


def test_a_large_body_that_is_no_form_is_not_told_back():
    with pytest.raises(BadPayload, match="not a form") as refused:
        _ = came(FORM, b'{"a": "%s"}' % (b"x" * 900_000)).json
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize(
    ("content_type", "told"),
    [
        ("application/json", "not a form, its type is application/json; read delivery.body"),
        (MULTIPART, "not a form, its type is multipart/form-data"),
        ("", "not a form, its type is missing"),
    ],
)
def test_what_is_no_form_says_so(content_type, told):
    with pytest.raises(BadPayload, match=told):
        _ = came(content_type, b"{}").form


def test_a_body_is_read_once_and_may_be_given_read():
    delivery = came("", b"[1]")
    assert delivery.json is delivery.json
    given = Webhook(source="s", id="1", event="", headers={}, body=b"", json=None)
    assert given.json is None
