"""Every error that a person can come to see has a number, and every number is told."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from surefoot.cli import app
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import ConfigError, catalogue
from surefoot.state.errors.catalogue import ERROR_PAGES, THEMES, closest, find, number_of
from tests.generate.errors_page import PAGE, text

ROOT = Path(__file__).parents[3]
ROOMS = ("schemas", "state", "consumers", "producers", "infra", "surefoot")
#: their first argument is a number of the table
NUMBERED = {
    "BadArgument",
    "ConfigError",
    "CrashFound",
    "KeyMissing",
    "NotAllowed",
    "NotSimulated",
    "Numbered",
    "RequestRefused",
    "SimulationError",
    "StateError",
    "StoreRefused",
    "Unavailable",
}
#: their first argument is a code that a page of the table names
CODED = {
    "ModelFailed",
    "Parked",
    "Unusable",
    "UnusableResult",
    "InputRefused",
    "Refused",
    "Refusal",
}
#: they have one number each, which their class tells
ONE_NUMBER = {"BadPayload", "NoSuchTopic", "RecordTooLarge", "Unserialisable"}
#: nobody but the engine, an author's own code or the model sees them as they are: what a person is
#: shown is the code of the failure that they become, or the numbered error around them
INSIDE = {
    "AssertionError",
    "AttributeError",
    "AwsRefused",
    "BadCloudEvent",
    "BadEvent",
    "BadSchema",
    "BadSecret",
    "BudgetSpent",
    "CallFailed",
    "CannotStart",
    "CodecError",
    "ConnectError",
    "Exit",
    "FencedError",
    "Forbidden",
    "IncompatibleBrokerVersion",
    "IndexError",
    "InputGone",
    "KafkaConnectionError",
    "KafkaError",
    "LeaderNotAvailableError",
    "LocalProtocolError",
    "LookupError",
    "NoToken",
    "NodeNotReadyError",
    "NotFound",
    "NotImplementedError",
    "NotThatShape",
    "NotYet",
    "OffsetGone",
    "OutcomeUnknown",
    "OwnershipLost",
    "RetryableError",
    "RunFailed",
    "RuntimeError",
    "SchemaMissing",
    "StepTimeout",
    "StopAsyncIteration",
    "TerminalError",
    "TimeoutError",
    "ToolError",
    "TransportError",
    "TypeError",
    "UndecodableError",
    "UnknownTopicOrPartitionError",
    "_Misfit",
    "_Refused",
}
#: where a ValueError is for whoever calls: pydantic takes no other error from a validator, and
#: load_settings gives it a number; what is no schema, or no upload, is told by who asked
VALIDATORS = {
    "infra/runtime/settings.py",
    "producers/sources/sqs_messages.py",
    "schemas/codec/compatibility.py",
    "state/access/proxied.py",
    "state/access/withheld.py",
    "state/egress/hosts.py",
    "state/egress/policy.py",
}
_NUMBER = re.compile(r"\bSF\d{4}\b")

FILES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
    if path.parent.resolve() == path.parent  # rooms are linked into surefoot/ as well
}


def called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def problems(path: str, source: str) -> Iterator[str]:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                name = called(node)
                if name in NUMBERED:
                    yield from wrong_number(f"{path}:{node.lineno} {name}", node)
                elif name in CODED and not path.startswith("surefoot/testing/simulation"):
                    yield from wrong_code(f"{path}:{node.lineno} {name}", node.args[:1])
                elif name in ("Failure", "CommandReply"):
                    codes = [each.value for each in node.keywords if each.arg == "code"]
                    yield from wrong_code(f"{path}:{node.lineno} {name}", codes)
            case ast.Assign(targets=[ast.Name(id="code")], value=value):
                yield from wrong_code(f"{path}:{node.lineno} code", [value])
            case ast.Raise(exc=ast.Call() as made):
                name = called(made)
                known = NUMBERED | CODED | ONE_NUMBER | INSIDE
                made_by_a_function = name.islower()  # whose own call is looked at above
                if path in VALIDATORS and name == "ValueError":
                    continue
                if name not in known and not made_by_a_function:
                    yield f"{path}:{node.lineno} raises {name}, of which no page tells"


def wrong_number(where: str, call: ast.Call) -> Iterator[str]:
    match call.args[:1]:
        case [ast.Constant(value=str(number))]:
            if number not in ERROR_PAGES:
                yield f"{where}: state/errors/catalogue has no {number}"
        case [ast.Attribute(attr="number")] | [ast.Starred()]:
            pass  # that of the error it is made of
        case _:
            yield f"{where}: the first argument is its number, in quotes"


def wrong_code(where: str, given: list[ast.expr]) -> Iterator[str]:
    for code in given:
        for each in [code.body, code.orelse] if isinstance(code, ast.IfExp) else [code]:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                if number_of(each.value) is None and each.value:
                    yield f"{where}: no page of the catalogue names the code {each.value!r}"
            elif isinstance(each, ast.JoinedStr):
                yield f"{where}: a code is a word in quotes"


def test_no_error_is_without_a_number() -> None:
    assert [each for path, source in FILES.items() for each in problems(path, source)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("state/x.py", 'raise ConfigError("no number")'),
        ("state/x.py", 'raise ConfigError("SF0000", "no such number")'),
        ("infra/x.py", "def made(e):\n    return Unavailable(f'SF{e}', 'not to be read')"),
        ("producers/x.py", 'raise RequestRefused(404, "no number")'),
        ("state/x.py", 'raise InputRefused("no_such_code", "why")'),
        ("state/x.py", 'raise InputRefused(f"{why}", "why")'),
        ("consumers/x.py", 'Failure(code="no_such_code", message="")'),
        ("consumers/x.py", 'code = "no_such_code" if x else "timeout"'),
        ("state/x.py", 'raise ValueError("why")'),
        ("infra/x.py", 'raise FileNotFoundError("why")'),
        ("surefoot/x.py", "class Odd(Exception): ...\nraise Odd()"),
    ],
)
def test_a_forgotten_number_is_found(path: str, source: str) -> None:
    assert len(list(problems(path, source))) == 1


def test_no_number_is_left_over() -> None:
    used = {
        number
        for path, source in FILES.items()
        if not path.startswith("state/errors/catalogue/")
        for number in _NUMBER.findall(source)
    }
    words = {
        each.value
        for path, source in FILES.items()
        if not path.startswith("state/errors/catalogue/")
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
    unused = [
        page.number
        for page in ERROR_PAGES.values()
        if page.number not in used and not words & set(page.codes)
    ]

    assert unused == []
    assert [code for page in ERROR_PAGES.values() for code in page.codes if code not in words] == []


def test_the_table_is_in_order() -> None:
    tables = [getattr(catalogue, name) for name in dir(catalogue) if name.isupper()]
    numbers = Counter(page.number for table in tables if isinstance(table, tuple) for page in table)
    codes = Counter(code for page in ERROR_PAGES.values() for code in page.codes)

    assert [number for number, times in numbers.items() if times > 1] == []
    assert [code for code, times in codes.items() if times > 1] == []
    assert numbers.keys() == ERROR_PAGES.keys()
    for page in ERROR_PAGES.values():
        assert re.fullmatch(r"SF\d{4}", page.number)
        assert page.number[:4] in THEMES
        assert page.means, page.number
        assert page.causes, page.number
        assert page.mend, page.number


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == text(), "run: python -m tests.generate.errors_page"


def test_links_to_an_error_lead_to_its_entry() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    linked = {n for page in pages for n in re.findall(r"errors\.md#(\w+)", page.read_text())}
    assert "SF3016" in linked
    assert linked <= set(ERROR_PAGES)


def test_what_a_page_says_to_type_is_there() -> None:
    settings = {f"SUREFOOT_{name.upper()}" for name in Settings.model_fields}
    for page in ERROR_PAGES.values():
        text = " ".join((page.means, *page.causes, *page.mend))
        for variable in re.findall(r"SUREFOOT_[A-Z_]*[A-Z]\b", text):
            made = (
                variable.startswith(("SUREFOOT_HOOK", "SUREFOOT_WEBHOOK"))
                or variable == "SUREFOOT_SSL"
            )
            assert made or variable in settings, f"{page.number}: {variable}"
        for document in re.findall(r"\b(?:docs/[\w/-]+|README)\.md", text):
            assert (ROOT / document).exists(), f"{page.number}: {document}"
        for line in re.findall(r"`(?:[A-Z_]+=\S+ )*surefoot ([^`]*)`", text):
            command = get_command(app)
            for word in shlex.split(line):
                commands = getattr(command, "commands", None)
                if commands is not None:
                    assert word in commands, f"{page.number}: surefoot {line}"
                    command = commands[word]
                elif word.startswith("--"):
                    options = [option for each in command.params for option in each.opts]
                    options += [o for each in command.params for o in each.secondary_opts]
                    assert word in [*options, "--help"], f"{page.number}: surefoot {line}"


@pytest.mark.parametrize("text", ["SF1203", "sf1203", "1203", " bad_return "])
def test_a_page_is_found_by_number_or_code(text: str) -> None:
    page = find(text)

    assert page is not None
    assert page.number == "SF1203"


@pytest.mark.parametrize(
    ("text", "nearest"), [("SF1239", "SF1203"), ("1230", "SF1203"), ("bad_retrun", "SF1203")]
)
def test_a_mistyped_one_has_neighbours(text: str, nearest: str) -> None:
    assert find(text) is None
    assert nearest in [page.number for page in closest(text)]


def test_an_error_shows_its_number() -> None:
    error = ConfigError("SF1103", "agent name 'X'")

    assert str(error) == "SF1103: agent name 'X'"
    assert error.args == ("SF1103", "agent name 'X'")  # so that it can be pickled
