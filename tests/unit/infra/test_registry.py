"""The registry's client, against answers as Apicurio 2.6 gave them (tests/integration/
test_registry_server.py asks a real one)."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from surefoot import ConfigError, NotFound, Refused, Unavailable
from surefoot.infra.registry.confluent import Registered, Registry

A = {"type": "record", "name": "A", "fields": []}
TEXT = json.dumps(A)


class Server:
    def __init__(self, *answers: httpx.Response | Exception, **options: Any) -> None:
        self.answers = list(answers)
        self.seen: list[httpx.Request] = []
        self.registry = Registry(
            "http://registry/apis/ccompat/v7",
            transport=httpx.MockTransport(self._answer),
            **options,
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ok(**told: Any) -> httpx.Response:
    return httpx.Response(200, json=told)


async def test_what_an_id_stands_for_is_asked_once() -> None:
    server = Server(ok(schema=TEXT, references=[]), ok(schema='"string"'))
    async with server.registry as registry:
        assert [await registry.by_id(1) for _ in range(3)] == [A, A, A]
        assert await registry.by_guid("a/b") == "string"
    paths = [each.url.raw_path for each in server.seen]
    assert paths == [b"/apis/ccompat/v7/schemas/ids/1", b"/apis/ccompat/v7/schemas/guids/a%2Fb"]


async def test_what_was_not_there_is_asked_for_again() -> None:
    missing = httpx.Response(404, json={"error_code": 40403, "message": "No content"})
    server = Server(missing, ok(schema=TEXT))
    async with server.registry as registry:
        with pytest.raises(NotFound, match=r"40403: .* says No content"):
            await registry.by_id(1)
        assert await registry.by_id(1) == A


async def test_the_latest_version_is_asked_for_every_time() -> None:
    told = {"id": 1, "subject": "t", "version": 2, "schema": TEXT}
    server = Server(ok(**told), ok(**told))
    async with server.registry as registry:
        assert await registry.latest("t") == Registered(1, 2, A)
        assert await registry.latest("t") == Registered(1, 2, A)


async def test_a_schema_is_registered_as_text_in_json() -> None:
    server = Server(ok(id=7))
    async with server.registry as registry:
        assert await registry.register("t-value", A) == 7
    assert json.loads(json.loads(server.seen[0].content)["schema"]) == A


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (ok(is_compatible=True), []),
        (ok(is_compatible=False, reason=None), ["the schema is not compatible"]),
        (ok(is_compatible=False, reason="no default"), ["no default"]),
        (ok(is_compatible=False, messages=["x: int", "y"]), ["x: int", "y"]),
        (httpx.Response(404, json={"error_code": 40402, "message": "none"}), []),
    ],
)
async def test_what_does_not_fit_is_told(answer: httpx.Response, wanted: list[str]) -> None:
    async with Server(answer).registry as registry:
        assert await registry.problems("t", A) == wanted


@pytest.mark.parametrize("answer", [httpx.ReadTimeout("slow"), httpx.Response(503, text="<p>")])
async def test_a_registry_that_is_away_is_unavailable(answer: httpx.Response | Exception) -> None:
    async with Server(answer).registry as registry:
        with pytest.raises(Unavailable, match="http://registry"):
            await registry.by_id(1)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ok(schema="{}", schemaType="PROTOBUF"), "not_avro"),
        (ok(schema=TEXT, references=[{"name": "b"}]), "references"),
        (ok(nothing=1), "not_avro"),
        (httpx.Response(401, text="<p>"), "http_401"),
        (httpx.Response(200, text="<p>"), "http_200"),
    ],
)
async def test_an_answer_that_is_of_no_use_is_refused(answer: httpx.Response, code: str) -> None:
    async with Server(answer).registry as registry:
        with pytest.raises(Refused) as caught:
            await registry.by_id(1)
    assert caught.value.code == code


async def test_it_shows_who_asks_and_tells_nobody_else() -> None:
    secret = SecretStr("pa:ss")
    basic = Server(ok(id=1), username="ann", password=secret)
    bearer = Server(ok(id=1), token=secret)
    for server in (basic, bearer):
        async with server.registry as registry:
            await registry.register("t", A)
            assert "pa:ss" not in repr(vars(registry))
    encoded = base64.b64encode(b"ann:pa:ss").decode()
    assert basic.seen[0].headers["authorization"] == f"Basic {encoded}"
    assert bearer.seen[0].headers["authorization"] == "Bearer pa:ss"
    with pytest.raises(ConfigError, match="not both"):
        Registry("http://registry", username="a", token=secret)


@pytest.mark.parametrize("url", ["registry:8081", "", "http://a:pw@h"])
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Registry(url)
    assert "pw" not in str(caught.value)
