"""Whatever bytes come in: every decoder answers with a value or with its own error."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from surefoot.producers.api.events import offset_of
from surefoot.producers.commands.operations import command
from surefoot.producers.guards import RequestRefused, trace_context
from surefoot.schemas.codec.codec import UndecodableError, decode, encode
from surefoot.schemas.payload import BadPayload, parse_json
from surefoot.state.machine.commands import BODIES
from surefoot.state.machine.model import Work
from surefoot.state.machine.pooled_step import decode_input, decode_outcome
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import APPLIED_KEY
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.records.encoding import (
    command_out,
    decode_applied,
    decode_checkpoint,
    decode_command,
    decode_entry,
    decode_task,
)
from surefoot.state.records.run_store import RunStore

GOOD = [
    command_out("a", 1, "b", run_id="r1", kind="start", sent_ms=0, payload=b"1").value or b"",
    encode("Task", {"run_id": "r1", "seq": 0, "step": "s"}),
    encode("Applied", {"commands": 1, "tasks": None, "answered": [3], "answered_tasks": []}),
]


@st.composite
def hurt(draw: st.DrawFn) -> bytes:
    """A good record that something has happened to."""
    data = bytearray(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "huge"])):
            case "flip" if data:
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=8))
            case "huge":  # a length that claims to be enormous, and one below zero
                data[at:at] = draw(st.sampled_from([b"\xfe" * 9 + b"\x01", b"\x01", b"\xff" * 10]))
    return bytes(data)


BYTES = st.binary(max_size=64) | hurt() | hurt().map(lambda data: data[:2] + data[2:10] + data)


def record(value: bytes | None, key: bytes | None = b"r1") -> ConsumerRecord:
    return ConsumerRecord("t", 0, 0, 0, key, value)


DECODERS: dict[str, tuple[Callable[[bytes], Any], tuple[type[Exception], ...]]] = {
    "any record": (decode, (UndecodableError,)),
    "checkpoint": (decode_checkpoint, (UndecodableError,)),
    "entry": (decode_entry, (UndecodableError,)),
    "applied": (decode_applied, ()),
    "command": (lambda data: decode_command(record(data)), (UndecodableError,)),
    "task": (lambda data: decode_task(record(data)), (UndecodableError,)),
    "strict JSON": (parse_json, (BadPayload,)),
    "input of a pool": (decode_input, (ValueError,)),
    "outcome of a pool": (
        lambda data: decode_outcome(data, Work(seq=0, attempt=0)),
        (ValueError,),
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_bytes_get_a_value_or_the_decoders_own_error(name: str) -> None:
    decoder, errors = DECODERS[name]

    @given(BYTES)
    @settings(max_examples=150, derandomize=True, deadline=None)
    def answers(data: bytes) -> None:
        with suppress(*errors):
            decoder(data)

    answers()


@given(st.binary(max_size=20) | st.sampled_from([b"r1", APPLIED_KEY, b"r1|c:x#0"]), BYTES)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_a_state_partition_of_anything_is_restored(key: bytes, value: bytes) -> None:
    store = RunStore()
    store.apply([record(value, key), record(None, key), record(value, key)])
    store.apply([record(value, None)])


@given(st.text(max_size=40))
@settings(max_examples=150, derandomize=True, deadline=None)
def test_any_text_has_a_partition(text: str) -> None:
    assert 0 <= partition_of(text.encode("utf-8", "replace").decode(), 7) < 7


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(BODIES)), JSON)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_a_command_over_http_is_one_or_says_what_is_wrong(verb: Any, said: Any) -> None:
    with suppress(ValueError):
        assert command(verb, said, run_id="r", new_id="c1").id


@given(st.integers(1, 3_000))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_json_of_any_depth_is_read_or_refused(depth: int) -> None:
    with suppress(BadPayload):
        parse_json(b"[" * depth + b"]" * depth)


TRACE = (b"traceparent", b"tracestate", b"baggage")


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=70)), max_size=3))
@settings(max_examples=150, derandomize=True, deadline=None)
def test_headers_of_a_request_are_taken_or_left(headers: list[tuple[bytes, bytes]]) -> None:
    named = [(name, value) for name in TRACE for _, value in headers]
    named += [(b"last-event-id", value) for _, value in headers[:1]]
    request = Request({"type": "http", "headers": named, "query_string": b""})
    for told in trace_context(request).values():
        assert str(told).isascii()
        assert str(told).isprintable()
    with suppress(RequestRefused):
        offset = offset_of(request)
        assert offset is None or offset >= 0


def test_what_is_tried_is_not_all_refused() -> None:
    for good in GOOD:
        assert json.dumps(str(decode(good)))
