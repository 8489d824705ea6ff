"""`python -m tests.generate.api_page` writes docs/http-api.md, as the gateway describes itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surefoot.producers.api.openapi import document

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"

HEAD = """\
# The HTTP API

What `surefoot serve` answers; the same, for machines, is at `/openapi.json` of every gateway.
An error is `{"error": "..."}` and begins with a [number](errors.md).

Generated from `producers/api/openapi.py` by `python -m tests.generate.api_page`;
a test holds that it is up to date.
"""


def _shape(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return "an error"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_shape, schema["anyOf"])))
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"[{_shape(schema.get('items', {}))}]"
    if schema.get("properties"):
        needed = schema.get("required", ())
        names = (name if name in needed else f"{name}?" for name in schema["properties"])
        return f"{{{', '.join(names)}}}"
    if "const" in schema:
        return json.dumps(schema["const"])
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _content(carrier: dict[str, Any]) -> str:
    return "; ".join(
        f"{_shape(content['schema'])} as {media}" if media != "application/json" else f"`{shape}`"
        for media, content in carrier.get("content", {}).items()
        for shape in (_shape(content["schema"]),)
    )


def _operation(path: str, method: str, made: dict[str, Any]) -> Iterator[str]:
    yield f"## {method.upper()} {path}"
    yield ""
    yield f"{made['summary']}."
    yield ""
    for each in made.get("parameters", ()):
        told = each.get("description") or each["schema"].get("description", "")
        choice = ", ".join(map(str, each["schema"].get("enum", ())))
        notes = "; ".join(filter(None, (told, choice if each["in"] != "path" else "")))
        yield f"- `{each['name']}` in the {each['in']}{f': {notes}' if notes else ''}"
    if body := made.get("requestBody"):
        yield f"- body{'' if body.get('required') else ', may be left out'}: {_content(body)}"
    errors = []
    for status, answer in made["responses"].items():
        content = _content(answer)
        if content == "`an error`":
            errors.append(status)
        else:
            said = "; ".join(filter(None, (answer.get("description", ""), content)))
            yield f"- {status}{f': {said}' if said else ''}"
    if errors:
        yield f"- {', '.join(errors)}: an error"
    yield ""


def page() -> str:
    lines = [HEAD]
    for path, methods in document(["AGENT"], ["SOURCE"])["paths"].items():
        for method, made in methods.items():
            lines += _operation(path, method, made)
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
