"""What a stranger sends costs as much as it is long: twice as much of it, twice the steps."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.datastructures import QueryParams
from starlette.requests import Request

from surefoot.producers.api import events
from surefoot.producers.guards import IN_LOOP_BYTES, headers_of, parse_body
from surefoot.schemas import payload
from surefoot.schemas.foreign.cloudevents import structured
from surefoot.schemas.foreign.event_codec import framed
from surefoot.schemas.payload import dump, load, parse_json
from surefoot.state.declare.webhook_body import form_fields, json_values
from tests.support.step_calls import Counted, steps
from tests.unit.producers.test_gateway import Gateway

FORM = "application/x-www-form-urlencoded"
ANY: TypeAdapter[Any] = TypeAdapter(Any)


def request(names: list[str]) -> Request:
    headers = [(name.encode(), b"v%d" % n) for n, name in enumerate(names)]
    return Request({"type": "http", "headers": headers})


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def twice(count: int) -> bytes:
    """An object of which the last key has been there before."""
    return b"{%s}" % b",".join(b'"%s":1' % name.encode() for name in [*names(count), "n0"])


def event(count: int) -> bytes:
    told = {"specversion": "1.0", "id": "1", "source": "s", "type": "t"}
    return json.dumps(told | dict.fromkeys(names(count), "x")).encode()


def form(count: int) -> bytes:
    return "&".join(f"{name}=1" for name in names(count)).encode()


def ce_headers(count: int) -> dict[str, bytes]:
    return {f"ce_{name}": b"x" for name in ["specversion", *names(count)]}


#: given how much there is of it
READERS: dict[str, Callable[[int], Callable[[], Any]]] = {
    "headers": lambda n: partial(headers_of, request(names(n))),
    "headers of one name": lambda n: partial(headers_of, request(["n"] * n)),
    "a key twice": lambda n: partial(parse_json, twice(n)),
    "many objects": lambda n: partial(parse_json, listed(b'{"a":1}', n)),
    "a form": lambda n: partial(json_values, FORM, form(n)),
    "a form with a field twice": lambda n: partial(form_fields, FORM, b"&".join([b"a=1"] * n)),
    "a content type": lambda n: partial(form_fields, FORM + ";charset " * n, b"a=1"),
    "a query": lambda n: partial(watch, "&".join(["type=run.started"] * n)),
    "a query of unknown names": lambda n: partial(watch, form(n).decode()),
    "a CloudEvent": lambda n: partial(structured, event(n), "application/cloudevents+json"),
    "a CloudEvent's headers": lambda n: partial(framed, b"{}", ce_headers(n)),
    "a payload": lambda n: partial(stored, listed(b'{"a":[1]}', n)),
}


def listed(item: bytes, count: int) -> bytes:
    return b"[%s]" % b",".join([item] * count)


def watch(query: str) -> None:
    events._check(QueryParams(query))


def stored(raw: bytes) -> bytes:
    return dump(ANY, load(ANY, raw))


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_twice_as_much_takes_twice_the_steps(
    reader: Callable[[int], Callable[[], Any]],
) -> None:
    steps(reader(10))  # what is made once is made
    once, doubled = steps(reader(200)), steps(reader(400))
    assert doubled <= 2 * once + 100


def test_a_key_twice_is_found_in_one_pass() -> None:
    for count in (100, 200):
        pairs = [(Counted(name), 1) for name in [*names(count), f"n{count - 1}"]]
        Counted.comparisons = 0
        with pytest.raises(payload.BadPayload, match=f"'n{count - 1}' occurs twice"):
            payload._unique(pairs)  # type: ignore[arg-type]
        assert Counted.comparisons <= count


async def test_a_large_body_is_parsed_in_a_thread_and_a_small_one_at_once() -> None:
    for size, here in ((IN_LOOP_BYTES, True), (IN_LOOP_BYTES + 1, False)):
        ran_in = await parse_body(size, threading.get_ident)
        assert (ran_in == threading.get_ident()) is here


async def test_while_a_large_body_is_parsed_other_requests_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At each address that takes one: the parser goes on once another request has its answer."""
    gateway = Gateway()
    begun, answered, real = threading.Event(), threading.Event(), payload._parse

    def waits(data: bytes, make: Any) -> Any:
        if len(data) > IN_LOOP_BYTES:
            begun.set()
            assert answered.wait(60)
        return real(data, make)

    monkeypatch.setattr(payload, "_parse", waits)
    large = b"[%s1]" % (b" " * IN_LOOP_BYTES)
    async with gateway.http:
        for send in (
            gateway.deliver(large),
            gateway.start(large),
            gateway.operate("pause", large),
        ):
            begun.clear()
            answered.clear()
            slow = asyncio.create_task(send)
            assert await asyncio.to_thread(begun.wait, 60)
            assert (await gateway.http.get("/health")).status_code == 200
            assert not slow.done()
            answered.set()
            assert (await slow).status_code in (400, 422)
