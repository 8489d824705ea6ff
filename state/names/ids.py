"""Ids of runs: which ones there are, and how any name from outside becomes one."""

from __future__ import annotations

import hashlib
import re

from surefoot.state.errors import BadArgument

#: of a run_id, whole
RUN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:~=+-]{0,255}$"


_RUN_ID = re.compile(RUN_ID_PATTERN)


RUN_ID_MAX = 256


#: of a name from outside: what a run_id made of it does not have, and how much of it can be read
_UNREADABLE = re.compile(r"[^A-Za-z0-9._:+-]+")


_READABLE_MAX = 80


#: how much of it stands in the history of its run
_TOLD_MAX = 500


def check_run_id(run_id: object) -> str:
    """Return `run_id` when it can name a run; ValueError says what is allowed otherwise."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise BadArgument(
            "SF2004",
            "run_id must be 1 to 256 characters of A-Z a-z 0-9 . _ : ~ = + - and begin with a "
            f"letter or a digit; got {str(run_id)[:80]!r}",
        )
    return run_id


def run_id_for(name: str, *, most: int = RUN_ID_MAX) -> str:
    """The run_id of what is called so outside: the same name is the same run. Pure.

    A name that can be a run_id is one. Any other becomes what can be read of it, and a digest of
    all of it: 128 bits of SHA-256, so that neither two of these meet, nor one of them and a name
    that was a run_id from the beginning, unless somebody has computed it. It has no `=` and no `~`,
    by which runs share a partition (state.names.partitioner).

    Args:    most: characters that it may have
    Raises:  BadArgument — it is empty
    """
    if not name or (_RUN_ID.fullmatch(name) and len(name) <= most):
        return check_run_id(name)
    return _made_of(name)


def told_by(name: str, run_id: str) -> str | None:
    """What the history of a run says of where it comes from; None: its run_id does."""
    return None if name == run_id else name[:_TOLD_MAX].encode("utf-8", "replace").decode()


def _made_of(name: str) -> str:
    readable = _UNREADABLE.sub("-", name[:_READABLE_MAX]).strip("-._:+")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{readable}-{digest}" if readable else digest
