"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

AgentFile = Annotated[
    Path,
    typer.Argument(metavar="AGENT.py", help="File, or module, that defines one agent or several."),
]
AgentFiles = Annotated[
    list[Path],
    typer.Argument(metavar="AGENT.py...", help="Files, or modules, that define the agents."),
]
AgentName = Annotated[
    str,
    typer.Argument(
        metavar="AGENT",
        help="Name of the agent, or the file or module (shop.refunds) of a single agent.",
    ),
]
Processes = Annotated[int, typer.Option(min=1, max=64, help="How many worker processes.")]
Slot = Annotated[int | None, typer.Option(hidden=True, min=0)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID")]
GatewayUrl = Annotated[str, typer.Argument(metavar="URL", help="Address of the gateway.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME")]
CommandIdOption = Annotated[
    str | None,
    typer.Option("--id", help="Id of this command; repeating it with the same id is safe."),
]
By = Annotated[str | None, typer.Option(help="Who asks; kept in the history.")]
WaitOption = Annotated[
    float, typer.Option("--wait", min=0.1, max=600, help="Seconds to wait for the run's answer.")
]
EffectsOption = Annotated[
    Literal["suppress", "re-emit"],
    typer.Option(help="Effects that were already sent: not again, or again with new keys."),
]
Repeat = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Name of a ctx.once that may run again; repeat the option for several.",
    ),
]
