"""`surefoot topics`: create and check topics, or print what creates them, and show their lag."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Annotated, Literal

import typer

from surefoot.commands.admin import lag
from surefoot.commands.groups import group
from surefoot.commands.options import AgentFiles
from surefoot.commands.output import KUBERNETES_NAME
from surefoot.infra.kafka_client.topics import names_of, specs_for
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.names.topics import TopicSpec

app = group("Create and check topics, and show their lag.")


@app.command()
def apply(agent_files: AgentFiles) -> None:
    """Create missing topics and check all of them. Existing topics are not altered."""
    _checked(agent_files, create=True)


@app.command()
def verify(agent_files: AgentFiles) -> None:
    """Check every topic's configuration; print the fix for each fault."""
    _checked(agent_files, create=False)


@app.command()
def plan(
    agent_files: AgentFiles,
    output: Annotated[
        Literal["kafka-topics", "strimzi"],
        typer.Option("--output", "-o", help="Commands for a shell, or KafkaTopic resources."),
    ] = "kafka-topics",
) -> None:
    """Print what creates the topics, for whoever may. Connects to nothing."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    names, settings = names_of(load_agents(agent_files)), load_settings()
    written = {"kafka-topics": _command, "strimzi": _resource}[output]
    for spec in specs_for(names, settings):
        for line in written(spec, settings):
            typer.echo(line)


def _command(spec: TopicSpec, settings: Settings) -> Iterable[str]:
    server = settings.bootstrap_servers or '"$BOOTSTRAP_SERVERS"'
    replicas = settings.replication_factor
    replication = "" if replicas == -1 else f" --replication-factor {replicas}"
    configs = " ".join(f"--config {name}={value}" for name, value in spec.config.items())
    yield (
        f"kafka-topics --bootstrap-server {server} --create --if-not-exists --topic {spec.name} "
        f"--partitions {spec.partitions}{replication} {configs}"
    )


def _resource(spec: TopicSpec, settings: Settings) -> Iterable[str]:
    yield "---"
    yield "apiVersion: kafka.strimzi.io/v1"
    yield "kind: KafkaTopic"
    yield f"metadata: {{name: {json.dumps(_resource_name(spec.name))}}}"
    yield "spec:"
    yield f"  topicName: {json.dumps(spec.name)}"
    yield f"  partitions: {spec.partitions}"
    if settings.replication_factor != -1:
        yield f"  replicas: {settings.replication_factor}"
    yield f"  config: {json.dumps(spec.config)}"


def _resource_name(topic: str) -> str:
    """Return the topic's name where Kubernetes takes it, else one of its own that it takes."""
    if KUBERNETES_NAME.fullmatch(topic):
        return topic
    taken = re.sub(r"[^a-z0-9]+", "-", topic.lower()).strip("-")
    return f"{taken}-{hashlib.sha256(topic.encode()).hexdigest()[:8]}"


def _checked(agent_files: AgentFiles, *, create: bool) -> None:
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    names, settings = names_of(load_agents(agent_files)), load_settings()
    specs = specs_for(names, settings)

    async def check() -> list[str]:
        async with (
            open_backend(settings, SystemClock(), access="make" if create else "read") as backend,
            backend.topics() as topics,
        ):
            if create:
                return await topics.apply(specs)
            await topics.verify(specs)
            return []

    for name in asyncio.run(check()):
        typer.echo(f"created {name}")
    typer.echo(f"all {len(specs)} topics are correct")


app.add_typer(lag.app)
