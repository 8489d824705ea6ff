"""Accounts of an identity provider: bearer tokens as OpenID Connect defines them.

A token is a JWT, signed by a key that the provider publishes. Keys are found through the issuer's
discovery document, kept for an hour, and fetched again for a key that is not known, once a minute
at most: whoever sends nonsense must not make the gateway ask the provider each time.
Source: OpenID Connect Discovery 1.0; RFC 7519; RFC 8725 (algorithms pinned, issuer and audience
checked)
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import structlog

from surefoot.infra.access.tokens import FollowedAccounts, until_expired
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.payload import BadPayload, parse_json
from surefoot.state.access.accounts import SECRET_PREFIX, Account
from surefoot.state.access.claims import ClaimNames, account_of
from surefoot.state.errors import ConfigError, Unavailable
from surefoot.state.ports.clock import Clock

log = structlog.get_logger(__name__)

#: asymmetric ones alone: with another, a public key could be taken for a shared secret
_ALGORITHMS = ["RS256", "PS256", "ES256"]
_LEEWAY_S = 30
_KEEP_S = 3600.0
_AGAIN_S = 60.0
#: as long as there are none
_FIRST_S = 2.0
_ANSWER_S = 5.0
#: longest token that is looked at, in characters
_TOKEN_MAX = 16_384


class OidcAccounts:
    """Implements Accounts for one issuer. For one event loop.

    Raises: ConfigError — the library is not installed.
    """

    def __init__(
        self, settings: Settings, clock: Clock, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        try:
            import joserfc  # noqa: F401, PLC0415  (an extra)
        except ImportError as error:
            raise ConfigError(
                "SF1020", "SUREFOOT_AUTH=oidc needs a library: pip install 'surefoot[oidc]'"
            ) from error
        self._issuer = settings.oidc_issuer or ""
        self._audience = settings.oidc_audience or ""
        self._names = ClaimNames(
            name=settings.oidc_name_claim,
            role=settings.oidc_role_claim,
            agents=settings.oidc_agents_claim,
        )
        self._clock = clock
        self._keys = _Keys(self._issuer, clock, transport)

    async def sign_in(self, credential: str) -> Account | None:
        from joserfc import jws, jwt  # noqa: PLC0415  (an extra)

        if len(credential) > _TOKEN_MAX:
            return None
        try:
            key_id = jws.extract_compact(credential.encode()).headers().get("kid")
            if not isinstance(key_id, str):
                return None
            keys = await self._keys.with_key(key_id)
            token = jwt.decode(credential, keys, algorithms=_ALGORITHMS)
            jwt.JWTClaimsRegistry(
                now=self._clock.now_ms() // 1000,
                leeway=_LEEWAY_S,
                iss={"essential": True, "value": self._issuer},
                aud={"essential": True, "value": self._audience},
                exp={"essential": True},
            ).validate(token.claims)
            account = account_of(token.claims, self._names)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001  (what a stranger's token does to the library)
            log.info("token_refused", reason=repr(error)[:200])
            return None
        if account is None:
            log.info("token_refused", reason="no name, or not exactly one role, in its claims")
        return account

    async def ended(self, account: Account) -> None:
        await until_expired(account, self._clock, late_ms=_LEEWAY_S * 1000)

    async def stop(self) -> None:
        """Close the client. Safe to call twice."""
        await self._keys.stop()


class _Keys:
    """The keys that the issuer publishes."""

    def __init__(
        self, issuer: str, clock: Clock, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._issuer, self._clock = issuer, clock
        self._client = httpx.AsyncClient(transport=transport, timeout=_ANSWER_S)
        self._turn = asyncio.Lock()
        #: a KeySet; of its library, which is an extra, nothing is imported up here
        self._found: Any = None
        self._fetched_s = self._tried_s = float("-inf")

    async def with_key(self, key_id: str) -> Any:
        """Return the keys: with that one, if the issuer has it.

        Raises: Unavailable — no keys are known, and the issuer does not answer.
        """
        found = self._with(key_id)
        if found is not None:
            return found
        async with self._turn:
            now_s = self._clock.monotonic_s()
            again_s = _FIRST_S if self._found is None else _AGAIN_S
            if self._with(key_id) is None and now_s - self._tried_s >= again_s:
                self._tried_s = now_s
                try:
                    self._found = await self._fetch()
                    self._fetched_s = now_s
                except (httpx.HTTPError, BadPayload, ValueError, LookupError, TypeError) as error:
                    log.warning("issuer_unavailable", issuer=self._issuer, reason=repr(error)[:300])
            if self._found is None:
                raise Unavailable("SF5084", f"the issuer {self._issuer} gives no keys")
            return self._found

    def _with(self, key_id: str) -> Any:
        """Return the keys that are known, if that one is among them and they are not old; else
        None."""
        old = self._clock.monotonic_s() - self._fetched_s >= _KEEP_S
        if self._found is None or old:
            return None
        return self._found if any(key.kid == key_id for key in self._found.keys) else None

    async def _fetch(self) -> Any:
        from joserfc.errors import JoseError  # noqa: PLC0415  (an extra)
        from joserfc.jwk import KeySet  # noqa: PLC0415

        told = await self._get(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        if told["issuer"] != self._issuer:
            raise LookupError(f"the discovery document is of {told['issuer']!r}")
        try:
            return KeySet.import_key_set(await self._get(told["jwks_uri"]))
        except JoseError as error:
            raise LookupError(str(error)) from error

    async def _get(self, url: str) -> Any:
        if httpx.URL(url).scheme != httpx.URL(self._issuer).scheme:
            raise LookupError(f"{url} is not asked for as the issuer is")
        answer = await self._client.get(url)
        answer.raise_for_status()
        return parse_json(answer.content)

    async def stop(self) -> None:
        await self._client.aclose()


class TokensOrOidc:
    """Implements Accounts: tokens of `surefoot tokens`, and those of an identity provider."""

    def __init__(self, tokens: FollowedAccounts, oidc: OidcAccounts) -> None:
        self._tokens, self._oidc = tokens, oidc

    def start(self) -> None:
        self._tokens.start()

    async def sign_in(self, credential: str) -> Account | None:
        ours = credential.startswith(SECRET_PREFIX)
        return await (self._tokens if ours else self._oidc).sign_in(credential)

    async def ended(self, account: Account) -> None:
        await (self._tokens if account.issuer is None else self._oidc).ended(account)

    async def stop(self) -> None:
        await self._tokens.stop()
        await self._oidc.stop()
