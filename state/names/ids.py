"""Run ids: which ones are valid, and how any outside name becomes one."""

from __future__ import annotations

import hashlib
import re

from surefoot.state.errors import BadArgument

#: matches a whole run_id
RUN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:~=+-]{0,255}$"


_RUN_ID = re.compile(RUN_ID_PATTERN)


RUN_ID_MAX = 256


#: characters of an outside name that are replaced, and how much of it stays readable
_UNREADABLE = re.compile(r"[^A-Za-z0-9._:+-]+")


_READABLE_MAX = 80


#: how much of an outside name the run's history keeps, in characters
_TOLD_MAX = 500


def check_run_id(run_id: object) -> str:
    """Return `run_id` if it can name a run. Raises BadArgument, a ValueError, with what can."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise BadArgument(
            "SF2004",
            "run_id must be 1 to 256 characters of A-Z a-z 0-9 . _ : ~ = + - and begin with a "
            f"letter or a digit; got {str(run_id)[:80]!r}",
        )
    return run_id


def run_id_for(name: str, *, most: int = RUN_ID_MAX) -> str:
    """Return the run_id for an outside name: the same name is the same run. Pure.

    A name that is a valid run_id stays as it is. Any other becomes its readable part and a digest
    of all of it: 128 bits of SHA-256, so that no two of them collide, nor one of them with a name
    that was a run_id all along, unless somebody computes such a name. It has no `=` and no `~`, by
    which runs share a partition (state.names.partitioner).

    Args:    most: longest result, in characters
    Raises:  BadArgument - the name is empty
    """
    if not name or (_RUN_ID.fullmatch(name) and len(name) <= most):
        return check_run_id(name)
    return _made_of(name)


def told_by(name: str, run_id: str) -> str | None:
    """Return what a run's history says about its origin; None if its run_id says it."""
    return None if name == run_id else name[:_TOLD_MAX].encode("utf-8", "replace").decode()


def _made_of(name: str) -> str:
    readable = _UNREADABLE.sub("-", name[:_READABLE_MAX]).strip("-._:+")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{readable}-{digest}" if readable else digest
