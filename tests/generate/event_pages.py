"""Writes docs/events.md from the schemas: python -m tests.generate.event_pages"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from surefoot.schemas.codec.catalog import crc64, current
from surefoot.state.machine.model import EventType
from surefoot.state.records.event_headers import CONTENT_TYPE, TYPE_PREFIX

PAGE = Path(__file__).parents[2] / "docs" / "events.md"

#: when each is written
TYPES: dict[str, str] = {
    "run.accepted": "The start was taken; the run has to wait for its turn.",
    "run.started": "The run began.",
    "run.paused": "Somebody paused it; what was running has ended or will end.",
    "run.resumed": "It goes on.",
    "run.retried": "Somebody had its last step tried again; attempts are counted anew.",
    "run.resolved": "Somebody told what became of a call that was in doubt.",
    "run.rewound": "It was sent back to an earlier version of itself; `epoch` is one more.",
    "run.cancelling": "It is being cancelled; its compensation runs.",
    "run.failing": "It has failed; its compensation runs.",
    "run.completed": "It is over, and `result` is what came of it.",
    "run.failed": "It is over; `failure` says why.",
    "run.cancelled": "It is over, as somebody asked for.",
    "run.attention": "It waits for a person; `failure` says why.",
    "step.completed": "A step was committed; `next_step` is where it goes on, or `wait` what it "
    "waits for.",
    "step.retrying": "An attempt failed; the next one is due at `due_ms`.",
    "budget.spent": "What the run may use is used up; it waits for more.",
    "signal.received": "A signal has come: `name`, `payload`.",
    "signal.unread": "The run was over before anybody took the signal.",
    "approval.decided": "A question was answered: `name` is the question.",
    "wait.over": "What the run waited for has come.",
    "wait.timed_out": "It has not come in time.",
    "child.finished": "A child run is over.",
    "command.repeated": "The same command has come again, and changed nothing.",
    "command.refused": "A command changed nothing; `name` is the code and `failure` the reason.",
    "start.ignored": "A start was not taken: `failure` says why.",
}

HEAD = f"""\
# The events topic, record by record

`surefoot.AGENT.events` is the contract with everybody downstream: append-only, kept for 30 days, read
with any Kafka client in `read_committed` mode. A record is there only if the step that it tells of has
committed, and each one once. Records of one run are in one partition, in order; the key is the `run_id`.

Over HTTP the same comes as JSON: [streaming](how-to/streaming.md).

Generated from `schemas/avro` by `python -m tests.generate.event_pages`; a test holds that it is up to date.

## Headers

Each record is a [CloudEvent in binary mode](https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md),
so that one can route by them without reading the value:

    kcat -C -b localhost:9092 -t surefoot.triage.events -X isolation.level=read_committed -e -f '%k %h\\n'

| header | |
|---|---|
| `ce_specversion` | `1.0` |
| `ce_id` | different for every event; not made to be taken apart |
| `ce_source` | `/surefoot/APP/AGENT` |
| `ce_type` | `{TYPE_PREFIX}` and the `type` of the event: `{TYPE_PREFIX}run.completed` |
| `ce_subject` | the run_id |
| `ce_time` | `at_ms`, as RFC 3339 |
| `ce_dataschema` | `urn:surefoot:avro:crc64:` and the fingerprint of the schema, as bytes 3 to 10 of the value |
| `content-type` | `{CONTENT_TYPE}`, in [single-object encoding](https://avro.apache.org/docs/1.12.0/specification/#single-object-encoding) |
| `traceparent` | W3C trace context of the command that started the run; missing if there was none |
| `sf-txn`, `sf-src` | the transaction, and the input record that it answers |
| `sf-run`, `sf-seq` | the run, and its seq before; missing on `start.ignored` |

Ignore headers that you do not know, and types too: there will be more of both.

Key and headers are UTF-8 text, also in a Kafka UI. The value is not: a UI that shows it as a string shows
the names, failures and JSON in it between bytes that are no text, `kcat -J` writes these into what is then
no JSON, and deserializers for a schema registry (`kcat -s value=avro`) do not apply, as there is no schema
id in it. To read the values, see below; to have them as JSON, use the gateway or `surefoot runs watch --json`.

## Values

The value is `C3 01`, the 8 bytes of the schema's fingerprint, and the Avro body. Every schema that was
ever released is in `schemas/released/`; readers of one version read the records of every other.
What a step takes and returns (`payload`, `result`, `carry`) is strict JSON inside, or a pointer to where
it is kept ([large payloads](how-to/large-payloads.md)).
"""  # noqa: E501  (a row of a table is one line)


def page() -> str:
    schemas = current()
    lines = [HEAD, "## Types", "", "| type | when |", "|---|---|"]
    lines += [f"| `{kind}` | {TYPES[kind]} |" for kind in get_args(EventType)]
    lines += ["", *_record("Event", schemas["Event"])]
    lines += [*_record("Stream", schemas["Stream"])]
    return "\n".join(lines)


def _record(title: str, schema: dict[str, Any]) -> list[str]:
    lines = [
        f"## {title}",
        "",
        schema["doc"],
        "",
        f"Fingerprint {crc64(schema).hex()}.",
        "",
        *_fields(schema),
    ]
    for inner in _inner(schema):
        lines += [f"### {inner['name']}", "", inner.get("doc", ""), ""]
        if inner["type"] == "enum":
            lines += [", ".join(f"`{symbol}`" for symbol in inner["symbols"]), ""]
        else:
            lines += _fields(inner)
    return lines


def _fields(schema: dict[str, Any]) -> list[str]:
    rows = [
        f"| `{field['name']}` | {_type(field['type'])} | {_default(field)} | "
        f"{field.get('doc', '').replace('|', '&#124;')} |"
        for field in schema["fields"]
    ]
    return ["| field | type | default | |", "|---|---|---|---|", *rows, ""]


def _default(field: dict[str, Any]) -> str:
    return f"`{json.dumps(field['default'])}`" if "default" in field else ""


def _type(of: Any) -> str:
    match of:
        case str():
            return of.removeprefix("surefoot.")
        case list():
            return " or ".join(_type(each) for each in of)
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"name": name}:
            return str(name)
    raise AssertionError(of)


def _inner(of: Any) -> list[dict[str, Any]]:
    """The named types inside of one, each once, in the order of their first use."""
    match of:
        case list():
            return [found for each in of for found in _inner(each)]
        case {"type": "array", "items": items}:
            return _inner(items)
        case {"type": "record", "fields": fields}:
            found: dict[str, dict[str, Any]] = {}
            for field in fields:
                inside = field["type"]
                parts = inside if isinstance(inside, list) else [inside]
                for part in parts:
                    for each in _named(part):
                        found.setdefault(each["name"], each)
            return list(found.values())
    return []


def _named(of: Any) -> list[dict[str, Any]]:
    match of:
        case {"type": "record" | "enum", "name": _}:
            return [of, *_inner(of)]
        case _:
            return _inner(of)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
