"""`surefoot schemas`: exit statuses that a CI can lean on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from surefoot.commands.develop import schemas as command
from surefoot.infra.registry.confluent import Registry
from surefoot.schemas.codec import catalog
from surefoot.schemas.codec.compatibility import check_all
from tests.unit.surefoot.test_cli import NOWHERE, run

ORDER: dict[str, Any] = {"type": "record", "name": "Order", "fields": []}
STRICT = {**ORDER, "fields": [{"name": "item", "type": "string"}]}


@pytest.fixture
def order(tmp_path: Path) -> str:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(STRICT))
    return str(path)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, httpx.Response]:
    """What the registry says, by path."""
    said: dict[str, httpx.Response] = {}
    transport = httpx.MockTransport(lambda request: said[request.url.path])
    monkeypatch.setattr(
        command, "open_registry", lambda _: Registry("http://registry", transport=transport)
    )
    return said


def test_our_own_schemas_are_fine() -> None:
    code, told, _ = run("schemas", "check")
    assert (code, "read each other's records" in told) == (0, True)


def test_a_schema_of_ours_that_is_gone_is_found(tmp_path: Path) -> None:
    (tmp_path / "avro").mkdir()
    released = tmp_path / "released" / "v1"
    released.mkdir(parents=True)
    (released / "Task.avsc").write_text(json.dumps({**ORDER, "name": "Task"}))
    assert catalog.current(tmp_path) == {}
    [problem] = check_all(tmp_path)
    assert "the schema Task is missing" in problem


def test_every_released_version_is_looked_at_and_the_file_itself_is_not(
    order: str, tmp_path: Path
) -> None:
    for version in ("v1", "v2"):
        folder = tmp_path / "released" / version
        folder.mkdir(parents=True)
        (folder / "order.avsc").write_text(json.dumps(STRICT))
    assert run("schemas", "check", order, "--against", str(tmp_path))[0] == 0
    (tmp_path / "released" / "v1" / "order.avsc").write_text(json.dumps(ORDER))
    code, _, told = run("schemas", "check", order, "--against", str(tmp_path))
    assert code == 1
    assert "v1" in told
    assert "item" in told
    assert "v2" not in told


def test_the_registry_decides_by_the_subject(
    order: str, answers: dict[str, httpx.Response]
) -> None:
    path = "/compatibility/subjects/{}/versions/latest"
    answers[path.format("order")] = httpx.Response(200, json={"is_compatible": True})
    no = {"is_compatible": False, "messages": ["item \x1b[31m"]}
    answers[path.format("orders-value")] = httpx.Response(200, json=no)
    assert run("schemas", "check", order, "--registry")[0] == 0
    code, _, told = run("schemas", "check", order, "--registry", "--subject", "orders-value")
    assert (code, told) == (1, "surefoot: orders-value: item \\x1b[31m\n")


def test_a_schema_is_registered_and_its_id_is_printed(
    order: str, answers: dict[str, httpx.Response]
) -> None:
    answers["/subjects/order/versions"] = httpx.Response(200, json={"id": 7})
    assert run("schemas", "register", order) == (0, "order 7\n", "")
    answers["/subjects/order/versions"] = httpx.Response(
        409, json={"error_code": 409, "message": "it does not fit"}
    )
    code, _, told = run("schemas", "register", order)
    assert (code, "it does not fit" in told) == (1, True)


def test_a_registry_that_is_away_is_status_69(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_REGISTRY_URL", f"http://{NOWHERE}")
    assert run("schemas", "check", order, "--registry")[0] == 69
    assert run("schemas", "register", order)[0] == 69


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["check", "{order}"], "--against"),
        (["check", "nowhere.avsc", "--registry"], "nowhere.avsc: No such file"),
        (["check", "{order}", "--registry"], "SUREFOOT_REGISTRY_URL"),
        (["check", "{order}", "--against", "nowhere"], "no such folder"),
        (["check", "{order}", "{order}", "--registry", "--subject", "s"], "one file"),
        (["register"], "name the schema files"),
        (["register", "{order}"], "SUREFOOT_REGISTRY_URL"),
    ],
)
def test_wrong_usage_is_status_2_and_says_what_to_change(
    args: list[str], wanted: str, order: str
) -> None:
    code, _, told = run("schemas", *(arg.format(order=order) for arg in args))
    assert (code, wanted in told) == (2, True)


@pytest.mark.parametrize("text", ["{", '{"type": "nonsense"}', '{"a": 1, "a": 2}'])
def test_what_is_no_schema_is_status_2(order: str, text: str) -> None:
    Path(order).write_text(text)
    code, _, told = run("schemas", "register", order)
    assert (code, "order.avsc" in told) == (2, True)
