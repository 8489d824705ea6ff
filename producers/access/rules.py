"""The table of requests: the role that each needs, and its name in the audit trail. Pure.

It has those of the gateway and those of the views. A request that is not in it needs the role
admin. tests/unit/producers/test_access.py walks every route.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from surefoot.producers.dashboard import PAGES
from surefoot.state.machine.commands import COMMANDS
from surefoot.state.names.roles import Role

#: the action of a request that changes nothing; recorded only when it is refused
READ: Final = "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a request needs."""

    #: None: nobody has to sign in
    role: Role | None
    action: str = READ
    #: whether the answer goes on until the account ends
    streams: bool = False
    #: whether the answer has nothing of a run's payloads, so that it is the same for everybody
    plain: bool = False


_OPEN = Rule(role=None)
_VIEW = Rule(role="viewer")
_PLAIN = Rule(role="viewer", plain=True)
_WATCH = Rule(role="viewer", streams=True)
_NOT_LISTED = Rule(role="admin", action="other")

#: by method and path of the route; `WS` is a WebSocket; {verb} is any command to a run
RULES: Final[Mapping[str, Rule]] = {
    # signed by their senders
    "POST /webhooks/{source}": _OPEN,
    # asked for by machines that have no account
    "GET /health": _OPEN,
    "GET /ready": _OPEN,
    "GET /ready/{agent}": _OPEN,
    # files, without anything of a run
    "GET /": _OPEN,
    "GET /ui/": _OPEN,
    **{f"GET /ui/{page}": _OPEN for page in PAGES},
    "GET /ui/{path:path}": _OPEN,
    "POST /ui/demo/crash": Rule(role="admin", action="crash"),
    "POST /session": Rule(role="viewer", action="sign in", plain=True),
    "GET /session": _PLAIN,
    "POST /session/end": Rule(role="viewer", action="sign out", plain=True),
    "GET /openapi.json": _PLAIN,
    "GET /agents": _PLAIN,
    "GET /agents/{agent}": _PLAIN,
    "GET /agents/{agent}/activity": _PLAIN,
    "GET /runs/{agent}": _VIEW,
    "POST /runs/{agent}": Rule(role="operator", action="start"),
    "POST /runs/{agent}/retry-failed": Rule(role="operator", action="retry-failed"),
    "GET /runs/{agent}/{run_id}": _VIEW,
    "GET /runs/{agent}/{run_id}/why": _VIEW,
    "GET /runs/{agent}/{run_id}/history": _VIEW,
    "GET /runs/{agent}/{run_id}/events": _WATCH,
    "GET /effects/{effect_id}": _VIEW,
    "GET /events": _WATCH,
    "GET /events/{agent}": _WATCH,
    "WS /ws/runs/{agent}/{run_id}/events": _WATCH,
    "WS /ws/events": _WATCH,
    "WS /ws/events/{agent}": _WATCH,
    "GET /deliveries": _VIEW,
    "GET /schedules": _PLAIN,
    "POST /schedules/{agent}/{schedule}/{do}": Rule(role="operator", action="schedule {do}"),
    "GET /dead-letters": _VIEW,
    "GET /topics": _PLAIN,
    "GET /views/{agent}/summary": _PLAIN,
    "GET /views/{agent}/attention": _PLAIN,
    "GET /views/{agent}/windows": _PLAIN,
    "GET /views/{agent}/runs/{run_id}": _PLAIN,
    # of one instance of `surefoot views`, asked for by another
    "GET /parts/{agent}/summary": _PLAIN,
    "GET /parts/{agent}/attention": _PLAIN,
    "GET /parts/{agent}/windows": _PLAIN,
    "GET /parts/{agent}/run": _PLAIN,
    "GET /parts/{agent}/digest": _PLAIN,
}
_COMMAND = "POST /runs/{agent}/{run_id}/{verb}"


def rule_for(request: str, params: Mapping[str, str]) -> Rule:
    """Return the rule of a request, by method and path of its route.

    `params` are those of the path.
    """
    if request == _COMMAND:
        row = COMMANDS.get(params["verb"])
        return _VIEW if row is None else Rule(role=row.role, action=row.word)
    return RULES.get(request, _NOT_LISTED)
