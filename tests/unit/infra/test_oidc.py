"""Tokens of an identity provider: which sign in, as whom, and what the provider is asked for."""

from __future__ import annotations

import asyncio
import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from surefoot.infra.access import tokens as tokens_module
from surefoot.infra.access.oidc import OidcAccounts, TokensOrOidc
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.access.accounts import Account
from surefoot.state.access.claims import ClaimNames, account_of
from surefoot.state.errors import ConfigError, Unavailable

ISSUER = "https://login.example.com/realms/shop"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
CURVE = ECKey.generate_key("P-256", {"kid": "two", "use": "sig"})
STRANGE = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})


class StoppedClock(SystemClock):
    now_s = 1_000_000_000

    def now_ms(self) -> int:
        return self.now_s * 1000

    def monotonic_s(self) -> float:
        return float(self.now_s)


class Provider:
    """Publishes keys; `asked` has the paths of the requests."""

    def __init__(self) -> None:
        self.keys: list[Any] = [KEY, CURVE]
        self.issuer, self.keys_at = ISSUER, "https://login.example.com/keys"
        self.asked: list[str] = []
        self.away = False

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if self.away:
            raise httpx.ConnectError("nobody is there")
        if request.url.path.endswith("/.well-known/openid-configuration"):
            told = {"issuer": self.issuer, "jwks_uri": self.keys_at}
            return httpx.Response(200, json=told)
        return httpx.Response(200, json=KeySet(self.keys).as_dict(private=False))


class Site:
    def __init__(self, **settings: str) -> None:
        self.clock, self.provider = StoppedClock(), Provider()
        chosen = load_settings(
            auth="oidc", oidc_issuer=ISSUER, oidc_audience="surefoot", **settings
        )
        transport = httpx.MockTransport(self.provider.answer)
        self.accounts = OidcAccounts(chosen, self.clock, transport)

    def token(self, key: Any = KEY, alg: str = "RS256", *, kid: bool = True, **changed: Any) -> str:
        """A good token, but for these claims; None: without the claim."""
        claims = {
            "iss": ISSUER,
            "aud": ["surefoot", "another"],
            "exp": self.clock.now_s + 300,
            "sub": "ann",
            "surefoot_role": "operator",
            **changed,
        }
        told = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": alg} | ({"kid": key.kid} if kid else {})
        return jwt.encode(header, told, key, algorithms=[alg])

    async def signed(self, *args: Any, **changed: Any) -> Account | None:
        return await self.accounts.sign_in(self.token(*args, **changed))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    await made.accounts.stop()


async def test_a_token_of_the_provider_signs_in(site: Site) -> None:
    ann = Account(name="ann", role="operator", expires_ms=1_000_000_300_000, issuer=ISSUER)
    for key, alg in ((KEY, "RS256"), (KEY, "PS256"), (CURVE, "ES256")):
        assert await site.signed(key, alg) == ann
    assert site.provider.asked == ["/realms/shop/.well-known/openid-configuration", "/keys"]


async def test_a_token_that_is_not_for_this_gateway_does_not(site: Site) -> None:
    assert await site.signed() is not None
    now_s = site.clock.now_s
    for changed in (
        {"iss": "https://evil.example"},
        {"iss": f"{ISSUER}/"},
        {"iss": None},
        {"aud": "another"},
        {"aud": None},
        {"exp": now_s - 31},
        {"exp": None},
        {"nbf": now_s + 31},
        {"iat": now_s + 31},
        {"sub": None},
        {"sub": "ann (command line)"},
        {"surefoot_role": None},
        {"surefoot_role": "root"},
    ):
        assert await site.signed(**changed) is None, changed
    assert await site.signed(exp=now_s - 29) is not None  # clocks differ


async def test_a_signature_has_to_be_the_providers(site: Site) -> None:
    good, site.provider.keys = site.token(), [KEY]
    head, body, signature = good.split(".")
    public = hmac.new(KEY.as_pem(private=False), digestmod="sha256")
    told = "eyJhbGciOiJIUzI1NiIsImtpZCI6Im9uZSJ9." + body
    public.update(told.encode())
    shared = urlsafe_b64encode(public.digest()).decode().rstrip("=")
    other = site.token(sub="bob").split(".")[1]
    for forged in (
        site.token(STRANGE),
        f"{told}.{shared}",  # the public key as a shared secret
        f"{head}.{other}.{signature}",
        f"{head}.{body}.",
        f"eyJhbGciOiJub25lIiwia2lkIjoib25lIn0.{body}.",  # alg none
        site.token(kid=False),  # whose key would be a guess
        site.token(KEY, "RS512"),
        "a.b.c",
        "é.é.é",
        site.token(much="x" * 20_000),
    ):
        assert await site.accounts.sign_in(forged) is None, forged[:60]
    assert await site.accounts.sign_in(good) is not None


async def test_a_new_key_is_found_and_nonsense_asks_for_none(site: Site) -> None:
    new = RSAKey.generate_key(2048, {"kid": "new", "use": "sig"})
    assert await site.signed() is not None
    site.provider.keys = [new]
    for _ in range(5):
        assert await site.signed(new) is None  # asked a moment ago
    assert len(site.provider.asked) == 2
    site.clock.now_s += 60
    assert await site.signed(new) is not None
    assert len(site.provider.asked) == 4
    assert await site.signed() is None  # its key is withdrawn
    assert len(site.provider.asked) == 4


async def test_known_keys_count_while_the_provider_is_away(site: Site) -> None:
    site.provider.away = True
    for _ in range(3):
        with pytest.raises(Unavailable, match="SF5084"):
            await site.signed()
    assert len(site.provider.asked) == 1
    site.provider.away = False
    site.clock.now_s += 2
    assert await site.signed() is not None
    site.provider.away = True
    site.clock.now_s += 3601
    assert await site.signed() is not None
    assert len(site.provider.asked) == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [("issuer", "https://evil.example"), ("keys_at", "http://login.example.com/keys")],
)
async def test_a_document_that_cannot_be_trusted_gives_no_keys(
    site: Site, name: str, value: str
) -> None:
    setattr(site.provider, name, value)
    with pytest.raises(Unavailable):
        await site.signed()
    assert len(site.provider.asked) == 1


async def test_an_account_ends_with_its_token(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "_LOOK_S", 0.01)
    account = await site.signed()
    assert account is not None
    ending = asyncio.create_task(site.accounts.ended(account))
    site.clock.now_s += 330
    await ending


async def test_each_kind_of_token_goes_to_who_knows_it(site: Site) -> None:
    class Tokens:
        async def sign_in(self, credential: str) -> Account | None:
            return Account(name=credential, role="viewer")

        async def ended(self, account: Account) -> None:
            assert account.issuer is None

    both = TokensOrOidc(Tokens(), site.accounts)  # type: ignore[arg-type]
    ours = await both.sign_in("sft_x")
    assert ours == Account(name="sft_x", role="viewer")
    await both.ended(ours)
    theirs = await both.sign_in(site.token())
    assert theirs is not None
    assert theirs.issuer == ISSUER
    site.clock.now_s += 330
    await both.ended(theirs)


@pytest.mark.parametrize(
    ("claims", "role", "agents"),
    [
        ({"groups": "admin"}, "admin", ("*",)),
        ({"groups": ["staff", "viewer"]}, "viewer", ("*",)),
        ({"groups": ["operator", "approver"]}, None, ()),
        ({"groups": {"admin": True}}, None, ()),
        ({"groups": []}, None, ()),
    ],
)
def test_the_role_is_one_of_a_list(
    claims: Mapping[str, Any], role: str | None, agents: tuple[str, ...]
) -> None:
    names = ClaimNames(name="sub", role="groups", agents=None)
    account = account_of({"sub": "ann", "exp": 1, "iss": ISSUER, **claims}, names)
    assert (account and account.role) == role
    assert account is None or account.agents == agents


@pytest.mark.parametrize(
    ("claim", "agents"),
    [(["a", "b-*"], ("a", "b-*")), ("a b-*", ("a", "b-*")), (None, ()), (7, ()), ([7], ())],
)
def test_without_a_claim_of_agents_an_account_sees_none(claim: Any, agents: tuple[str]) -> None:
    names = ClaimNames(name="sub", role="role", agents="scope")
    told = {"sub": "ann", "exp": 1, "iss": ISSUER, "role": "admin", "scope": claim}
    account = account_of(told, names)
    assert account is not None
    assert account.agents == agents
    assert not account.covers("triage")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"auth": "oidc"}, "SUREFOOT_OIDC_ISSUER and SUREFOOT_OIDC_AUDIENCE"),
        ({"auth": "oidc", "oidc_issuer": ISSUER}, "SUREFOOT_OIDC_AUDIENCE"),
        ({"oidc_issuer": "http://login.example.com"}, "https://"),
        ({"oidc_issuer": "https://ann:pw@login.example.com"}, "https://"),
    ],
)
def test_what_the_provider_is_has_to_be_told(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_settings(**settings)


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "RS256", "kid": "one", "crit": 5},
        {"alg": ["RS256"], "kid": "one"},
        {"alg": "RS256", "kid": ["one"]},
        ["RS256"],
        1,
    ],
)
async def test_a_token_that_its_library_cannot_stand_is_refused(site: Site, header: Any) -> None:
    parts = (json.dumps(header).encode(), b"{}", b"signature")
    token = ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
    assert await site.accounts.sign_in(token) is None


@pytest.mark.parametrize("exp", [1e308, 10**400], ids=["float", "int"])
async def test_a_token_lasts_to_the_end_of_the_calendar_at_most(site: Site, exp: float) -> None:
    account = await site.signed(exp=exp)
    assert account is not None
    assert account.expires_ms == 253_402_300_799_000
