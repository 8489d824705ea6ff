"""What somebody who may not see payloads is shown of an answer. Pure.

The fields that are shown are listed, and all others are not: inputs, results, what a run carries,
its plan's texts, the words of a failure. So a field that is new is withheld until somebody has
thought about it.
"""

from __future__ import annotations

from typing import Any, Final

from surefoot.state.names.roles import ROLES, Role

#: in place of a value
WITHHELD: Final = "[withheld]"

#: fields that say which run, where it stands and since when, but nothing of what it works on. What
#: is in such a field is looked at in the same way
_SHOWN: Final = frozenset(
    # of a run, its wait, its memory and its failure
    "agent "  # noqa: SIM905  (a list reads worse)
    "approved archived attempt branch branches by child children code created_ms decided "
    "due_ms ending epoch failure fork forks kind limit memory mode name names need next_step "
    "number on_timeout parent plan question run_id seq since_ms started_ms state status step then "
    "thread type updated_ms version wait "
    # of its history and its place in the log
    "at_ms before effects end event events id offset older partition resume source start "
    "timestamp_ms topic "
    # of lists, of commands' answers, and of what is in the way
    "accepted agents attempts backlog body_bytes commands data dead_letters deliveries delivery do "
    "error hint matches next outcome refused retried runs tasks unanswered unrecorded value_bytes "
    "verified workers "
    # of views
    "about lag money ms person tokens total".split()
)
#: numbers by names of the author's
_COUNTED: Final = frozenset({"spent", "granted"})


def parse_payload_roles(text: str) -> frozenset[Role]:
    """Parse `SUREFOOT_PAYLOAD_ROLES`: roles, separated by commas.

    Raises: ValueError — names the entry that is no role.
    """
    named = {word for word in (word.strip() for word in text.split(",")) if word}
    found = frozenset(role for role in ROLES if role in named)
    if unknown := named - found:
        raise ValueError(f"{min(unknown)!r} must be a role: {', '.join(ROLES)}")
    return found


def withhold(value: Any) -> Any:
    """Return JSON values without what may be a payload's, or tells of one.

    Such a value is WITHHELD, a list of them has it in it, and nothing stays nothing.
    """
    if isinstance(value, dict):
        return {name: _field(name, each) for name, each in value.items()}
    if isinstance(value, list):
        return [withhold(each) for each in value]
    return value


def _field(name: str, value: Any) -> Any:
    if name in _COUNTED and isinstance(value, dict):
        return {what: n if isinstance(n, int | float) else WITHHELD for what, n in value.items()}
    if name in _SHOWN:
        return withhold(value)
    if value is None or value == []:
        return value
    return [WITHHELD] if isinstance(value, list) else WITHHELD
