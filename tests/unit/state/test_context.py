"""What a step is given: who it is, and an outbox that refuses what can never be sent."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from surefoot.schemas.payload import Unserialisable, load
from surefoot.state.errors import BadArgument
from surefoot.state.machine.model import Entry, Memory, PlanItem
from surefoot.state.steps.context import idempotency_key
from surefoot.state.steps.effects import HTTP
from tests.support.fake_engine import FakeEngine, a_run


def test_a_step_knows_which_it_is() -> None:
    ctx = FakeEngine(a_run(seq=2, step="label", attempt=1), lease_s=0.5).attempt()
    assert (ctx.agent, ctx.run_id, ctx.seq, ctx.step, ctx.attempt) == ("a", "r", 2, "label", 1)
    assert ctx.lease_left_s() == 0.5


def test_effects_are_collected_in_order_under_keys_that_never_change() -> None:
    for attempt in range(2):
        ctx = FakeEngine(a_run(seq=2, attempt=attempt)).attempt()
        assert ctx.outbox.http("post", "http://h/1", json={"n": 1}) == "a:r:2:0"
        assert ctx.outbox.http("PUT", "https://h/2", body="text", headers={"A": "1"}) == "a:r:2:1"
        first, second = ctx.effects()
        assert (first.agent, first.run_id) == ("outbox", "a:r:2:0")
        assert json.loads(first.payload) == {
            "method": "POST",
            "url": "http://h/1",
            "headers": {"Content-Type": "application/json"},
            "body": '{"n":1}',
        }
        assert json.loads(second.payload) == {
            "method": "PUT",
            "url": "https://h/2",
            "headers": {"A": "1"},
            "body": "text",
        }


def test_a_rewound_run_has_the_same_keys_unless_its_effects_are_to_be_sent_anew() -> None:
    assert FakeEngine(a_run(epoch=3)).attempt().outbox.http("GET", "http://h") == "a:r:0:0"
    ctx = FakeEngine(a_run(epoch=3, emit=3)).attempt()
    assert ctx.outbox.http("GET", "http://h") == "a:r~e3:0:0"
    assert idempotency_key("a", "r", 0, 0, emit=3) == "a:r~e3:0:0"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"method": "FETCH"}, "unknown method 'FETCH'"),
        ({"url": "ftp://h/"}, "must begin with http:// or https://"),
        ({"url": "/path"}, "must begin with http:// or https://"),
        ({"url": "http://h:99999/"}, "ports are from 1 to 65535"),
        ({"url": "http://h:0/"}, "port 0"),
        ({"url": "http://h:eighty/"}, "ports are from 1 to 65535"),
        ({"url": "http://[::1/"}, "cannot be parsed"),
        ({"url": "http:///path"}, "the host '' is neither"),
        ({"url": "http://bücher.example/"}, "write other names in their xn-- form"),
        ({"url": "http://h/a b"}, "percent-encode the others"),
        ({"url": "http://h/\x7f"}, "percent-encode the others"),
        ({"url": "http://ann:secret@h/"}, "put credentials into headers"),
        ({"url": f"http://h/{'x' * 65_536}"}, "longer than 65536 bytes"),
        ({"json": 1, "body": "1"}, "json or body, not both"),
        ({"retry_on": [200]}, "got 200"),
        ({"retry_on": ["6xx"]}, "got 6xx"),
        ({"retry_on": "404"}, "retry_on must be a list of statuses, even of one; got '404'"),
        ({"retry_on": 404}, "retry_on must be a list of statuses, even of one; got 404"),
        ({"method": b"POST"}, "method must be text; got bytes"),
        ({"url": None}, "url must be text; got NoneType"),
        ({"url": b"http://h/"}, "url must be text; got bytes"),
        ({"body": b"1"}, "body must be text; got bytes"),
        ({"headers": {"": "1"}}, "header '' has an invalid name"),
        ({"headers": {" A": "1"}}, "header ' A' has an invalid name"),
        ({"headers": {"A B": "1"}}, "has an invalid name"),
        ({"headers": {"A:": "1"}}, "has an invalid name"),
        ({"headers": {"Ä": "1"}}, "has an invalid name"),
        ({"headers": {"A\0": "1"}}, "has an invalid name"),
        ({"headers": {"A": "1\r\nB: 2"}}, "line break"),
        ({"headers": {"A": "1\x7f"}}, "control character"),
        ({"headers": {"A": " 1"}}, "begins or ends with white space"),
        ({"headers": {"A": "token\n"}}, "begins or ends with white space"),
        ({"headers": {"A": "ü"}}, "not ASCII"),
        ({"headers": {"A": 1}}, "must have a text value; got int"),
        ({"headers": {"A": "1", "a": "2"}}, "header 'a' is given twice"),
        ({"headers": {"content-length": "0"}}, "is set by the relay"),
        ({"headers": {"Host": "other"}}, "is set by the relay"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "is set by the relay"),
        ({"headers": {"connection": "close"}}, "is set by the relay"),
        ({"headers": {"idempotency-key": "mine"}}, "is set to the effect's key"),
    ],
)
def test_what_can_never_be_sent_is_refused_and_takes_no_key(given: Any, told: str) -> None:
    ctx = FakeEngine().attempt()
    with pytest.raises(BadArgument, match=re.escape(told)) as refused:
        ctx.outbox.http(**{"method": "POST", "url": "http://h/"} | given)
    assert str(refused.value).startswith("SF1206: outbox.http: ")
    with pytest.raises(Unserialisable):
        ctx.outbox.http("POST", "http://h/", json={1, 2})
    assert ctx.effects() == ()
    assert ctx.outbox.http("GET", "http://h/") == "a:r:0:0"


def test_what_an_author_says_of_answers_is_in_the_effect() -> None:
    ctx = FakeEngine().attempt()
    ctx.outbox.http("POST", "http://h/", retry_on=(404, "5xx"), keep_body=True)
    ctx.outbox.http("POST", "http://h/", retry_on=())
    ctx.outbox.http("POST", "http://h/")
    found = [load(HTTP.stored, effect.payload) for effect in ctx.effects()]
    assert [(effect.retry_on, effect.keep_body) for effect in found] == [
        (("404", "5xx"), True),
        ((), False),
        (None, False),
    ]


@pytest.mark.parametrize("name", ["content-type", "Content-Type", "CONTENT-TYPE"])
def test_a_content_type_is_there_once_and_the_authors_own(name: str) -> None:
    ctx = FakeEngine().attempt()
    ctx.outbox.http("POST", "http://h/", json={}, headers={name: "application/vnd.x+json"})
    (effect,) = ctx.effects()
    assert json.loads(effect.payload)["headers"] == {name: "application/vnd.x+json"}


def test_the_runs_memory_is_put_into_the_steps_hands() -> None:
    item = PlanItem(id="0.0", text="look")
    ctx = FakeEngine().attempt(Memory(plan=(item,)))
    assert ctx.plan.items == [item]
    assert ctx.thread.messages == []
    ctx.plan.add("more")
    ctx.thread.append("hello")
    assert FakeEngine().attempt(Memory(plan=(item,))).plan.items == [item]


def signal(identity: str, name: str, payload: bytes) -> Entry:
    return Entry(
        run_id="r",
        slot=f"s:{identity}",
        kind="signal",
        id=identity,
        name=name,
        value=payload,
        by="ana",
        at_ms=7,
    )


def test_the_inbox_gives_the_signals_of_one_name_and_tells_what_was_taken() -> None:
    ctx = FakeEngine().attempt()
    assert (ctx.inbox("message"), ctx.taken()) == ([], ())
    entries = [
        signal("1", "message", b'"a"'),
        signal("2", "stop", b"1"),
        signal("3", "message", b"2"),
    ]
    ctx = FakeEngine().attempt(signals=entries)
    taken = ctx.inbox("message")
    assert [(s.id, s.name, s.payload, s.by, s.at_ms) for s in taken] == [
        ("1", "message", "a", "ana", 7),
        ("3", "message", 2, "ana", 7),
    ]
    assert ctx.inbox("message") == taken
    assert ctx.taken() == ("1", "3")
