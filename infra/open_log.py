"""Opens the log that the settings name: Kafka, or the embedded one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from surefoot.infra.embedded.backend import EMBEDDED, EmbeddedBackend
from surefoot.infra.embedded.file import Access
from surefoot.infra.encryption.backend import EncryptedBackend
from surefoot.infra.encryption.envelope import Envelope
from surefoot.infra.encryption.keyring import load_keyring
from surefoot.infra.kafka.backend import KAFKA, KafkaBackend
from surefoot.infra.log.ports import Backend, Capabilities
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import ConfigError
from surefoot.state.ports.clock import Clock


@asynccontextmanager
async def open_backend(
    settings: Settings, clock: Clock, *, owner: bool = False, access: Access = "write"
) -> AsyncIterator[Backend]:
    """With `owner`, for a process that runs agents: an embedded log has one such process, which
    makes the file. `access` is what else may be done to the file.

    Raises: ConfigError — no Kafka is named; or the file cannot be used, is not there, or has an
    owner already; or the keys cannot be used; Unavailable — who wraps the keys does not answer.
    """
    if settings.embedded_path is None:
        settings.kafka()  # says what is missing
    envelope = Envelope(settings.app, await load_keyring(settings))
    if settings.embedded_path is None:
        yield EncryptedBackend(KafkaBackend(settings, clock), envelope)
        return
    access = "make" if owner else access
    async with EmbeddedBackend.opened(settings, clock, owner=owner, access=access) as backend:
        yield EncryptedBackend(backend, envelope)


def capabilities(settings: Settings) -> Capabilities:
    """Of the log that the settings name, without opening it."""
    return KAFKA if settings.embedded_path is None else EMBEDDED


def require_many_processes(settings: Settings, command: str) -> None:
    """Raises ConfigError where one process has to do everything."""
    if not capabilities(settings).many_processes:
        raise ConfigError(
            "SF1005",
            f"`surefoot {command}` needs Kafka: an embedded log allows one process; run "
            "`surefoot serve AGENT.py`, or set SUREFOOT_BOOTSTRAP_SERVERS instead of SUREFOOT_LOG",
        )
