"""The rooms: who may import whom, and what only the outermost one may touch.

The rules are functions over source text, tried on planted violations as well as on the real files.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: room -> rooms that it may import
ARROWS = {
    "schemas": set(),
    "state": {"schemas"},
    "consumers": {"schemas", "state"},
    "producers": {"schemas", "state"},
    "infra": {"schemas", "state", "consumers", "producers"},
    "surefoot": {"schemas", "state", "consumers", "producers", "infra"},
}
#: what a room consists of, sub-packages and modules of its own: each may import those before it
FLOORS = {
    "schemas": "pointer text weak_cache payload unions codec foreign trace",
    "state": "errors names machine scheduling ports records reading feeds telemetry egress "
    "declare steps inspect admission access diagnosis",
    "consumers": "deadlines backoff polling attempts partition topic_triggers builtin",
    "producers": "guards event_stream commands dashboard access webhooks api sources",
    "infra": "sign_in runtime log aws encryption kafka_client kafka embedded open_log blobs "
    "writers http telemetry readers access doctor views broker local demo registry sources archive "
    "processes dev simulation",
    "surefoot": "client __init__ commands cli spare testing pytest_plugin __main__ agents examples",
}
#: modules of a sub-package; more of them are two subjects
MODULES_MAX = 12
OUTSIDE = {  # the world: only infra speaks to it
    "aiobotocore",
    "aiohttp",
    "aiokafka",
    "boto3",
    "botocore",
    "confluent_kafka",
    "docker",
    "faust",
    "http.client",
    "httpcore",
    "httpx",
    "kafka",
    "requests",
    "testcontainers",
    "urllib.request",
    "urllib3",
}
PROCESS = {"multiprocessing", "psutil", "signal", "socket", "subprocess"}  # infra, the front door
CLOCK_AND_CHANCE = {  # come in as arguments
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "os.urandom",
    "random",
    "secrets",
    "time.ctime",
    "time.gmtime",
    "time.localtime",
    "time.time",
    "time.time_ns",
    "uuid.uuid1",
    "uuid.uuid4",
}
RUNS_CODE = {  # data must never become code
    "cloudpickle",
    "dill",
    "eval",
    "exec",
    "joblib",
    "jsonpickle",
    "marshal",
    "pickle",
    "shelve",
    "yaml.full_load",
    "yaml.load",
    "yaml.unsafe_load",
}
LOOKS_UP_CODE = {"__import__", "importlib.import_module", "pydoc.locate", "runpy"}
#: SDKs that are extras, and the file that may import each: only in a function
SDKS = {
    "aws_msk_iam_sasl_signer": "infra/sign_in/tokens.py",
    "anthropic": "surefoot/agents/anthropic_model.py",
    "boto3": "infra/aws/client.py",
    "botocore": "infra/aws/client.py",
    "joserfc": "infra/access/oidc.py",
    "openai": "surefoot/agents/openai_model.py",
    "opentelemetry": "infra/telemetry/tracing.py",
    "prometheus_client": "infra/telemetry/metrics.py",
}
#: clients of a log, and where they are: the others catch the ports' errors
LOG_CLIENTS = {
    "aiokafka": (
        "infra/kafka/",
        "infra/kafka_client/",
        "infra/broker/probe.py",
        "infra/views/faust.py",
    ),
    "sqlite3": ("infra/embedded/", "infra/views/sqlite.py"),
}
#: who opens a log, or starts one, and so has to know which it is; the others ask what it can
KNOWS_THE_LOG = (
    "infra/runtime/settings.py",
    "infra/open_log.py",
    "infra/embedded/",
    "infra/local/",
)
#: to see the high watermark, beyond what an open transaction holds back; times it may occur
READ_UNCOMMITTED = {"infra/kafka_client/tail.py": 1}

#: where secrets and signatures are checked, and how they are called there
PROVES = ("producers/webhooks/", "producers/access/", "infra/access/")
SECRET_VALUES = {"secret", "right", "signature", "mac", "given", "credential", "proof"}
SECRET_MAKERS = {"digest", "hexdigest", "secret_digest"}

#: public names that several modules may define, each with its reason
NAMES_OF_MANY = {
    "app": "the commands of a command's module, found by this name",
    "in_thread": "the simulation has its own in place of that of attempts",
    "log": "the module's own logger",
    "record_size": "the embedded broker counts by itself, as Kafka's does",
    "P": "a type variable",
    "T": "a type variable",
}
#: kept out of it: what an author would write, and functions named as the command that they are
EXAMPLES, COMMANDS = "surefoot/examples/", "surefoot/commands/"

Rule = Callable[[str, str], list[str]]


def names_used(source: str) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of everything imported or looked up, wherever in the file it is."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{module}.{alias.name}"
                yield node.lineno, f"{module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and (name := dotted(node, aliases)):
            yield node.lineno, name


def dotted(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """Full name of what was imported, or is a builtin; None for local names."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id if hasattr(builtins, node.id) else None)
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value, aliases)):
        return f"{owner}.{node.attr}"
    return None


def imports(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def is_in(name: str, forbidden: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:count]) in forbidden for count in range(1, len(parts) + 1))


def room_of(path: str) -> str:
    return path.split("/", maxsplit=1)[0]


def arrows_point_one_way(path: str, source: str) -> list[str]:
    room = room_of(path)
    problems = []
    for line, name in imports(source):
        first, _, rest = name.partition(".")
        if name.startswith("."):
            problems.append(f"{path}:{line} relative import; write surefoot.{room}...")
        elif first in ARROWS.keys() - {"surefoot"}:
            problems.append(f"{path}:{line} imports {name}; its name is surefoot.{name}")
        elif first == "surefoot":
            target = rest.split(".")[0] if rest.split(".")[0] in ARROWS else "surefoot"
            if target not in ARROWS[room] | {room}:
                problems.append(f"{path}:{line} {room} must not import {name}")
    return problems


def part_of(path: str) -> str:
    """The sub-package of a module, or the module itself when its room is where it lives."""
    parts = path.removesuffix(".py").split("/")
    return parts[1] if len(parts) > 1 else "__init__"


def imports_within_a_room_point_one_way(path: str, source: str) -> list[str]:
    room, part = room_of(path), part_of(path)
    if part == "__init__" and room != "surefoot":
        return [f"{path}:{line} a room's door imports {name}" for line, name in imports(source)]
    floors = FLOORS[room].split()
    if part not in floors:
        return [f"{path} is on no floor of its room; name {part} in FLOORS"]
    problems = []
    for line, name in imports(source):
        parts = name.split(".")
        if room == "surefoot":
            if parts[0] != "surefoot" or (len(parts) > 1 and parts[1] in ARROWS):
                continue
            target = parts[1] if len(parts) > 1 and parts[1] in floors else "__init__"
        elif parts[:2] == ["surefoot", room]:
            target = parts[2] if len(parts) > 2 else "__init__"
        else:
            continue
        if target not in floors:
            problems.append(f"{path}:{line} imports {name}; name where it is defined")
        elif target != part and floors.index(target) > floors.index(part):
            problems.append(f"{path}:{line} {part} must not import {name}: it is further down")
    return problems


def a_package_says_what_lives_there(path: str, source: str) -> list[str]:
    if not path.endswith("/__init__.py"):
        return []
    told = ast.get_docstring(ast.parse(source)) or ""
    return [] if told.split("\n")[0].endswith((".", ":")) else [f"{path} has no docstring"]


def the_outside_world_is_in_infra(path: str, source: str) -> list[str]:
    match room_of(path):
        case "infra":
            return []
        case "surefoot":
            return violations(path, source, OUTSIDE)
        case _:
            return violations(path, source, OUTSIDE | PROCESS)


def clock_and_chance_are_in_infra(path: str, source: str) -> list[str]:
    return [] if room_of(path) == "infra" else violations(path, source, CLOCK_AND_CHANCE)


def data_never_becomes_code(path: str, source: str) -> list[str]:
    problems = violations(path, source, RUNS_CODE)
    if room_of(path) not in ("infra", "surefoot"):  # those load the author's own file
        problems += violations(path, source, LOOKS_UP_CODE)
    return problems


def sdks_are_imported_when_they_are_needed(path: str, source: str) -> list[str]:
    """So that nobody has to have installed what they do not use."""
    at_once = {
        name
        for node in ast.parse(source).body
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for _, name in imports(ast.unparse(node))
    }
    return [
        f"{path}:{line} imports {name}"
        for line, name in imports(source)
        for sdk, adapter in SDKS.items()
        if is_in(name, {sdk}) and (path != adapter or name in at_once)
    ]


def clients_of_the_log_stay_in_its_adapters(path: str, source: str) -> list[str]:
    """A port's caller knows none of the errors of what is behind it."""
    forbidden = {name for name, places in LOG_CLIENTS.items() if not path.startswith(places)}
    return [
        f"{path}:{line} imports {name}" for line, name in imports(source) if is_in(name, forbidden)
    ]


def what_a_log_can_is_asked_of_it(path: str, source: str) -> list[str]:
    return [
        f"{path}:{node.lineno} asks which log it is"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr == "embedded_path"
        if not path.startswith(KNOWS_THE_LOG)
    ]


def violations(path: str, source: str, forbidden: set[str]) -> list[str]:
    return [
        f"{path}:{line} uses {name}" for line, name in names_used(source) if is_in(name, forbidden)
    ]


def consumers_read_committed_records_only(path: str, source: str) -> list[str]:
    """Every consumer says which records it reads, because the client's default is all of them.

    A function that makes consumers may leave it to its callers, without a default.
    """
    problems, uncommitted = [], 0
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Name(id="AIOKafkaConsumer") | ast.Attribute(attr="AIOKafkaConsumer")
            ):
                if "isolation_level" not in [keyword.arg for keyword in node.keywords]:
                    problems.append(f"{path}:{node.lineno} a consumer without isolation_level")
            case ast.keyword("isolation_level", ast.Constant("read_committed")):
                pass
            case ast.keyword("isolation_level", ast.Name("isolation_level")):
                pass
            case ast.keyword("isolation_level", ast.Constant("read_uncommitted")):
                pass  # counted below
            case ast.keyword("isolation_level"):
                problems.append(f"{path}:{node.value.lineno} write the isolation_level out")
            case ast.arguments():
                given = [*node.posonlyargs, *node.args][::-1]
                pairs: list[tuple[ast.arg, ast.expr | None]] = [
                    *zip(given, node.defaults[::-1], strict=False)
                ]
                pairs += [*zip(node.kwonlyargs, node.kw_defaults, strict=True)]
                problems += [
                    f"{path}:{argument.lineno} isolation_level has a default"
                    for argument, default in pairs
                    if argument.arg == "isolation_level" and default is not None
                ]
            case ast.Constant("read_uncommitted"):
                uncommitted += 1
    if uncommitted > READ_UNCOMMITTED.get(path, 0):
        problems.append(f"{path} reads uncommitted records {uncommitted} times")
    return problems


def secrets_are_compared_in_constant_time(path: str, source: str) -> list[str]:
    """Where strangers prove who they are, `==` would tell how far they have come."""
    if not path.startswith(PROVES):
        return []
    return [
        f"{path}:{node.lineno} compares {ast.unparse(node)}; use hmac.compare_digest"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        if any(isinstance(how, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for how in node.ops)
        if any(is_secret(side) for side in (node.left, *node.comparators))
    ]


def is_secret(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_") in SECRET_VALUES
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in SECRET_MAKERS
    return False


RULES: list[Rule] = [
    arrows_point_one_way,
    imports_within_a_room_point_one_way,
    a_package_says_what_lives_there,
    the_outside_world_is_in_infra,
    clock_and_chance_are_in_infra,
    data_never_becomes_code,
    sdks_are_imported_when_they_are_needed,
    clients_of_the_log_stay_in_its_adapters,
    what_a_log_can_is_asked_of_it,
    consumers_read_committed_records_only,
    secrets_are_compared_in_constant_time,
]
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for room in ARROWS
    for path in (ROOT / room).rglob("*.py")
    if path.parent.resolve() == path.parent  # rooms are linked into surefoot/ as well
)


def test_the_rooms_are_looked_at_once_each():
    rooms = {room_of(path) for path in FILES}

    assert {"schemas", "state"} <= rooms <= set(ARROWS)
    assert "schemas/codec/codec.py" in FILES
    assert not [path for path in FILES if path.startswith("surefoot/schemas")]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Rule):
    problems = [
        problem for path in FILES for problem in rule(path, (ROOT / path).read_text("utf-8"))
    ]

    assert problems == []


def crowded(files: list[str]) -> list[str]:
    """Sub-packages with more modules than one subject has."""
    found: dict[str, int] = {}
    for path in files:
        folder, _, name = path.rpartition("/")
        if name != "__init__.py":
            found[folder] = found.get(folder, 0) + 1
    return [
        f"{folder} has {count} modules"
        for folder, count in sorted(found.items())
        if count > MODULES_MAX
    ]


def test_no_package_is_crowded():
    assert crowded(FILES) == []
    assert crowded([f"state/names/m{number}.py" for number in range(13)]) == [
        "state/names has 13 modules"
    ]


def defined_twice(sources: dict[str, str]) -> list[str]:
    """Public names that more than one module defines: a reader cannot tell which is meant."""
    found: dict[str, list[str]] = {}
    for path, source in sources.items():
        if path.startswith(EXAMPLES):
            continue
        for name in {name for node in ast.parse(source).body for name in public_names(path, node)}:
            found.setdefault(name, []).append(path)
    return [
        f"{name} is defined in {', '.join(paths)}"
        for name, paths in sorted(found.items())
        if len(paths) > 1 and name not in NAMES_OF_MANY
    ]


def public_names(path: str, node: ast.stmt) -> Iterator[str]:
    """What a statement at the top of a module defines for others."""
    match node:
        case ast.FunctionDef() if path.startswith(COMMANDS) and node.decorator_list:
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            names = [node.name]
        case ast.Assign() | ast.AnnAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            every = (each for target in targets for each in ast.walk(target))
            names = [each.id for each in every if isinstance(each, ast.Name)]
        case _:
            return
    yield from (name for name in names if not name.startswith("_"))


def test_a_public_name_is_defined_once():
    assert defined_twice({path: (ROOT / path).read_text("utf-8") for path in FILES}) == []


@pytest.mark.parametrize(
    "source",
    [
        "def parse(): ...",
        "async def parse(): ...",
        "class parse: ...",
        "parse = 1",
        "parse: int = 1",
    ],
)
def test_a_second_definition_of_a_public_name_is_found(source: str):
    one, other = "state/x.py", "infra/y.py"

    assert defined_twice({one: "a, parse = 1, 2", other: source}) == [
        f"parse is defined in {one}, {other}"
    ]
    assert defined_twice({one: "_parse = log = 1", other: "_parse = log = 2"}) == []
    assert defined_twice({one: "parse = 1", f"{EXAMPLES}y.py": source}) == []


def test_a_command_may_be_named_as_what_it_does():
    process = {"infra/x.py": "def serve(): ..."}

    assert defined_twice(process | {f"{COMMANDS}x.py": "@app.command()\ndef serve(): ..."}) == []
    assert defined_twice(process | {f"{COMMANDS}x.py": "def serve(): ..."}) != []


PLANTED: list[tuple[Rule, str, str]] = [
    (arrows_point_one_way, "schemas/x.py", "from surefoot.state import machine"),
    (arrows_point_one_way, "schemas/x.py", "from surefoot import Agent"),
    (arrows_point_one_way, "schemas/x.py", "import surefoot"),
    (arrows_point_one_way, "state/x.py", "def f():\n    import surefoot.infra.kafka_client.topics"),
    (arrows_point_one_way, "state/x.py", "from surefoot import consumers"),
    (arrows_point_one_way, "consumers/x.py", "from surefoot.producers.api.app import app"),
    (
        arrows_point_one_way,
        "producers/x.py",
        "import surefoot.consumers.partition.worker as worker",
    ),
    (arrows_point_one_way, "infra/x.py", "from surefoot.cli import app"),
    (arrows_point_one_way, "infra/demo/x.py", "from surefoot import Agent"),
    (arrows_point_one_way, "state/x.py", "from .errors import StateError"),
    (arrows_point_one_way, "surefoot/cli.py", "from state.errors import StateError"),
    (
        imports_within_a_room_point_one_way,
        "state/machine/x.py",
        "from surefoot.state.declare.agent import Agent",
    ),
    (
        imports_within_a_room_point_one_way,
        "state/names/x.py",
        "def f():\n    import surefoot.state.ports.log",
    ),
    (imports_within_a_room_point_one_way, "state/names/x.py", "from surefoot.state import machine"),
    (imports_within_a_room_point_one_way, "state/ports/x.py", "from surefoot.state import Agent"),
    (imports_within_a_room_point_one_way, "state/new/x.py", "import json"),
    (imports_within_a_room_point_one_way, "state/x.py", "import json"),
    (imports_within_a_room_point_one_way, "state/__init__.py", "from surefoot.state import names"),
    (
        imports_within_a_room_point_one_way,
        "consumers/attempts/x.py",
        "from surefoot.consumers.partition.owner import Owner",
    ),
    (
        imports_within_a_room_point_one_way,
        "infra/kafka_client/x.py",
        "from surefoot.infra.kafka import txn",
    ),
    (imports_within_a_room_point_one_way, "surefoot/client.py", "from surefoot import Agent"),
    (imports_within_a_room_point_one_way, "surefoot/commands/x.py", "from surefoot.cli import app"),
    (a_package_says_what_lives_there, "state/names/__init__.py", ""),
    (a_package_says_what_lives_there, "state/names/__init__.py", '"""Names"""'),
    (the_outside_world_is_in_infra, "consumers/x.py", "from aiokafka import AIOKafkaConsumer"),
    (the_outside_world_is_in_infra, "consumers/x.py", "import aiokafka.errors as errors"),
    (the_outside_world_is_in_infra, "producers/x.py", "def f():\n    import httpx"),
    (the_outside_world_is_in_infra, "surefoot/cli.py", "import docker"),
    (the_outside_world_is_in_infra, "state/x.py", "from urllib.request import urlopen"),
    (the_outside_world_is_in_infra, "consumers/x.py", "import signal"),
    (clock_and_chance_are_in_infra, "state/x.py", "import time\nt = time.time()"),
    (clock_and_chance_are_in_infra, "state/x.py", "import time as t\nnow = t.time_ns"),
    (clock_and_chance_are_in_infra, "state/x.py", "from time import time"),
    (clock_and_chance_are_in_infra, "state/x.py", "from datetime import datetime as d\nd.now()"),
    (clock_and_chance_are_in_infra, "producers/x.py", "import datetime\ndatetime.date.today()"),
    (clock_and_chance_are_in_infra, "producers/x.py", "from uuid import uuid4"),
    (clock_and_chance_are_in_infra, "producers/x.py", "import uuid\nf = uuid.uuid4"),
    (clock_and_chance_are_in_infra, "consumers/x.py", "def f():\n    from random import random"),
    (clock_and_chance_are_in_infra, "consumers/x.py", "import secrets"),
    (data_never_becomes_code, "infra/x.py", "import pickle"),
    (data_never_becomes_code, "state/x.py", "from marshal import loads"),
    (data_never_becomes_code, "state/x.py", "import yaml\nyaml.load(x)"),
    (data_never_becomes_code, "infra/x.py", "eval('1')"),
    (data_never_becomes_code, "infra/x.py", "f = exec"),
    (data_never_becomes_code, "schemas/x.py", "import importlib\nimportlib.import_module(x)"),
    (sdks_are_imported_when_they_are_needed, "surefoot/agents/openai_model.py", "import openai"),
    (
        sdks_are_imported_when_they_are_needed,
        "surefoot/agents/openai_model.py",
        "if True:\n    from openai import AsyncOpenAI",
    ),
    (
        sdks_are_imported_when_they_are_needed,
        "surefoot/agents/openai_model.py",
        "def f():\n    import anthropic",
    ),
    (sdks_are_imported_when_they_are_needed, "infra/x.py", "def f():\n    import openai.types"),
    (clients_of_the_log_stay_in_its_adapters, "infra/readers/runs.py", "import sqlite3"),
    (
        clients_of_the_log_stay_in_its_adapters,
        "infra/readers/runs.py",
        "def f():\n    from aiokafka.errors import KafkaError",
    ),
    (clients_of_the_log_stay_in_its_adapters, "infra/embedded/x.py", "import aiokafka"),
    (clients_of_the_log_stay_in_its_adapters, "infra/kafka/x.py", "import sqlite3"),
    (clients_of_the_log_stay_in_its_adapters, "infra/broker/find.py", "import aiokafka.client"),
    (clients_of_the_log_stay_in_its_adapters, "surefoot/commands/x.py", "import sqlite3"),
    (what_a_log_can_is_asked_of_it, "infra/processes/x.py", "if settings.embedded_path: ..."),
    (what_a_log_can_is_asked_of_it, "surefoot/commands/x.py", "p = self._settings.embedded_path"),
    (consumers_read_committed_records_only, "infra/x.py", "aiokafka.AIOKafkaConsumer('t')"),
    (consumers_read_committed_records_only, "infra/x.py", "AIOKafkaConsumer(**kafka)"),
    (
        consumers_read_committed_records_only,
        "infra/x.py",
        "AIOKafkaConsumer(isolation_level='read_uncommitted')",
    ),
    (consumers_read_committed_records_only, "infra/x.py", "AIOKafkaConsumer(isolation_level=x)"),
    (consumers_read_committed_records_only, "infra/x.py", "how = {'a': 'read_uncommitted'}"),
    (
        consumers_read_committed_records_only,
        "infra/kafka_client/tail.py",
        "a(isolation_level='read_uncommitted'); b(isolation_level='read_uncommitted')",
    ),
    (
        consumers_read_committed_records_only,
        "infra/x.py",
        "def f(*, isolation_level='read_committed'):\n    g(isolation_level=isolation_level)",
    ),
    (consumers_read_committed_records_only, "infra/x.py", "def f(a, isolation_level=None): ..."),
    (secrets_are_compared_in_constant_time, "producers/webhooks/x.py", "given == right"),
    (secrets_are_compared_in_constant_time, "producers/webhooks/x.py", "a != self._secret"),
    (secrets_are_compared_in_constant_time, "producers/webhooks/x.py", "right in found"),
    (secrets_are_compared_in_constant_time, "infra/access/x.py", "h == hmac.digest(k, b, 'x')"),
]


@pytest.mark.parametrize(
    ("rule", "path", "source"), PLANTED, ids=[str(number) for number in range(len(PLANTED))]
)
def test_a_planted_violation_is_found(rule: Rule, path: str, source: str):
    assert len(rule(path, source)) >= 1


ALLOWED: list[tuple[Rule, str, str]] = [
    (secrets_are_compared_in_constant_time, "producers/access/x.py", "credential is None"),
    (secrets_are_compared_in_constant_time, "state/x.py", "entry.digest == digest(x)"),
    (what_a_log_can_is_asked_of_it, "infra/open_log.py", "settings.embedded_path"),
    (clients_of_the_log_stay_in_its_adapters, "infra/kafka/x.py", "import aiokafka.errors"),
    (clients_of_the_log_stay_in_its_adapters, "infra/embedded/x.py", "import sqlite3"),
    (
        clients_of_the_log_stay_in_its_adapters,
        "infra/broker/probe.py",
        "from aiokafka.client import AIOKafkaClient",
    ),
    (arrows_point_one_way, "surefoot/cli.py", "from surefoot.infra import settings"),
    (arrows_point_one_way, "surefoot/cli.py", "from surefoot import __version__"),
    (arrows_point_one_way, "infra/x.py", "from surefoot.consumers.partition.worker import Worker"),
    (arrows_point_one_way, "state/x.py", "import statistics, surefoot.state.machine.decide"),
    (
        imports_within_a_room_point_one_way,
        "state/steps/x.py",
        "from surefoot.state.machine import model\nfrom surefoot.state.steps import journal",
    ),
    (
        imports_within_a_room_point_one_way,
        "surefoot/cli.py",
        "from surefoot.commands.develop.new import new\nfrom surefoot import __version__",
    ),
    (imports_within_a_room_point_one_way, "infra/kafka/x.py", "import surefoot.state.names.topics"),
    (a_package_says_what_lives_there, "state/names/__init__.py", '"""Names of topics."""'),
    (a_package_says_what_lives_there, "state/names/topics.py", ""),
    (the_outside_world_is_in_infra, "infra/x.py", "import aiokafka, httpx"),
    (the_outside_world_is_in_infra, "producers/x.py", "from http import HTTPStatus"),
    (the_outside_world_is_in_infra, "surefoot/cli.py", "import signal"),
    (clock_and_chance_are_in_infra, "infra/x.py", "import time\ntime.time()"),
    (clock_and_chance_are_in_infra, "state/x.py", "from datetime import time\nrun.time"),
    (clock_and_chance_are_in_infra, "state/x.py", "def f(secrets): return secrets.random"),
    (data_never_becomes_code, "infra/x.py", "import importlib\nimportlib.import_module(x)"),
    (data_never_becomes_code, "state/x.py", "machine.eval\nre.compile('x')"),
    (
        sdks_are_imported_when_they_are_needed,
        "surefoot/agents/openai_model.py",
        "import surefoot.agents.openai_model\nclass C:\n    def f(self):\n        import openai",
    ),
    (
        consumers_read_committed_records_only,
        "infra/kafka_client/tail.py",
        "AIOKafkaConsumer(isolation_level='read_uncommitted')",
    ),
    (
        consumers_read_committed_records_only,
        "infra/x.py",
        "def f(isolation_level): AIOKafkaConsumer(isolation_level=isolation_level)",
    ),
    (
        consumers_read_committed_records_only,
        "infra/x.py",
        "AIOKafkaConsumer('t', isolation_level='read_committed', **kafka)",
    ),
]


@pytest.mark.parametrize(
    ("rule", "path", "source"), ALLOWED, ids=[str(number) for number in range(len(ALLOWED))]
)
def test_what_is_allowed_is_not_reported(rule: Rule, path: str, source: str):
    assert rule(path, source) == []
