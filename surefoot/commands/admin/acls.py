"""`surefoot acls`: the rights in Kafka that the processes need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal

import typer

from surefoot.commands.groups import group
from surefoot.commands.options import AgentFiles
from surefoot.commands.output import KUBERNETES_NAME
from surefoot.infra.kafka_client.topics import names_of
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.errors import ConfigError
from surefoot.state.inspect.rights import PROCESS_KINDS, ProcessKind, Right, rights_of

app = group("Print the rights in Kafka that each kind of process needs.")

#: by kind of resource: option of kafka-acls, and Strimzi's type
_SPELLED = {
    "topic": ("--topic", "topic"),
    "group": ("--group", "group"),
    "transactional id": ("--transactional-id", "transactionalId"),
    "cluster": ("--cluster", "cluster"),
}


@app.command()
def plan(
    agent_files: AgentFiles,
    only: Annotated[
        ProcessKind | None, typer.Option("--process", help="Only for this kind of process.")
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option(
            metavar="User:NAME", help="Who gets the rights; default: User:APP-KIND for each."
        ),
    ] = None,
    output: Annotated[
        Literal["kafka-acls", "strimzi"],
        typer.Option("--output", "-o", help="Commands for a shell, or KafkaUser resources."),
    ] = "kafka-acls",
) -> None:
    """Print the least rights of each kind of process, and of `topics`, `tokens` and `doctor`.

    Connects to nothing. Name all agents that start one another's runs in one command.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    agents, settings = load_agents(agent_files), load_settings()
    names = names_of(agents)
    planned: dict[str, dict[Right, None]] = {}
    for kind in [only] if only else PROCESS_KINDS:
        who = principal or f"User:{settings.app}-{kind}"
        rights = rights_of(kind, settings.app, names, agents)
        planned.setdefault(who, {}).update(dict.fromkeys(rights))
    server = settings.bootstrap_servers or '"$BOOTSTRAP_SERVERS"'
    written: dict[str, Callable[[str, Sequence[Right]], Iterable[str]]] = {
        "kafka-acls": lambda who, rights: _commands(server, who, rights),
        "strimzi": _user,
    }
    for who, found in planned.items():
        for line in written[output](who, list(found)):
            typer.echo(line)


def _commands(server: str, principal: str, rights: Sequence[Right]) -> Iterable[str]:
    for right in rights:
        operations = " ".join(f"--operation {operation}" for operation in right.operations)
        option, _ = _SPELLED[right.kind]
        resource = option if right.kind == "cluster" else f"{option} {right.name}"
        pattern = " --resource-pattern-type prefixed" if right.prefixed else ""
        yield (
            f"kafka-acls --bootstrap-server {server} --add --allow-principal '{principal}' "
            f"{operations} {resource}{pattern}"
        )


def _user(principal: str, rights: Sequence[Right]) -> Iterable[str]:
    name = principal.removeprefix("User:").removeprefix("CN=")
    if not KUBERNETES_NAME.fullmatch(name):
        raise ConfigError(
            "SF1007",
            f"a KafkaUser has the name of its principal, and Kubernetes does not take {name!r}; "
            "name another principal, in lower case, with --principal",
        )
    yield "---"
    yield "apiVersion: kafka.strimzi.io/v1"
    yield "kind: KafkaUser"
    yield f"metadata: {{name: {json.dumps(name)}}}"
    yield "spec:"
    yield "  authorization:"
    yield "    type: simple"
    yield "    acls:"
    for right in rights:
        resource = {"type": _SPELLED[right.kind][1]}
        if right.kind != "cluster":
            pattern = "prefix" if right.prefixed else "literal"
            resource |= {"name": right.name, "patternType": pattern}
        yield f"      - resource: {json.dumps(resource)}"
        yield f"        operations: {json.dumps(right.operations)}"
