"""A broker on the machine's own Java: pinned jars from a cache, KRaft in one process.

Each node has its own folder: server.properties, data/, broker.log (of its latest start). A
temporary folder is deleted with the node; a given folder is kept, and a later start in it finds the
same records on the same port.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from surefoot.infra.broker.config import (
    KAFKA_FOLDER,
    ONE_NODE,
    STORAGE,
    CannotStart,
    Storage,
    free_ports,
    pinned_version,
    say,
    tail,
)
from surefoot.infra.runtime.orphans import WhenKilled

_JAVA_MAJOR_MIN = 17
_STOP_TIMEOUT_S = 20
_DOWNLOAD_TIMEOUT_S = 900
_PORT_TAKEN = "Address already in use"
#: (process, folder): end the broker, also a frozen one, unless the process id has been reused
_END = """
case "$(ps -ww -o args= -p "$1" 2>/dev/null || tr '\\0' ' ' <"/proc/$1/cmdline")" in
*"$2/server.properties"*) kill "$1"; kill -CONT "$1" ;;
esac
"""
#: the same, without keeping the data
_END_AND_REMOVE = _END.replace('kill "', 'kill -9 "') + 'rm -rf "$2"'
_LISTENERS = re.compile(
    r"^listeners=PLAINTEXT://[^:]+:(\d+),CONTROLLER://[^:]+:(\d+)$", re.MULTILINE
)


class JavaNode:
    """A running broker process; `bootstrap` is its address."""

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, port: int, *, kept: bool
    ) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self._process = process
        self._folder = folder
        self._kept = kept
        script = _END if kept else _END_AND_REMOVE
        self._when_killed = WhenKilled(script, str(process.pid), str(folder))

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def log_path(self) -> Path | None:
        return self._folder / "broker.log"

    def log_text(self) -> str:
        return (self._folder / "broker.log").read_text(encoding="utf-8", errors="replace")

    def failure(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        return f"the broker process ended with status {code}:\n{tail(self.log_text())}"

    def pause(self) -> None:
        """Send SIGSTOP: the broker answers nothing but keeps its connections."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the broker. Safe to call twice.

        SIGTERM, and SIGKILL past the deadline; SIGKILL at once if its data is not kept."""
        self._when_killed.cancel()
        self.resume()
        if self._kept:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
        self._process.kill()
        self._process.wait()
        if not self._kept:
            shutil.rmtree(self._folder, ignore_errors=True)


def start_java(
    *,
    folder: Path | None,
    port: int | None,
    properties: Mapping[str, str],
    storage: Storage = STORAGE,
    heap_mb: int = 512,
) -> JavaNode:
    """Start a node and return at once; the caller waits until it answers, or for `failure()`.

    It is a quorum of its own, unless `properties` name the quorum's voters.

    Raises: CannotStart — Java or Maven is missing, the jars cannot be fetched, or the storage
    cannot be formatted.
    """
    java = find_java()
    jars = fetch_jars()
    kept = folder is not None
    home = Path(folder or tempfile.mkdtemp(prefix="surefoot-broker-")).resolve()
    home.mkdir(parents=True, exist_ok=True)
    try:
        client_port, controller_port = _ports(home, port)
        config = _write_properties(home, client_port, controller_port, properties)
        if not (home / "data" / "meta.properties").exists():
            standalone = "controller.quorum.voters" not in properties
            _format_storage(java, jars, config, storage, standalone=standalone)
        process = _launch(java, jars, config, heap_mb)
    except BaseException:
        if not kept:
            shutil.rmtree(home, ignore_errors=True)
        raise
    return JavaNode(process, home, client_port, kept=kept)


def port_was_taken(failure: str) -> bool:
    """Whether another process took the port between our check and the broker's bind."""
    return _PORT_TAKEN in failure


def find_java() -> str:
    """Return the java command of JAVA_HOME or the PATH, if it is new enough for Kafka 4."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if java is None:
        raise CannotStart(f"Java {_JAVA_MAJOR_MIN} or newer is not installed")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', told)
    if match is None or int(match[1]) < _JAVA_MAJOR_MIN:
        raise CannotStart(f"{java} is not Java {_JAVA_MAJOR_MIN} or newer: {tail(told, 3)}")
    return java


def fetch_jars() -> Path:
    """Return the folder with the pinned jars; Maven downloads them the first time.

    Its name contains a hash of what pins them, so another pin is another folder. It has these jars
    and no others, each with the bytes that jars.sha512 knows. One rename creates it whole: of two
    concurrent downloads one wins, and both can use it.

    Raises: CannotStart — Maven is missing or fails, or has fetched something else.
    """
    pom, sums = KAFKA_FOLDER / "pom.xml", KAFKA_FOLDER / "jars.sha512"
    digest = hashlib.sha256(pom.read_bytes() + sums.read_bytes()).hexdigest()[:8]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "surefoot"
    jars = cache / f"kafka-{pinned_version()}-{digest}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise CannotStart("Maven (mvn) is not installed; it fetches Kafka's jars, once")
    cache.mkdir(parents=True, exist_ok=True)
    say(f"fetching Kafka {pinned_version()} with Maven into {jars} (once)")
    with tempfile.TemporaryDirectory(dir=cache, prefix="kafka-download-") as download:
        fetched = Path(download) / "jars"
        _run(
            [
                *(maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"),
                *("-DincludeScope=runtime", f"-DoutputDirectory={fetched}"),
            ],
            "Maven could not fetch Kafka's jars",
            timeout_s=_DOWNLOAD_TIMEOUT_S,
        )
        _check_jars(fetched, sums)
        try:
            fetched.rename(jars)
        except OSError:
            if not jars.is_dir():
                raise
    return jars


def _check_jars(folder: Path, sums: Path) -> None:
    lines = sums.read_text(encoding="ascii").splitlines()
    known = {name: digest for digest, name in map(str.split, lines)}
    found = {jar.name: hashlib.sha512(jar.read_bytes()).hexdigest() for jar in folder.iterdir()}
    if wrong := sorted({name for name, _ in known.items() ^ found.items()}):
        raise CannotStart(
            f"Maven fetched other jars than those of {sums}, or not all: {', '.join(wrong)}"
        )


def _ports(home: Path, port: int | None) -> tuple[int, int]:
    """Return the client port: as given, else that of the folder's last node, else a free one.

    The second is the controller's; it never changes, since the storage contains it.
    """
    config = home / "server.properties"
    before = _LISTENERS.search(config.read_text(encoding="utf-8")) if config.exists() else None
    if before is not None:
        return port or int(before[1]), int(before[2])
    client, controller = free_ports(2)
    return port or client, controller


def _write_properties(
    home: Path, client_port: int, controller_port: int, properties: Mapping[str, str]
) -> Path:
    client, controller = f"127.0.0.1:{client_port}", f"127.0.0.1:{controller_port}"
    own = {
        "listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{client}",
        "controller.quorum.bootstrap.servers": controller,
        "log.dirs": str(home / "data"),
    }
    lines = [f"{key}={value}" for key, value in (ONE_NODE | own | dict(properties)).items()]
    config = home / "server.properties"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _format_storage(
    java: str, jars: Path, config: Path, storage: Storage, *, standalone: bool
) -> None:
    cluster_id = storage.cluster_id or new_cluster_id()
    levels = [f"{name}={level}" for name, level in storage.features.items()]
    _run(
        [
            # Half a second faster: this process lives for about one second.
            *_java_command(java, jars, "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool"),
            "format",
            *(["--standalone"] if standalone else []),
            *(option for level in levels for option in ("--feature", level)),
            # An id may begin with "-": in one argument it is not parsed as an option.
            *(f"--cluster-id={cluster_id}", f"--config={config}"),
        ],
        "the broker's storage could not be formatted",
        timeout_s=120,
    )


def _launch(java: str, jars: Path, config: Path, heap_mb: int) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C in the terminal must reach the workers first.
    with (config.parent / "broker.log").open("wb") as log:
        return subprocess.Popen(
            [*_java_command(java, jars, f"-Xmx{heap_mb}m", "kafka.Kafka"), str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _java_command(java: str, jars: Path, option: str, main: str) -> list[str]:
    # The serial collector starts fastest (measured: 3.2 s to the first connection on two cores, 3.9
    # s with G1) and has no threads of its own.
    logging = f"-Dlog4j2.configurationFile={KAFKA_FOLDER / 'log4j2.properties'}"
    return [java, "-XX:+UseSerialGC", option, logging, "-cp", f"{jars}/*", main]


def _run(command: list[str], failing: str, *, timeout_s: float) -> None:
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotStart(f"{failing} within {timeout_s:g} s") from error
    except subprocess.CalledProcessError as error:
        raise CannotStart(f"{failing}:\n{tail(error.stdout)}") from error
