"""The latest records of one key in a partition, read backwards from its end.

A log can only be read forwards, so it is read in pieces, each before the previous one and twice as
long: recent records are found in the first piece, and rare ones need few requests.
"""

from __future__ import annotations

from collections.abc import Callable

from surefoot.infra.log.ports import Lookups
from surefoot.state.ports.log import ConsumerRecord

#: longest piece, and how many offsets one page scans
_PIECE = 5_000
_LOOKED_AT = 20_000


async def latest_before(
    lookups: Lookups,
    partition: int,
    begin: int,
    end: int,
    wanted: Callable[[bytes | None], bool],
    limit: int,
) -> tuple[list[ConsumerRecord], int | None]:
    """Return at most `limit` records from [begin, end), latest first, and the next page's `end`.

    None as `end`: there are no more."""
    found: list[ConsumerRecord] = []
    piece, looked_at = limit, 0
    while begin < end and len(found) < limit and looked_at < _LOOKED_AT:
        start = max(begin, end - piece)
        found = [*await _between(lookups, partition, start, end, wanted), *found]
        looked_at += end - start
        end, piece = start, min(piece * 2, _PIECE)
    if len(found) > limit:
        found = found[-limit:]
        end = found[0].offset
    return found[::-1], end if begin < end else None


async def _between(
    lookups: Lookups, partition: int, start: int, end: int, wanted: Callable[[bytes | None], bool]
) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    while start < end:
        page, start = await lookups.page(partition, start, end, wanted)
        found += page
    return found


def source_of(record: ConsumerRecord) -> str | None:
    """Return what the record answers: topic/partition/offset of a command or task, or the timer."""
    source = next((value for name, value in record.headers if name == "sf-src"), None)
    return None if source is None else source.decode("utf-8", "backslashreplace")
