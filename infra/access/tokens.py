"""API tokens on the log: followed by a gateway, written and read by the command line."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

import structlog

from surefoot.consumers.partition.ending import never_cut_short
from surefoot.infra.log.ports import Appender, Backend
from surefoot.infra.readers.runs import bounded
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.codec import UndecodableError
from surefoot.state.access.accounts import (
    SECRET_PREFIX,
    AccessToken,
    Account,
    read_token,
    revocation_out,
    secret_digest,
    token_out,
)
from surefoot.state.errors import StateError, Unavailable
from surefoot.state.names.topics import access_topic
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.telemetry import metrics

log = structlog.get_logger(__name__)

_SECRET_BYTES = 32
#: how often an open stream's account is compared with the clock
_LOOK_S = 5.0
_RETRY_S = 1.0


def new_token_secret() -> str:
    """Make a secret of 256 random bits."""
    return SECRET_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


class TokenTable:
    """The tokens of an app, by name, as their records say. The last record of a name holds."""

    def __init__(self) -> None:
        self.tokens: dict[str, AccessToken] = {}
        self._by_digest: dict[bytes, AccessToken] = {}

    def apply(self, record: ConsumerRecord) -> None:
        """Take a record in. One that cannot be read revokes the token of its name."""
        name = (record.key or b"").decode("utf-8", "replace")
        if (former := self.tokens.pop(name, None)) is not None:
            self._by_digest.pop(former.digest, None)
        if record.value is None:
            return
        try:
            token = read_token(record.value)
        except UndecodableError as error:
            log.error("access_record_unreadable", account=name, reason=str(error))  # noqa: TRY400
            return
        self.tokens[name] = token
        self._by_digest[token.digest] = token

    def find(self, secret: str) -> AccessToken | None:
        """Return the token with this secret.

        How long it takes says nothing about a digest that somebody could come closer to: nobody can
        choose a secret by its digest.
        """
        return self._by_digest.get(secret_digest(secret))


class FollowedAccounts:
    """Implements Accounts: the tokens on the log, as of now.

    While the log is away, the last known tokens hold. `start` and `stop` bracket its use.
    """

    def __init__(self, settings: Settings, backend: Backend, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._topic = access_topic(settings.app)
        self._table = TokenTable()
        self._offsets = backend.offsets()
        self._tail = backend.tail(self._topic, self._apply, from_end=False)
        self._known = asyncio.Event()
        #: set at the next change
        self._changed = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start following in the background. Safe to call twice."""
        self._tail.start()
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())

    async def sign_in(self, credential: str) -> Account | None:
        async with bounded(self._settings.deadlines.read_s):
            await self._known.wait()
        token = self._table.find(credential)
        now_ms = self._clock.now_ms()
        if token is None or token.account.expired(now_ms):
            return None
        metrics.ACCOUNT_USED.set(now_ms / 1000, token.account.name)
        return token.account

    async def ended(self, account: Account) -> None:
        if account.issuer is not None:
            await until_expired(account, self._clock)
            return
        while True:
            token = self._table.tokens.get(account.name)
            if token is None or token.account != account or account.expired(self._clock.now_ms()):
                return
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _apply(self, record: ConsumerRecord) -> None:
        self._table.apply(record)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _load(self) -> None:
        """Note when everything that was written before the start is known."""
        while not self._known.is_set():
            try:
                ends = await self._offsets.ends(self._topic, range(self._settings.partitions))
                for partition, end in ends.items():
                    await self._tail.reach(partition, end)
                self._known.set()
            except (Unavailable, StateError) as error:
                log.warning("accounts_not_known", reason=str(error))
                await asyncio.sleep(_RETRY_S)

    @never_cut_short
    async def stop(self) -> None:
        """Close every client. Safe to call twice."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        await self._tail.stop()
        await self._offsets.stop()


async def until_expired(account: Account, clock: Clock, *, late_ms: int = 0) -> None:
    """Wait until an account that somebody else vouches for has expired, and `late_ms` longer."""
    while not account.expired(clock.now_ms() - late_ms):  # noqa: ASYNC110  (it polls)
        await asyncio.sleep(_LOOK_S)


class TokenBook:
    """Reads and writes the tokens of an app.

    Every method raises Unavailable if the log does not answer; a token may then have been written.
    """

    def __init__(self, settings: Settings, backend: Backend) -> None:
        self._settings = settings
        self._topic = access_topic(settings.app)
        self._offsets = backend.offsets()
        self._lookups = backend.lookups(self._topic)
        self._appender: Appender = backend.appender()

    async def tokens(self) -> Sequence[AccessToken]:
        """Return every token that is not revoked, expired ones included, by name."""
        table, every = TokenTable(), range(self._settings.partitions)
        async with bounded(self._settings.deadlines.send_s):
            begins = await self._offsets.begins(self._topic, every)
            ends = await self._offsets.stables(self._topic, every)
            for partition in every:
                start = begins[partition]
                while start < ends[partition]:
                    page, start = await self._lookups.page(
                        partition, start, ends[partition], lambda _: True
                    )
                    for record in page:
                        table.apply(record)
        return [table.tokens[name] for name in sorted(table.tokens)]

    async def write(self, token: AccessToken) -> None:
        """Write a token in place of any of its name."""
        out = token_out(self._settings.app, self._settings.partitions, token)
        send_s = self._settings.deadlines.send_s
        await self._appender.append(out, f"the token {token.account.name}", deadline_s=send_s)

    async def revoke(self, name: str) -> None:
        """Revoke the token of that name, whether there is one or not."""
        out = revocation_out(self._settings.app, self._settings.partitions, name)
        send_s = self._settings.deadlines.send_s
        await self._appender.append(out, f"the end of the token {name}", deadline_s=send_s)

    @never_cut_short
    async def stop(self) -> None:
        """Close every client. Safe to call twice."""
        await self._lookups.stop()
        await self._offsets.stop()
        await self._appender.stop()
