"""A broker in a container: the official apache/kafka image, or one with the same settings.

The image turns KAFKA_<NAME> variables into server properties; infra/broker/image.sh builds one that
does the same, for machines without access to a registry. The data lives as long as the container.
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from surefoot.infra.broker.config import (
    ONE_NODE,
    CannotStart,
    free_ports,
    pinned_version,
    say,
    tail,
)
from surefoot.infra.runtime.orphans import WhenKilled

#: the port that the broker listens on inside its container
CONTAINER_PORT = 9092
_PULL_TIMEOUT_S = 300


class DockerNode:
    """A running container; `bootstrap` is its broker's address on this machine."""

    pid = None
    log_path: Path | None = None

    def __init__(self, container: str, port: int) -> None:
        self.container = container
        self.bootstrap = f"127.0.0.1:{port}"
        self._when_killed = WhenKilled('docker rm --force --volumes "$1"', container)

    def log_text(self) -> str:
        return _docker("logs", self.container).stdout

    def failure(self) -> str | None:
        state = _docker("inspect", "--format", "{{.State.Status}}", self.container).stdout.strip()
        if state in ("created", "running", "paused"):
            return None
        return f"the container is {state or 'gone'}:\n{tail(self.log_text())}"

    def pause(self) -> None:
        _docker("pause", self.container)

    def resume(self) -> None:
        _docker("unpause", self.container)

    def stop(self) -> None:
        """Stop and remove the container. Safe to call twice."""
        self._when_killed.cancel()
        _docker("stop", "-t", "20", self.container, timeout_s=60)
        _docker("rm", "--force", "--volumes", self.container, timeout_s=60)


def default_image() -> str:
    return f"apache/kafka:{pinned_version()}"


def start_docker(
    *, image: str | None, port: int | None, properties: Mapping[str, str]
) -> DockerNode:
    """Start a container and return at once; the caller waits until its broker answers.

    Raises: CannotStart — no engine answers, or the image is neither here nor available.
    """
    image = image or default_image()
    _require_engine()
    _require_image(image)
    port = port or free_ports(1)[0]
    environment = container_environment(port, properties)
    options = [f"--env={name}={value}" for name, value in environment.items()]
    publish = f"--publish=127.0.0.1:{port}:{CONTAINER_PORT}"
    node = DockerNode(f"surefoot-kafka-{uuid.uuid4().hex[:12]}", port)
    named = f"--name={node.container}"
    try:
        ran = _docker("run", "--detach", named, publish, *options, image, timeout_s=120)
    except BaseException:
        node.stop()
        raise
    if ran.returncode != 0:
        node.stop()
        raise CannotStart(f"`docker run {image}` failed: {tail(ran.stdout, 3)}")
    return node


def container_environment(port: int, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make the image run one node, reached at 127.0.0.1:`port`.

    Source: the image's README; "." becomes "_", and if one property is given, all must be.
    """
    own = {
        "listeners": f"PLAINTEXT://:{CONTAINER_PORT},CONTROLLER://:9093,INTERNAL://localhost:9094",
        # The broker also connects to itself, to verify transactions (KIP-890), and cannot reach the
        # published port from inside; a produce would fail with NOT_ENOUGH_REPLICAS.
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},INTERNAL://localhost:9094",
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT"
        ),
        "controller.quorum.voters": "1@localhost:9093",
        "log.dirs": "/tmp/kraft-combined-logs",  # noqa: S108  (inside the container)
    }
    return {
        "KAFKA_" + name.replace(".", "_").upper(): value
        for name, value in (ONE_NODE | own | dict(properties)).items()
    } | {"KAFKA_HEAP_OPTS": "-Xmx512m"}


def _require_engine() -> None:
    if shutil.which("docker") is None:
        raise CannotStart("Docker is not installed")
    if _docker("version", "--format", "{{.Server.Version}}", timeout_s=10).returncode != 0:
        raise CannotStart("Docker is installed, but no engine answers; is it running?")


def _require_image(image: str) -> None:
    if _docker("image", "inspect", image).returncode == 0:
        return
    say(f"pulling the image {image} (once)")
    pulled = _docker("pull", "--quiet", image, timeout_s=_PULL_TIMEOUT_S)
    if pulled.returncode != 0:
        raise CannotStart(f"the image {image} cannot be pulled: {tail(pulled.stdout, 1)}")


def _docker(*arguments: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    """Run the docker command; a timeout counts as failure, with status 124."""
    command = ["docker", *arguments]
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, f"no answer within {timeout_s:g} s")
