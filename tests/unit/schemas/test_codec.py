"""The codec: exact, strict, the same bytes as Apache Avro, and unmoved by corrupt input."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import avro.io
import avro.schema
import pytest

from surefoot.schemas.codec import catalog, compatibility
from surefoot.schemas.codec.codec import Codec, CodecError, UndecodableError, decode, encode

FAILURE: dict[str, Any] = {
    "code": "step_raised",
    "message": "no such label",
    "kind": "KeyError",
    "step": None,
    "attempt": 2,
    "frames": ["agent.py:12 in label"],
}
AMOUNT: dict[str, Any] = {"what": "tokens", "amount": 1_200}
BRANCH: dict[str, Any] = {"agent": "reviewer", "step": None, "payload": b'"a diff"'}
DECIDED: dict[str, Any] = {
    "question": "q-1",
    "approved": 1,
    "by": "ana",
    "at_ms": 1_764_286_000_000,
}
HEADER: dict[str, Any] = {"name": "x-github-event", "value": "issues"}
ACTION: dict[str, Any] = {
    "run_id": "gh-1",
    "step": "pay",
    "call": "charge#0",
    "digest": b"1234567812345678",
}
RUN_NAME: dict[str, Any] = {"agent": "triage", "run_id": "github-d-1"}
PARENT: dict[str, Any] = {"agent": "triage", "run_id": "gh-1", "fork": 1, "branch": 0}
PLAN_ITEM: dict[str, Any] = {"id": "3.0", "text": "read the logs", "state": "open"}
MEMORY: dict[str, Any] = {
    "plan": [PLAN_ITEM],
    "thread": 2,
    "spent": [AMOUNT],
    "granted": [AMOUNT, {"what": "money", "amount": 2_500_000}],
    "decided": [DECIDED],
}
WAIT: dict[str, Any] = {
    "kind": "children",
    "since_ms": 1_764_286_000_000,
    "then": "comment",
    "on_timeout": None,
    "names": ["approval", "veto"],
    "mode": "join",
    "need": 2,
    "question": None,
    "by": ["ana"],
    "fork": 1,
    "limit": 4,
    "branches": [BRANCH, {**BRANCH, "step": "comment"}],
}
RECORDS: dict[str, dict[str, Any]] = {
    "Action": ACTION,
    "Amount": AMOUNT,
    "Applied": {"commands": 4, "tasks": None, "answered": [7, 9], "answered_tasks": [3]},
    "Branch": BRANCH,
    "Checkpoint": {
        "run_id": "gh-1",
        "agent": "triage",
        "version": 1,
        "status": "running",
        "seq": 3,
        "step": "comment",
        "attempt": 0,
        "payload": b'{"number":1}',
        "due_ms": None,
        "result": None,
        "failure": FAILURE,
        "created_ms": 1_764_286_000_000,
        "updated_ms": 1_764_286_000_001,
        "input_digest": b"12345678",
        "records": 3,
        "traceparent": None,
        "tracestate": None,
        "baggage": None,
        "epoch": 1,
        "emit": 1,
        "forks": 1,
        "wait": WAIT,
        "carry": b'"kept"',
        "parent": PARENT,
        "memory": MEMORY,
        "ending": "failed",
        "reason": None,
        "commands": ["c-1", "c-2"],
    },
    "Command": {
        "run_id": "gh-1",
        "kind": "rewind",
        "step": "comment",
        "payload": b"null",
        "sent_ms": 1_764_286_000_000,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "rojo=00f067aa0ba902b7",
        "baggage": "userId=amelie",
        "id": "c-1",
        "name": None,
        "by": "ana",
        "parent": PARENT,
        "carry": b'"kept"',
        "memory": MEMORY,
        "messages": [b'"hello"', b'"there"'],
        "failure": FAILURE,
        "seq": 3,
        "epoch": 1,
        "emit": 1,
        "wait": WAIT,
        "due_ms": 1_764_286_000_000,
        "created_ms": None,
        "input_digest": b"12345678",
        "repeat": ["charge"],
        "actions": [ACTION],
    },
    "Decided": DECIDED,
    "AccessToken": {
        "name": "ann",
        "role": "operator",
        "agents": ["triage", "billing-*"],
        "digest": b"12345678123456781234567812345678",
        "created_ms": 1_764_286_000_000,
        "expires_ms": None,
    },
    "Audit": {
        "id": "018f0000000070008000000000000000",
        "at_ms": 1_764_286_000_000,
        "who": "ann",
        "action": "pause",
        "status": 200,
        "agent": "triage",
        "run_id": "gh-1",
        "origin": "10.0.0.7",
        "note": None,
        "unrecorded": 0,
    },
    "Delivery": {
        "id": "018f0000000070008000000000000000",
        "source": "github",
        "at_ms": 1_764_286_000_000,
        "outcome": "started",
        "status": 202,
        "reason": None,
        "verified": 1,
        "delivery": "d-1",
        "event": "issues",
        "headers": [HEADER],
        "body": b'{"action": "opened"}',
        "body_bytes": 20,
        "runs": [RUN_NAME],
        "errors": ["triage: no such field"],
        "unrecorded": 3,
    },
    "Entry": {
        "run_id": "gh-1",
        "slot": "c:label#0",
        "kind": "call",
        "seq": 3,
        "epoch": 1,
        "digest": b"1234567812345678",
        "value": b'"bug"',
        "failure": None,
        "id": None,
        "name": None,
        "by": None,
        "cost": [AMOUNT],
        "at_ms": 1_764_286_000_000,
    },
    "Event": {
        "run_id": "gh-1",
        "agent": "triage",
        "version": 1,
        "type": "step.completed",
        "status": "running",
        "seq": 2,
        "step": "classify",
        "next_step": "comment",
        "attempt": 0,
        "at_ms": 1_764_286_000_000,
        "started_ms": 1_764_286_000_000,
        "due_ms": None,
        "effects": ["triage:gh-1:2:0", "triage:gh-1:2:1"],
        "result": None,
        "failure": None,
        "epoch": 0,
        "id": None,
        "name": None,
        "by": None,
        "payload": b'{"number":1}',
        "carry": None,
        "memory": MEMORY,
        "wait": WAIT,
        "children": 2,
    },
    "Failure": FAILURE,
    "Header": HEADER,
    "Memory": MEMORY,
    "Parent": PARENT,
    "PlanItem": PLAN_ITEM,
    "RunName": RUN_NAME,
    "Sealed": {"key": "k1", "nonce": b"n" * 24, "shown": b"for all", "sealed": b"for some"},
    "Stream": {
        "run_id": "gh-1",
        "name": "draft",
        "seq": 3,
        "attempt": 1,
        "kind": "text",
        "offset": 12,
        "text": "once upon",
        "at_ms": 1_764_286_000_000,
    },
    "Task": {"run_id": "gh-1", "seq": 3, "step": "comment"},
    "Wait": WAIT,
}


def replaced(name: str, **fields: Any) -> dict[str, Any]:
    return {**RECORDS[name], **fields}


def without(name: str, field: str) -> dict[str, Any]:
    return {key: value for key, value in RECORDS[name].items() if key != field}


def test_there_is_an_example_of_every_record():
    schemas = catalog.current()
    assert set(RECORDS) == {name for name in schemas if schemas[name]["type"] == "record"}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_comes_back_as_it_went_in(name: str):
    data = encode(name, RECORDS[name])

    assert decode(data) == (name, RECORDS[name])
    assert decode(memoryview(data), name) == (name, RECORDS[name])


@pytest.mark.parametrize("name", RECORDS)
def test_the_header_is_the_single_object_marker_and_the_fingerprint_apache_avro_computes(name: str):
    apache = avro.schema.parse(json.dumps(catalog.current()[name]))

    assert encode(name, RECORDS[name])[:10] == b"\xc3\x01" + apache.fingerprint("CRC-64-AVRO")


@pytest.mark.parametrize("name", RECORDS)
def test_apache_avro_writes_the_same_bytes_and_reads_ours(name: str):
    schema = avro.schema.parse(json.dumps(catalog.current()[name]))
    out = io.BytesIO()
    avro.io.DatumWriter(schema).write(RECORDS[name], avro.io.BinaryEncoder(out))
    ours = encode(name, RECORDS[name])

    assert ours[10:] == out.getvalue()
    reader = avro.io.DatumReader(schema)
    assert reader.read(avro.io.BinaryDecoder(io.BytesIO(ours[10:]))) == RECORDS[name]


# What does not fit is refused before anything is written


@pytest.mark.parametrize(
    ("name", "record", "says"),
    [
        ("Task", without("Task", "step"), r"Task has missing fields \['step'\]"),
        ("Event", without("Event", "effects"), r"missing fields \['effects'\]"),
        ("Task", replaced("Task", typo=5), r"unknown fields \['typo'\]"),
        ("Task", replaced("Task", seq=2**63), r"Task\.seq must be an integer that fits long"),
        ("Task", replaced("Task", seq=-(2**63) - 1), r"Task\.seq"),
        ("Task", replaced("Task", seq=True), r"Task\.seq .* got bool True"),
        ("Task", replaced("Task", seq=1.7), r"Task\.seq .* got float 1.7"),
        ("Task", replaced("Task", seq=None), r"Task\.seq"),
        ("Task", replaced("Task", run_id=b"gh-1"), r"Task\.run_id must be text; got bytes"),
        ("Task", replaced("Task", run_id="\ud800"), r"Task\.run_id .* lone surrogates"),
        ("Event", replaced("Event", version=2**31), r"Event\.version .* fits int"),
        ("Event", replaced("Event", step="\udfff"), r"Event\.step .* lone surrogates"),
        ("Event", replaced("Event", due_ms=2**63), r"Event\.due_ms .* fits long"),
        ("Event", replaced("Event", due_ms=1.0), r"Event\.due_ms"),
        ("Event", replaced("Event", effects=["a", 5]), r"Event\.effects\[1\] must be text"),
        ("Event", replaced("Event", effects="ab"), r"Event\.effects must be a list"),
        ("Event", replaced("Event", status="done"), r"Event\.status must be one of attention"),
        ("Event", replaced("Event", result="{}"), r"Event\.result must be bytes"),
        ("Event", replaced("Event", failure=[]), r"Event\.failure must be a dict"),
        ("Event", replaced("Event", failure={**FAILURE, "z": 1}), r"Event\.failure .*\['z'\]"),
        (
            "Event",
            replaced("Event", failure={**FAILURE, "attempt": 2**31}),
            r"Event\.failure\.attempt",
        ),
        ("Checkpoint", replaced("Checkpoint", payload=bytearray(b"{}")), r"payload must be bytes"),
        ("Tusk", RECORDS["Task"], r"unknown record 'Tusk'"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_field(name: str, record: Any, says: str):
    with pytest.raises(CodecError, match=says):
        encode(name, record)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**53 + 1, 0, -1])
def test_every_long_is_exact(number: int):
    assert decode(encode("Task", replaced("Task", seq=number)))[1]["seq"] == number


def test_a_union_that_a_value_could_fit_twice_is_refused_when_the_schemas_are_read(tmp_path: Path):
    edit_schema(tmp_path, "Task", "seq", type=["int", "long"])

    with pytest.raises(NotImplementedError, match="does not know how to write"):
        Codec(tmp_path)


# What cannot be read is refused with a reason


GOOD = encode("Checkpoint", RECORDS["Checkpoint"])
TASK = encode("Task", RECORDS["Task"])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "no value"),
        (b"", "the value is empty"),
        (b"\xc3", "not an Avro single-object record: begins with c3, not c301"),
        (b'{"run_id": "gh-1"}', "not an Avro single-object record"),
        (b"\x00\x00\x00\x00\x07" + TASK[10:], "not an Avro single-object record"),
        (TASK[:5], "cut off in the header, after 5 bytes"),
        (b"\xc3\x01" + b"\xff" * 8 + TASK[10:], "unknown schema fingerprint ffffffffffffffff"),
        (TASK[:10], "the body is not a Task: "),
        (TASK[:-1], "the body is not a Task: "),
        (TASK + b"\x00", "1 unexpected bytes after the Task"),
        (TASK[:10] + b"\x02\xff\x00\x02a", "the body is not a Task: UnicodeDecodeError"),
        (TASK[:10] + b"\x01" + TASK[11:], "the body is not a Task: "),
    ],
)
def test_malformed_bytes_are_undecodable_with_a_plain_reason(data: bytes | None, reason: str):
    with pytest.raises(UndecodableError) as caught:
        decode(data)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_a_record_cut_off_anywhere_is_undecodable(cut: int):
    with pytest.raises(UndecodableError):
        decode(GOOD[:cut])


def test_a_record_of_another_kind_is_refused():
    with pytest.raises(UndecodableError, match="expected a Command record, got a Task"):
        decode(TASK, "Command")


def zigzag(number: int) -> bytes:
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(out) + bytes([rest])


@pytest.mark.parametrize("size", [2**62, 2**63 - 1, -1, -(2**63)])
@pytest.mark.parametrize("before", [b"", b"\x02a\x00"])  # length of run_id; of step
def test_a_length_that_is_a_lie_costs_no_memory(size: int, before: bytes):
    data = TASK[:10] + before + zigzag(size) + b"abc"
    tracemalloc.start()
    try:
        with pytest.raises(UndecodableError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [2**40, 2**62, -(2**62), -(2**63)])
def test_an_array_that_claims_to_be_endless_costs_no_memory(count: int):
    data = encode("Event", replaced("Event", effects=["e"]))
    head, tail = data.split(b"\x02\x02e\x00")
    tracemalloc.start()
    try:
        with pytest.raises(UndecodableError):
            decode(head + zigzag(count) + b"\x02e\x00" + tail)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", [-1, -8, 8, 2**40])
def test_an_enum_number_outside_the_schema_is_undecodable(number: int):
    head, tail = GOOD.split(b"triage\x02\x02")  # agent, version 1, status 1 = running

    assert decode(head + b"triage\x02" + zigzag(2) + tail)[1]["status"] == "waiting"
    with pytest.raises(UndecodableError):
        decode(head + b"triage\x02" + zigzag(number) + tail)


@pytest.mark.parametrize("number", [-1, -2, 2])
def test_a_union_branch_outside_the_schema_is_undecodable(number: int):
    good = encode(
        "Applied", {"commands": None, "tasks": None, "answered": [], "answered_tasks": []}
    )
    more = zigzag(number) + (b"\x02" if number == -1 else b"")

    with pytest.raises(UndecodableError):
        decode(good[:10] + more + b"\x00\x00")


def test_an_int_that_no_other_avro_reader_would_take_is_undecodable():
    good = encode("Failure", {**FAILURE, "frames": []})

    with pytest.raises(
        UndecodableError, match=r"Failure\.attempt must be an integer that fits int"
    ):
        decode(good[:-2] + zigzag(2**31) + good[-1:])


# Versions


def edit_schema(root: Path, name: str, field: str, **change: Any) -> None:
    """Copy the schemas to `root` and change or add one field of a current one."""
    if not (root / "avro").exists():
        shutil.copytree(catalog.ROOT / "avro", root / "avro")
        shutil.copytree(catalog.ROOT / "released", root / "released")
    path = root / "avro" / f"{name}.avsc"
    schema = json.loads(path.read_text())
    for known in schema["fields"]:
        if known["name"] == field:
            known.update(change)
            break
    else:
        schema["fields"].append({"name": field, **change})
    path.write_text(json.dumps(schema))


def writer_of(root: Path, version: str) -> Codec:
    """The codec of a released version."""
    shutil.copytree(catalog.ROOT / "released" / version, root / "avro")
    return Codec(root)


def fields_of(version: str, name: str) -> list[str]:
    return [field["name"] for field in catalog.released()[version][name]["fields"]]


def as_written_by(version: str, name: str) -> dict[str, Any]:
    """The example, with the fields of then."""
    written = {field: RECORDS[name][field] for field in fields_of(version, name)}
    if name != "Failure" and "failure" in written:
        written["failure"] = as_written_by(version, "Failure")
    return written


def defaults_of(name: str) -> dict[str, Any]:
    return {field["name"]: field.get("default") for field in catalog.current()[name]["fields"]}


RELEASED = [
    (version, name)
    for version, schemas in catalog.released().items()
    for name, schema in schemas.items()
    if schema["type"] == "record"
]


@pytest.mark.parametrize(("version", "name"), RELEASED)
def test_a_record_of_a_released_version_is_read_with_the_current_schema(
    tmp_path: Path, version: str, name: str
):
    written = as_written_by(version, name)
    raw = writer_of(tmp_path / "then", version).encode(name, written)
    read = {**defaults_of(name), **written}
    if name != "Failure" and "failure" in written:
        read["failure"] = {**defaults_of("Failure"), **written["failure"]}

    assert decode(raw) == (name, read)
    assert decode(encode(name, read)) == (name, read)


def test_a_record_of_a_later_version_is_undecodable_and_reads_an_earlier_one(tmp_path: Path):
    edit_schema(tmp_path / "next", "Checkpoint", "priority", type="int", default=7)
    edit_schema(tmp_path / "next", "Failure", "hint", type=["null", "string"], default=None)
    newer = Codec(tmp_path / "next")
    written = as_written_by("v1", "Checkpoint")

    name, record = newer.decode(writer_of(tmp_path / "then", "v1").encode("Checkpoint", written))

    assert name == "Checkpoint"
    assert (record["priority"], record["failure"]) == (7, {**FAILURE, "frames": [], "hint": None})
    assert newer.decode(newer.encode(name, record)) == (name, record)
    with pytest.raises(UndecodableError, match="unknown schema fingerprint"):
        decode(newer.encode(name, record))


def test_corrupt_choices_of_a_released_version_are_undecodable_too(tmp_path: Path):
    written = as_written_by("v1", "Checkpoint")
    raw = writer_of(tmp_path, "v1").encode("Checkpoint", written)
    head, tail = raw.split(b"triage\x02\x02")

    assert decode(head + b"triage\x02" + zigzag(2) + tail)[1]["status"] == "waiting"
    with pytest.raises(UndecodableError, match="the body is not a Checkpoint"):
        decode(head + b"triage\x02" + zigzag(-1) + tail)


@pytest.mark.parametrize("name", catalog.current())
def test_the_schema_is_compatible_both_ways_with_every_released_version(name: str):
    assert compatibility.check_schema(name) == []


def test_a_new_field_with_a_default_is_compatible(tmp_path: Path):
    edit_schema(tmp_path, "Task", "priority", type="int", default=0)

    assert compatibility.check_schema("Task", tmp_path) == []


def test_a_new_field_without_a_default_is_reported(tmp_path: Path):
    edit_schema(tmp_path, "Task", "priority", type="int")

    [problem] = compatibility.check_schema("Task", tmp_path)

    assert problem.startswith("this build cannot read the Task of v1: reader_field_missing_default")
    assert "priority" in problem


def test_a_field_that_is_gone_is_reported_for_the_old_readers(tmp_path: Path):
    edit_schema(tmp_path, "Task", "priority", type="int", default=0)
    path = tmp_path / "avro" / "Task.avsc"
    schema = json.loads(path.read_text())
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "seq"]
    path.write_text(json.dumps(schema))

    [problem] = compatibility.check_schema("Task", tmp_path)

    assert problem.startswith("v1 cannot read the Task of this build")


def test_a_new_enum_symbol_is_reported_for_the_old_readers_of_every_record_with_it(tmp_path: Path):
    edit_schema(tmp_path, "Task", "priority", type="int", default=0)
    path = tmp_path / "avro" / "Status.avsc"
    schema = json.loads(path.read_text())
    schema["symbols"].append("dreaming")
    path.write_text(json.dumps(schema))

    for name in ("Status", "Checkpoint", "Event"):
        [problem] = compatibility.check_schema(name, tmp_path)
        assert problem.startswith(f"v1 cannot read the {name} of this build: missing_enum_symbols")


def test_a_record_that_is_gone_is_reported(tmp_path: Path):
    edit_schema(tmp_path, "Task", "priority", type="int", default=0)
    (tmp_path / "avro" / "Task.avsc").unlink()

    assert compatibility.check_schema("Task", tmp_path) == [
        "the schema Task is missing, but v1 wrote such records; restore it"
    ]


def test_released_files_have_not_changed():
    recorded = (catalog.ROOT / "released" / "FINGERPRINTS").read_text().splitlines()
    present = [
        line for version in catalog.released() for line in compatibility.fingerprints(version)
    ]

    assert present == recorded, "a released schema is for ever; see schemas/codec/compatibility.py"


def test_a_changed_default_of_a_released_file_is_noticed(tmp_path: Path):
    edit_schema(tmp_path, "Task", "priority", type="int", default=0)
    path = tmp_path / "released" / "v1" / "Failure.avsc"
    path.write_text(path.read_text().replace('"default": 0', '"default": 1'))

    before, after = compatibility.fingerprints("v1"), compatibility.fingerprints("v1", tmp_path)

    assert before != after


def test_the_codec_does_without_apache_avro_which_is_slow_to_import():
    code = "import sys, surefoot.schemas.codec.codec; sys.exit('avro' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
