"""Durations as authors write them."""

from __future__ import annotations

import re

from surefoot.state.errors import ConfigError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(value: str | float | None) -> float | None:
    """Return the seconds in "250ms", "30s", "2m", "1h", "2d" or a plain number; None stays None.

    Raises: ConfigError - not a duration, or not above 0
    """
    if value is None:
        return None
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ConfigError(
                "SF1111", f'a duration must look like "30s", "2m" or "1h"; got {value!r}'
            )
        value = float(match[1]) * _UNIT_S[match[2]]
    if not value > 0:
        raise ConfigError("SF1111", f"a duration must be above 0 seconds; got {value!r}")
    return float(value)
