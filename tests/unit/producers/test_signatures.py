"""Every verifier: right signatures, wrong ones, and whatever else a stranger may send."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ed25519 as ed25519_module
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot import Agent, Bearer, Hmac
from surefoot.producers.webhooks.signatures import PROOF_CHARACTERS_MAX, BadSecret, Verify
from surefoot.producers.webhooks.verification import SourceVerifier, doors, sender
from surefoot.state.declare.webhooks import Provider

NOW = 1_700_000_000
SECRET = "0123456789abcdef0123456789abcdef"
OTHER = "fedcba9876543210fedcba9876543210"
BODY = '{"type": "invoice.paid",  "id": "evt_1", "who": "Zoë ☕"}\n'.encode()
WHSEC = "whsec_" + base64.b64encode(b"k" * 32).decode()
PRIVATE = Ed25519PrivateKey.from_private_bytes(b"p" * 32)
WHPK = "whpk_" + base64.b64encode(PRIVATE.public_key().public_bytes_raw()).decode()
GENERIC = Hmac(
    header="X-Shop-Signature",
    algorithm="sha512",
    prefix="v2:",
    encoding="base64",
    signed="{id}|{timestamp}|{body}",
    timestamp_header="X-Shop-Time",
    id_header="X-Shop-Id",
)


def mac(secret: str | bytes, signed: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.digest(secret if isinstance(secret, bytes) else secret.encode(), signed, algorithm)


def github(secret: str, body: bytes, at: str) -> dict[str, str]:
    return {"x-hub-signature-256": "sha256=" + mac(secret, body).hex()}


def stripe(secret: str, body: bytes, at: str) -> dict[str, str]:
    signature = mac(secret, at.encode() + b"." + body).hex()
    return {"stripe-signature": f"t={at},v1={signature}"}


def slack(secret: str, body: bytes, at: str) -> dict[str, str]:
    signature = mac(secret, b"v0:" + at.encode() + b":" + body).hex()
    return {"x-slack-signature": f"v0={signature}", "x-slack-request-timestamp": at}


def standard(secret: str, body: bytes, at: str) -> dict[str, str]:
    signed = b"msg_1." + at.encode() + b"." + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = "v1," + base64.b64encode(mac(key, signed)).decode()
    return {"webhook-id": "msg_1", "webhook-timestamp": at, "webhook-signature": signature}


def ed25519(secret: str, body: bytes, at: str) -> dict[str, str]:
    signature = PRIVATE.sign(b"msg_1." + at.encode() + b"." + body)
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": at,
        "webhook-signature": "v1a," + base64.b64encode(signature).decode(),
    }


def generic(secret: str, body: bytes, at: str) -> dict[str, str]:
    signature = mac(secret, b"id-1|" + at.encode() + b"|" + body, "sha512")
    return {
        "x-shop-signature": "v2:" + base64.b64encode(signature).decode(),
        "x-shop-time": at,
        "x-shop-id": "id-1",
    }


def bearer(secret: str, body: bytes, at: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@dataclass(frozen=True)
class Case:
    provider: Provider
    sign: Callable[[str, bytes, str], dict[str, str]]
    #: the header that proves it
    header: str
    secret: str = SECRET
    other: str = OTHER
    timed: bool = True
    covers_body: bool = True
    verify: Verify = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "verify", sender(self.provider).verifier(self.secret))

    def fault(self, headers: Mapping[str, str], body: bytes = BODY) -> str | None:
        return self.verify(headers, body, NOW)


OTHER_WHSEC = "whsec_" + base64.b64encode(b"o" * 32).decode()
CASES = {
    "github": Case("github", github, "x-hub-signature-256", timed=False),
    "stripe": Case("stripe", stripe, "stripe-signature"),
    "slack": Case("slack", slack, "x-slack-signature"),
    "standard": Case("standard", standard, "webhook-signature", WHSEC, OTHER_WHSEC),
    "ed25519": Case("standard", ed25519, "webhook-signature", WHPK, WHPK),
    "generic": Case(GENERIC, generic, "x-shop-signature"),
    "bearer": Case(Bearer(), bearer, "authorization", timed=False, covers_body=False),
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
timed = pytest.mark.parametrize(
    "case", [pytest.param(c, id=n) for n, c in CASES.items() if c.timed]
)


@every
def test_a_right_signature_opens(case: Case) -> None:
    assert case.fault(case.sign(case.secret, BODY, str(NOW))) is None


@every
def test_one_byte_more_or_less_of_the_body_does_not(case: Case) -> None:
    headers = case.sign(case.secret, BODY, str(NOW))
    for body in (BODY + b" ", BODY[:-1], b"", BODY.replace(b"  ", b" ")):
        assert (case.fault(headers, body) is not None) == case.covers_body


@every
def test_another_secret_does_not(case: Case) -> None:
    if case.other != case.secret:
        assert case.fault(case.sign(case.other, BODY, str(NOW))) is not None


@every
def test_without_its_headers_or_with_a_piece_of_them_it_stays_shut(case: Case) -> None:
    right = case.sign(case.secret, BODY, str(NOW))
    assert case.fault({}) is not None
    for name in right:
        assert case.fault({**right, name: ""}) is not None
    whole = right[case.header]
    for wrong in (
        whole.rstrip("=")[:-1],
        whole[:4],
        whole.rstrip("=") + "0",
        whole + "é",
        "v1,",
        " ",
        "\n",
        whole + "\x00",
    ):
        assert case.fault({**right, case.header: wrong}) is not None, wrong


@timed
@pytest.mark.parametrize(
    "at",
    [
        *(str(NOW + away) for away in (-300, -299, 0, 299, 300)),
        *(str(NOW * 1000 + away) for away in (-300_000, 0, 1, 300_000)),
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:13:20.123456Z",
        "2023-11-14T23:13:20+01:00",
        "2023-11-14 22:13:20+00:00",
        "20231114T221320Z",
        "2023-11-14T22:08:20Z",
    ],
)
def test_a_timestamp_may_be_five_minutes_away_in_seconds_milliseconds_or_iso(
    case: Case, at: str
) -> None:
    assert case.fault(case.sign(case.secret, BODY, at)) is None


@timed
@pytest.mark.parametrize(
    "at",
    [
        str(NOW - 301),
        str(NOW + 301),
        str(NOW + 3600),
        str(NOW - 360),
        str(NOW * 1_000_000),
        str(NOW * 1000 - 300_001),
        str(NOW * 1000 + 300_001),
        str(NOW * 10),
        str(NOW * 100),
        "2023-11-14T22:13:20",
        "2023-11-14T22:08:19Z",
        "2023-11-14T22:18:21Z",
        "2023-11-14",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "nan",
        "inf",
        "1e9",
        "1e99",
        f"{NOW}.5",
        f"-{NOW}",
        f"+{NOW}",
        f" {NOW}",
        f"0{NOW}",
        f"{NOW}\n",
        "",
        "abc",
        "9" * 20,
        "9" * 5000,
        "1_700_000_000",
    ],
)
def test_what_is_signed_with_any_other_timestamp_is_refused(case: Case, at: str) -> None:
    assert case.fault(case.sign(case.secret, BODY, at)) is not None


@timed
def test_a_timestamp_in_other_digits_is_refused(case: Case) -> None:
    arabic = str(NOW).translate({ord(str(n)): 0x660 + n for n in range(10)})
    assert case.fault(case.sign(case.secret, BODY, arabic)) is not None


@timed
def test_the_timestamp_is_signed(case: Case) -> None:
    right = case.sign(case.secret, BODY, str(NOW))
    moved = {name: text.replace(str(NOW), str(NOW + 1)) for name, text in right.items()}
    assert case.fault(moved) is not None


def test_the_operator_is_told_how_old_a_delivery_is() -> None:
    stripe_case = CASES["stripe"]
    assert "301 s old" in str(stripe_case.fault(stripe(SECRET, BODY, str(NOW - 301))))
    assert "301 s in the future" in str(stripe_case.fault(stripe(SECRET, BODY, str(NOW + 301))))


# Published examples ---------------------------------------------------------------------------


def test_the_documented_example_of_slack_verifies() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
        b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner"
        b"&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands"
        b"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        "x-slack-request-timestamp": "1531420618",
    }
    verify = sender("slack").verifier("8f742231b10e8888abcd99yyyzzz85a5")
    assert verify(headers, body, 1531420618) is None


def test_the_published_example_of_standard_webhooks_verifies() -> None:
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    for secret in ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"):
        verify = sender("standard").verifier(secret)
        assert verify(headers, b'{"test": 2432232314}', 1614265330) is None


# How else they write it -----------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "sha256=", "v0=", "v1,", "HMAC-SHA256 ", "HMAC Signature="])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_a_signature_may_be_written_as_senders_do(prefix: str, encoding: Any) -> None:
    verify = sender(Hmac(header="X-Sig", prefix=prefix, encoding=encoding)).verifier(SECRET)
    body = next(  # of which the signature has all that base64 may write otherwise
        body
        for body in (b"%d" % n for n in range(10_000))
        if {"+", "/"} <= set(base64.b64encode(mac(SECRET, body)).decode())
    )
    raw, other = mac(SECRET, body), mac(OTHER, body)
    if encoding == "hex":
        one, wrong, ways = raw.hex(), other.hex(), [raw.hex().upper()]
    else:
        one, wrong = base64.b64encode(raw).decode(), base64.b64encode(other).decode()
        url_safe = base64.urlsafe_b64encode(raw).decode()
        ways = [one.rstrip("="), url_safe, url_safe.rstrip("=")]
    good = [
        *(f"{prefix}{way}" for way in (one, *ways)),
        f"{prefix} {one}",
        f" {prefix}{one} ",
        f"{prefix}{wrong},{prefix}{one}",
        f"{prefix}{one}, {prefix}{wrong}",
        f"{prefix}{wrong} {prefix}{one}",
        f"{prefix}{wrong};{prefix}{one}",
        f"t=1,{prefix}{one}",
    ]
    for header in good:
        assert verify({"x-sig": header}, body, NOW) is None, header
    bad = [f"{prefix}{wrong}", f"{prefix}{one}0", f"{prefix}{one[:-2]}", f"{prefix}{prefix}", ","]
    if prefix:
        bad += [one, f"x{prefix}{one}"]
    for header in bad:
        assert verify({"x-sig": header}, body, NOW) is not None, header


@pytest.mark.parametrize("name", ["standard", "ed25519"])
def test_standard_webhooks_may_have_the_names_of_svix(name: str) -> None:
    case = CASES[name]
    right = case.sign(case.secret, BODY, str(NOW))
    svix = {each.replace("webhook-", "svix-"): text for each, text in right.items()}
    assert case.fault(svix) is None
    assert case.fault(right | svix) is None
    assert case.fault({**svix, "svix-id": "msg_2"}) is not None
    assert sender("standard").name(svix, BODY, {"type": "t"}) == ("msg_1", "t")


@pytest.mark.parametrize("name", ["standard", "ed25519"])
def test_what_only_one_of_both_names_has_signed_is_not_named_by_the_other(name: str) -> None:
    case = CASES[name]
    right = case.sign(case.secret, BODY, str(NOW))
    svix = {each.replace("webhook-", "svix-"): text for each, text in right.items()}
    for headers in (
        svix | {"webhook-id": "another"},
        right | {"svix-id": "another"},
        svix | {"webhook-timestamp": str(NOW + 1)},
        right | {"svix-timestamp": str(NOW + 1)},
    ):
        assert "headers differ" in str(case.fault(headers))


# Several signatures ---------------------------------------------------------------------------


def test_stripe_sends_several_signatures_while_it_rolls_a_secret() -> None:
    right = mac(SECRET, f"{NOW}.".encode() + BODY).hex()
    case = CASES["stripe"]
    good = (
        f"t={NOW},v1={'0' * 64},v1={right}",
        f"t={NOW},v1={right},v1={'0' * 64}",
        f"t={NOW},v1={right},v0={'0' * 64}",
        f"v1=zz,v9={right},t={NOW},,=,x,v1={right}",
        f"t={NOW}, v1={right.upper()}",
    )
    for header in good:
        assert case.fault({"stripe-signature": header}) is None, header
    for header in (
        f"t={NOW},v0={right}",
        f"v1={right}",
        f"t={NOW},t={NOW},v1={right}",
        f"t={NOW - 999},t={NOW},v1={right}",
        f"t={NOW};v1={right}",
    ):
        assert case.fault({"stripe-signature": header}) is not None, header


def test_standard_webhooks_finds_the_right_one_behind_garbage() -> None:
    case = CASES["standard"]
    right = standard(WHSEC, BODY, str(NOW))
    one = right["webhook-signature"]
    for header in (
        f"garbage {one}",
        f"v1 {one}",
        f"v1,=== {one}",
        f"v2,x {one} v1,",
        f"v1,é {one}",
    ):
        assert case.fault({**right, "webhook-signature": header}) is None, header
    for header in (one.replace("v1,", "v2,"), one.replace("v1,", "v1a,"), one.replace("v1,", "")):
        assert case.fault({**right, "webhook-signature": header}) is not None, header


@pytest.mark.parametrize("message", ["msg é", "msg_1\u0660"])
def test_an_id_of_standard_webhooks_is_signed_as_the_bytes_that_came(message: str) -> None:
    came = message.encode().decode("latin-1")
    signed = message.encode() + b"." + str(NOW).encode() + b"." + BODY
    signatures = {
        "standard": "v1," + base64.b64encode(mac(b"k" * 32, signed)).decode(),
        "ed25519": "v1a," + base64.b64encode(PRIVATE.sign(signed)).decode(),
    }
    for name, signature in signatures.items():
        headers = {
            "webhook-id": came,
            "webhook-timestamp": str(NOW),
            "webhook-signature": signature,
        }
        assert CASES[name].fault(headers) is None
        assert CASES[name].fault({**headers, "webhook-id": "msg_2"}) is not None


def test_a_body_that_is_no_text_is_verified_as_it_is() -> None:
    for name in ("standard", "ed25519"):
        case = CASES[name]
        for body in (b"\x1f\x8b\x08\xff", b""):
            assert case.fault(case.sign(case.secret, body, str(NOW)), body) is None


@pytest.mark.parametrize("name", ["github", "slack", "generic", "bearer"])
def test_a_signature_without_its_prefix_is_refused(name: str) -> None:
    case = CASES[name]
    right = case.sign(case.secret, BODY, str(NOW))
    whole = right[case.header]
    for prefix in ("sha256=", "v0=", "v2:", "Bearer "):
        whole = whole.removeprefix(prefix)
    assert case.fault({**right, case.header: whole}) is not None


def test_a_shared_secret_does_not_open_what_is_signed_with_a_key_nor_the_other_way() -> None:
    assert CASES["standard"].fault(ed25519(WHPK, BODY, str(NOW))) is not None
    assert CASES["ed25519"].fault(standard(WHSEC, BODY, str(NOW))) is not None


def test_what_the_library_signs_opens() -> None:
    signed = standardwebhooks.Webhook(WHSEC).sign(
        "msg_1", datetime.fromtimestamp(NOW, UTC), BODY.decode()
    )
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(NOW),
        "webhook-signature": signed,
    }
    assert CASES["standard"].fault(headers) is None


def test_the_id_is_signed_where_it_is_declared_so() -> None:
    for name, header in (("standard", "webhook-id"), ("generic", "x-shop-id")):
        case = CASES[name]
        right = case.sign(case.secret, BODY, str(NOW))
        assert case.fault({**right, header: "another"}) is not None


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_a_declared_way_of_signing(algorithm: Any, encoding: Any) -> None:
    declared = Hmac(header="X-Sig", algorithm=algorithm, encoding=encoding)
    signature = mac(SECRET, BODY, algorithm)
    text = signature.hex() if encoding == "hex" else base64.b64encode(signature).decode()
    verify = sender(declared).verifier(SECRET)
    assert verify({"x-sig": text}, BODY, NOW) is None
    assert verify({"x-sig": text}, BODY + b"!", NOW) is not None


def test_what_is_filled_in_is_not_filled_in_again() -> None:
    declared = Hmac(header="X-Sig", signed="{id}.{body}", id_header="X-Id")
    verify = sender(declared).verifier(SECRET)
    signature = mac(SECRET, b"{body}.{id}").hex()
    assert verify({"x-sig": signature, "x-id": "{body}"}, b"{id}", NOW) is None


# What a stranger's header costs ----------------------------------------------------------------


def door_of(case: Case) -> SourceVerifier:
    """With two live secrets."""
    agent = Agent("a")
    agent.webhook("shop", provider=case.provider)(lambda delivery: delivery.id)
    return doors(agent.webhooks, {"shop": [case.secret, case.other]})["shop"]


@every
@settings(
    max_examples=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    many=st.integers(1, 60),
    separator=st.sampled_from([",", " ", ", ", ",v1=", " v1,", ",sha256=", " v1a,"]),
    whole=st.booleans(),
)
def test_however_many_signatures_a_header_holds_the_body_is_read_once_a_secret(
    case: Case, monkeypatch: pytest.MonkeyPatch, many: int, separator: str, whole: bool
) -> None:
    reads = []

    class Key:
        @classmethod
        def from_public_bytes(cls, _raw: bytes) -> Key:
            return cls()

        def verify(self, _signature: bytes, signed: bytes) -> None:
            reads.append(signed)
            raise InvalidSignature

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def digest(secret: bytes, signed: bytes, algorithm: Any) -> Any:
            reads.append(signed)
            return real(secret, signed, algorithm)

        return digest

    wrong = case.sign(case.other, BODY + b"!", str(NOW))
    one = wrong[case.header] if whole else wrong[case.header][-44:]
    headers = {**wrong, case.header: wrong[case.header] + separator + separator.join([one] * many)}
    with monkeypatch.context() as patched:
        patched.setattr(ed25519_module, "Ed25519PublicKey", Key)
        patched.setattr(hmac, "digest", counted(hmac.digest))
        patched.setattr(hmac, "new", counted(hmac.new))
        door = door_of(case)
        assert door.refuses(headers, BODY, NOW) is not None
    a_secret = 4 if case is CASES["ed25519"] else 1
    assert len(reads) <= 2 * a_secret


@every
def test_a_longer_header_than_any_sender_has_is_not_looked_into(case: Case) -> None:
    right = case.sign(case.secret, BODY, str(NOW))
    long = right[case.header] + "," * PROOF_CHARACTERS_MAX
    fault = door_of(case).refuses({**right, case.header: long}, BODY, NOW)
    assert fault == f"{case.header} is longer than 4096 characters"
    assert door_of(case).refuses(right, BODY, NOW) is None


# Secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["github", "stripe", "slack", "generic", "bearer"])
@pytest.mark.parametrize("secret", ["", "  ", "changeme", "x" * 23, "your-secret-your-secret-your"])
def test_a_weak_secret_is_refused(name: str, secret: str) -> None:
    with pytest.raises(BadSecret):
        sender(CASES[name].provider).verifier(secret)


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "whsec_%%%%",
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "changeme",
        "whpk_",
        "whpk_AAAA",
        "whpk_é",
        "change-me-change-me-change-me",
    ],
)
def test_a_weak_secret_or_key_of_standard_webhooks_is_refused(secret: str) -> None:
    with pytest.raises(BadSecret):
        sender("standard").verifier(secret)


def test_a_secret_as_openssl_makes_it_will_do_for_every_sender() -> None:
    for case in CASES.values():
        sender(case.provider).verifier("0123456789abcdef" * 4)


# Anything at all ------------------------------------------------------------------------------

#: what a header can hold, as it is decoded; and what it cannot, as nothing here may rely on that
TEXTS = st.one_of(
    st.text(st.characters(max_codepoint=255), max_size=60),
    st.text(max_size=20),
    st.sampled_from(["v1,", "t=,v1=", "sha256=", "v0=", "Bearer ", str(NOW), "0" * 64, "=" * 88]),
)


@every
@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(data=st.data())
def test_no_header_and_no_body_opens_a_door_or_breaks_it(case: Case, data: st.DataObject) -> None:
    """Some of the right headers, some of anything: a verdict, and the right one, each time."""
    right = case.sign(case.secret, BODY, str(NOW))
    body = data.draw(st.one_of(st.just(BODY), st.binary(max_size=40)))
    headers = {}
    for name, text in right.items():
        cut = data.draw(st.integers(0, len(text)))
        junk = data.draw(TEXTS)
        choices = [text, junk, junk + text, text[:cut] + junk + text[cut:]]
        headers[name] = data.draw(st.sampled_from(choices))
    fault = case.fault(headers, body)
    if headers == right and (body == BODY or not case.covers_body):
        assert fault is None
    elif body != BODY and case.covers_body:
        assert isinstance(fault, str)
    elif fault is None:  # junk around a signature that is there as a whole
        assert any(part in headers[case.header] for part in _proofs(right[case.header]))


def _proofs(header: str) -> list[str]:
    """The signatures in a right header, without what stands around them."""
    return re.findall(r"[A-Za-z0-9+/]{30,}", header)
