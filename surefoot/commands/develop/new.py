"""Writes a first agent: ready to run, tested, and deployable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surefoot import __version__
from surefoot.commands.groups import commands
from surefoot.infra.broker.config import ONE_NODE
from surefoot.infra.broker.docker import default_image
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError
from surefoot.state.names.topics import OUTBOX

AGENT = """\
from surefoot import Agent, Context, Done, Next

agent = Agent("@NAME@")


async def compose(name: str) -> str:
    return f"Hello, {name}!"


@agent.step
async def greet(ctx: Context, name: str) -> Next:
    return Next(send, await ctx.call("compose", compose, name), after="2s")


@agent.step
async def send(ctx: Context, text: str) -> Done:
    return Done(text)
"""

TEST = """\
from surefoot.testing import Simulation, check_crashes

from agent import agent


def test_somebody_is_greeted():
    run = Simulation(agent).run("Ann")
    assert (run.status, run.result) == ("completed", "Hello, Ann!")
    assert run.steps == ["greet", "send"]


def test_a_crash_at_any_commit_makes_no_difference():
    report = check_crashes(agent, "Ann")
    assert report.kills == 2 * len(report.commits)
"""

README = """\
# @NAME@

    pytest                    # in memory, under virtual time, killed at every commit
    surefoot dev agent.py     # everything at once; prints a curl line that starts a run

`dev` starts a broker with Docker or Java; without either, it keeps its records in a file.
It reloads the agent when a file here changes.

    docker compose up         # Kafka, and the agent on it

The agent listens on port 8787 there:

    curl -sS http://127.0.0.1:8787/runs/@NAME@ -H 'Content-Type: application/json' \\
      -d '{"payload": "Ann"}'
    surefoot explain SF1203   # what an error means, by its number
"""

GITIGNORE = """\
.pytest_cache/
.venv/
__pycache__/
*.db
*.db-*
"""

COMPOSE = """\
services:
  kafka:
    image: @IMAGE@
    environment:
@ENVIRONMENT@
    volumes:
      - kafka:/var/lib/kafka/data
    healthcheck:
      test: /opt/kafka/bin/kafka-topics.sh --bootstrap-server localhost:9092 --list
      interval: 5s
      timeout: 10s
      retries: 20

  worker:
    image: python:3.13-slim
    working_dir: /app
    # Gateway, worker and relay in one process. SUREFOOT_PACKAGE: what pip is to install, if it is
    # not the release; a path has to be one in the container.
    command: sh -c 'pip install --quiet "${SUREFOOT_PACKAGE:-surefoot==@VERSION@}" && exec surefoot serve agent.py'
    environment:
      SUREFOOT_BOOTSTRAP_SERVERS: kafka:9092
      SUREFOOT_GATEWAY_HOST: 0.0.0.0
      # nobody has to sign in; only this machine reaches the port published below
      SUREFOOT_INSECURE: "1"
      # by which name it may be asked, beside localhost: other containers ask for http://worker:8787
      SUREFOOT_GATEWAY_HOSTS: worker
      SUREFOOT_INSTANCE: @NAME@
    ports:
      - 127.0.0.1:8787:8787
    volumes:
      - .:/app:ro
    depends_on:
      kafka:
        condition: service_healthy
    restart: unless-stopped
    # longer than running steps may take to finish
    stop_grace_period: 30s

volumes:
  kafka:
"""  # noqa: E501

#: settings of one node, reached by its name from the other containers and from itself
_NODE = {
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://kafka:9092",
    "controller.quorum.voters": "1@kafka:9093",
    "log.dirs": "/var/lib/kafka/data",
}


app = commands()


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the agent and of its folder.")
    ],
) -> None:
    """Write a first agent with its tests and a compose file."""
    _ = Agent(name)
    if name == OUTBOX:
        raise ConfigError("SF1103", f"the agent name {OUTBOX!r} is reserved; choose another one")
    folder = Path(name)
    try:
        folder.mkdir(exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(
                "SF1011", f"the folder {name} exists and is not empty; choose another name"
            )
        for file, text in files(name).items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("SF1011", f"cannot write to the folder {name}: {error}") from error
    typer.echo(f"wrote {', '.join(files(name))}\n\ncd {name}\npytest\nsurefoot dev agent.py")


def files(name: str) -> dict[str, str]:
    """Return the text of each file to write, by name."""
    texts = {
        "agent.py": AGENT,
        "test_agent.py": TEST,
        "compose.yaml": _compose(),
        "README.md": README,
        ".gitignore": GITIGNORE,
    }
    return {file: text.replace("@NAME@", name) for file, text in texts.items()}


def _compose() -> str:
    settings = "\n".join(
        f'      KAFKA_{key.replace(".", "_").upper()}: "{value}"'
        for key, value in (ONE_NODE | _NODE).items()
    )
    return (
        COMPOSE.replace("@IMAGE@", default_image())
        .replace("@ENVIRONMENT@", settings)
        .replace("@VERSION@", __version__)
    )
