"""Records as other people's clients write them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastavro import schemaless_writer

from surefoot.schemas.codec.catalog import crc64
from surefoot.state.ports.log import Headers

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total", "type": "int"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {
            "name": "lane",
            "type": {"type": "enum", "name": "Lane", "symbols": ["SLOW", "FAST"]},
            "default": "SLOW",
        },
    ],
}


@dataclass
class Order:
    """What an author takes it for."""

    id: str
    total: int
    note: str | None = None
    lane: str = "SLOW"


#: an older one, without what came later
ORDER_V1: dict[str, Any] = {**ORDER, "fields": ORDER["fields"][:2]}
GUID = "0f8fad5b-d9cb-469f-a165-70867728950e"

Sent = tuple[bytes | None, Headers]


def avro(value: Any, schema: Any = ORDER) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, schema, value)
    return out.getvalue()


def confluent(value: Any, schema: Any = ORDER, number: int = 7) -> Sent:
    return b"\x00" + number.to_bytes(4, "big") + avro(value, schema), ()


def confluent_guid(value: Any, schema: Any = ORDER) -> Sent:
    name = b"\x01" + UUID(GUID).bytes
    return avro(value, schema), (("__value_schema_id", name),)


def single_object(value: Any, schema: Any = ORDER) -> Sent:
    return b"\xc3\x01" + crc64(schema) + avro(value, schema), ()


def plain_json(value: Any) -> Sent:
    return json.dumps(value).encode(), ()


def cloud_binary(value: Any, **more: str) -> Sent:
    attributes = {"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order"} | more
    headers = [(f"ce_{name}", text.encode()) for name, text in attributes.items()]
    return json.dumps(value).encode(), (*headers, ("content-type", b"application/json"))


def cloud_structured(value: Any, **more: Any) -> Sent:
    event = {"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order", "data": value}
    content_type = b"application/cloudevents+json; charset=UTF-8"
    return json.dumps(event | more).encode(), (("content-type", content_type),)


class Registry:
    """Implements SchemaSource; notes what it was asked."""

    def __init__(self, *schemas: Any, first: int = 7) -> None:
        self.asked: list[int | str] = []
        self._by_id = dict(enumerate(schemas or (ORDER, ORDER_V1), first))

    async def by_id(self, id: int, /) -> dict[str, Any]:  # noqa: A002
        self.asked.append(id)
        if id not in self._by_id:
            raise LookupError("no such schema")
        return dict(self._by_id[id])

    async def by_guid(self, guid: str, /) -> dict[str, Any]:
        self.asked.append(guid)
        if guid != GUID:
            raise LookupError("no such schema")
        return dict(ORDER)
