"""The HTTP API keeps to its own description: requests made from it, right and wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from starlette.routing import Route

from surefoot.state.machine.commands import BODIES
from tests.generate.api_page import PAGE, page
from tests.unit.producers.test_gateway import RUN, Gateway, event, run

#: positive data is not always accepted: a payload has to fit the agent's own type, a run has to be
#: there
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


def described() -> Any:
    """The gateway's description of itself, with the gateway behind it."""
    gateway = Gateway(answer_s=0.01)
    gateway.reader.runs[RUN] = run(status="completed")
    gateway.reader.history[RUN] = [(0, event("run.completed", "completed"))]
    gateway.reader.gone.set()
    return schemathesis.openapi.from_asgi("/openapi.json", gateway.app)


OPERATIONS = {each.ok().label: each.ok() for each in described().get_all_operations()}


def test_the_page_about_the_api_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m tests.generate.api_page"


def test_the_description_names_every_route() -> None:
    gateway = Gateway()
    told = {label.partition(" ")[2] for label in OPERATIONS}
    routes = {
        route.path.replace("{verb}", verb)
        for route in gateway.app.routes
        if isinstance(route, Route) and route.include_in_schema
        for verb in BODIES
    }
    assert told == routes


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("label", OPERATIONS)
def test_an_operation_keeps_to_its_description(label: str, mode: GenerationMode) -> None:
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    @settings(
        max_examples=12,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def keeps(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    try:
        keeps()
    except Unsatisfiable:  # there is nothing that this operation could be sent wrongly
        assert mode is GenerationMode.NEGATIVE


def test_a_delivery_is_bytes_of_any_type() -> None:
    """Forms, multipart and empty bodies are taken too: what is signed is their bytes."""
    body = Gateway().app.openapi()["paths"]["/webhooks/{source}"]["post"]["requestBody"]
    assert body["content"] == {"*/*": {"schema": {"type": "string", "format": "binary"}}}


async def test_a_watcher_is_told_that_there_are_too_many_as_described() -> None:
    gateway = Gateway(streams=0)
    told = await gateway.http.get(f"/runs/triage/{RUN}/events")
    assert told.status_code == 429
    events = gateway.app.openapi()["paths"]["/runs/{agent}/{run_id}/events"]["get"]
    assert "429" in events["responses"]
