"""A TLS context for clients whose certificates are renewed while the process runs.

cert-manager, Vault's agent and Strimzi replace the files of a certificate every few hours or days.
A context that was read once would show an expired one at the next connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import structlog

from surefoot.state.errors import ConfigError

log = structlog.get_logger(__name__)

#: of a file: when it was written, its number and its size
_Look = tuple[int, int, int]


class RenewedContext(ssl.SSLContext):
    """Looks at its files at each new connection, and reads them again when they are others.

    Files that do not fit, because they are being replaced or are wrong, are told in the log, and
    the last ones that did serve on. An authority that was trusted once is trusted until the process
    ends: OpenSSL forgets none. Make one with `client_context`.
    """

    _files: Sequence[Path]
    _read: Callable[[ssl.SSLContext], None]
    _seen: list[_Look | None]
    _told: str | None = None

    def follow(self, files: Sequence[Path], read: Callable[[ssl.SSLContext], None]) -> None:
        """Read them now, and again when one has changed.

        Raises: OSError, from `read`."""
        self._files, self._read = files, read
        self._seen = [_look_at(path) for path in files]
        read(self)

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        self._renew()
        return super().wrap_bio(*args, **options)

    def _renew(self) -> None:
        found = [_look_at(path) for path in self._files]
        if found == self._seen:
            return
        try:
            self._read(_empty())  # first aside: half of a pair would stay behind
            self._read(self)
        except (OSError, ConfigError) as error:  # ssl.SSLError is the first; no password the second
            if str(error) != self._told:
                log.warning("certificates_not_renewed", error=str(error))
            self._told = str(error)
            return
        log.info("certificates_renewed")
        self._seen, self._told = found, None


def client_context(
    cafile: Path | None,
    certfile: Path | None,
    keyfile: Path | None,
    password: Callable[[], str],
) -> RenewedContext:
    """Return a context that trusts `cafile`, or the system's authorities, and shows `certfile`.

    `password` is called if the key is encrypted.

    Raises: OSError — a file cannot be read, or is none; whatever `password` raises.
    """
    files = [path for path in (cafile, certfile, keyfile) if path is not None]

    def read(context: ssl.SSLContext) -> None:
        if cafile is not None:
            context.load_verify_locations(cafile)
        if certfile is not None:
            context.load_cert_chain(certfile, keyfile, password=password)

    made = _empty()
    if cafile is None:
        made.load_default_certs(ssl.Purpose.SERVER_AUTH)
    made.follow(files, read)
    return made


def _empty() -> RenewedContext:
    """As `ssl.create_default_context` makes them, without authorities."""
    context = RenewedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags, context.options = _usual()
    return context


@cache
def _usual() -> tuple[ssl.VerifyFlags, ssl.Options]:
    usual = ssl.create_default_context()  # reads the system's authorities: once is enough
    return usual.verify_flags, usual.options


def _look_at(path: Path) -> _Look | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
