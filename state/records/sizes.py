"""Sizes of records as a broker counts them."""

from __future__ import annotations

from surefoot.state.ports.log import ProducerRecord


def record_size(out: ProducerRecord) -> int:
    """Return the size of a record as the broker counts it, to within a few bytes."""
    headers = sum(len(name) + len(value or b"") + 4 for name, value in out.headers)
    return len(out.key or b"") + len(out.value or b"") + headers + 32
