"""`surefoot runs`: its commands, in the order in which help lists them."""

from __future__ import annotations

from surefoot.commands.groups import group
from surefoot.commands.runs import operate, show, start, versions, watch

app = group("List, show, start and steer runs.")
for _part in (show, start, watch, versions, operate):
    app.add_typer(_part.app)
