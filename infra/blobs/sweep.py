"""Deletes the blobs that no record needs any more.

1. list the blobs of days that are old enough: nothing new is stored there
2. read every record of the app, and keep the blobs that it mentions
3. read what has been written during 2: a pointer moves to another record by being appended
4. delete the others

A record needs a blob as long as the log keeps the record: a run's state, its history (from which it
is rewound or forked), a command, an effect, a dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.infra.log.ports import Backend
from surefoot.infra.runtime.settings import Settings
from surefoot.schemas.codec.payload_fields import is_concealed
from surefoot.schemas.pointer import day_of, mentions
from surefoot.state.errors import ConfigError, KeyMissing
from surefoot.state.names.topics import DAY_MS
from surefoot.state.ports.blobs import Blobs

#: topics that never contain pointers
_WITHOUT = (".stream", ".tasks")

StatePartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Swept:
    """Result of a sweep, for the blobs that are old enough."""

    kept: int
    deleted: int
    deleted_bytes: int


async def sweep(
    settings: Settings,
    backend: Backend,
    blobs: Blobs,
    *,
    now_ms: int,
    keep_days: int,
    dry_run: bool,
) -> Swept:
    """Sweep. Skips blobs stored less than `keep_days` days ago.

    Raises: ConfigError — the log has no topic of this app; KeyMissing — a record cannot be opened,
    and nothing was deleted; Unavailable — some may have been deleted.
    Under cancellation: some may have been deleted; as after Unavailable, the next sweep continues.
    """
    first_kept = day_of(now_ms - keep_days * DAY_MS)
    old = {key: size async for key, size in blobs.keys() if key < first_kept}  # noqa: SIM118
    needed = await _mentioned(settings.app, backend)
    gone = sorted(old.keys() - needed)
    if not dry_run:
        for key in gone:
            await blobs.delete(key)
    return Swept(len(old) - len(gone), len(gone), sum(old[key] for key in gone))


async def _mentioned(app: str, backend: Backend) -> set[str]:
    """Return the keys of the blobs that any record of the app mentions."""
    async with backend.topics() as topics:
        names = [name for name in await topics.names() if name.startswith(f"{app}.")]
        counts = await topics.partitions(names)
    counts = {name: count for name, count in counts.items() if not name.endswith(_WITHOUT)}
    if not counts:
        raise ConfigError(
            "SF3004",
            f"{backend.name} has no topic of the app {app!r}; check SUREFOOT_APP and the log's "
            "address. Nothing was deleted",
        )
    offsets = backend.offsets()
    try:
        positions: dict[StatePartition, int] = {}
        for topic, count in counts.items():
            begins = await offsets.begins(topic, range(count))
            positions |= {(topic, partition): begins[partition] for partition in begins}
        found: set[str] = set()
        for _ in ("all that there is", "what has come meanwhile"):
            ends: dict[StatePartition, int] = {}
            for topic, count in counts.items():
                until = await offsets.ends(topic, range(count))
                ends |= {(topic, partition): until[partition] for partition in until}
            for topic in counts:
                found |= await _read(backend, topic, positions, ends)
        return found
    finally:
        await offsets.stop()


async def _read(
    backend: Backend,
    topic: str,
    positions: dict[StatePartition, int],
    ends: dict[StatePartition, int],
) -> set[str]:
    """Return what records before `ends` mention; advances the positions."""
    found: set[str] = set()
    lookups = backend.lookups(topic)
    try:
        for place in [place for place in ends if place[0] == topic]:
            while positions[place] < ends[place]:
                records, positions[place] = await lookups.page(
                    place[1], positions[place], ends[place], lambda _: True
                )
                for record in records:
                    if is_concealed(record.value):
                        raise KeyMissing(
                            "SF2090",
                            f"{topic} has encrypted records that cannot be opened here, which may "
                            "need blobs; name a file with their keys in SUREFOOT_ENCRYPTION. "
                            "Nothing was deleted",
                        )
                    found |= mentions(record.value or b"")
    finally:
        await lookups.stop()
    return found
