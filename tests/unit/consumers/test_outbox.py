"""What the relay makes of an answer, and of having no proof that the effect is its to send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from surefoot import RetryableError, TerminalError
from surefoot.consumers.builtin.outbox import HttpDelivery, judge_response, outbox_agent
from surefoot.infra.processes.relay import relay_agent
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.errors import OwnershipLost
from surefoot.state.ports.http import HttpRequest, HttpResponse
from surefoot.state.steps.effects import EFFECT_KINDS
from surefoot.state.steps.http_effect import HttpEffect
from tests.support.fake_engine import FakeEngine, a_run

#: Sun, 06 Nov 1994 08:49:37 GMT
NOW_MS = 784_111_777_000


def response(status: int, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return HttpResponse(status=status, headers=headers or {}, body=b"\xffwhy")


def told(answer: HttpResponse, *, attempt: int = 0, **fields: Any) -> dict[str, int]:
    effect = HttpEffect(method="POST", url="http://h/", headers={}, body="", **fields)
    return judge_response(effect, answer, attempt, NOW_MS)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_taken(status: int) -> None:
    assert told(response(status)) == {"status": status}


@pytest.mark.parametrize("status", [408, 409, 421, 423, 425, 429, 500, 501, 502, 503, 504, 599])
def test_not_now(status: int) -> None:
    for attempt in (0, 13):
        with pytest.raises(RetryableError, match=f"answered {status}$"):
            told(response(status), attempt=attempt)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_not_like_this_or_not_yet(status: int) -> None:
    for attempt in (0, 8):
        with pytest.raises(RetryableError, match=f"answered {status}$"):
            told(response(status), attempt=attempt)
    with pytest.raises(TerminalError, match=f"answered {status}$"):
        told(response(status), attempt=9)


@pytest.mark.parametrize("status", [301, 302, 304, 307, 308, 400, 402, 405, 410, 413, 422])
def test_not_like_this(status: int) -> None:
    with pytest.raises(TerminalError, match=f"answered {status}$"):
        told(response(status))


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://new.example/api?token=t0p#x", "https://new.example/api"),
        ("/login", "/login"),
        (f"/{'x' * 300}", f"/{'x' * 199}…"),
    ],
)
def test_a_redirect_says_where_to(location: str, shown: str) -> None:
    for name in ("Location", "location"):
        with pytest.raises(TerminalError) as raised:
            told(response(307, {name: location}))
        assert str(raised.value) == (
            f"the target answered 307, a redirect to {shown}; redirects are not followed, so use "
            "that URL"
        )


@pytest.mark.parametrize(
    ("retry_on", "again", "final"),
    [
        (("404", "5xx"), [404, 500, 599], [401, 403, 408, 409, 429, 302]),
        (("4xx",), [400, 404, 429, 499], [500, 302]),
        (("3xx",), [301, 307], [500, 404]),
        ((), [], [503, 429, 404]),
    ],
)
def test_an_author_says_what_is_an_outage(
    retry_on: tuple[str, ...], again: list[int], final: list[int]
) -> None:
    for statuses, kind in ((again, RetryableError), (final, TerminalError)):
        for status in statuses:
            for attempt in (0, 13):
                with pytest.raises(kind):
                    told(response(status), attempt=attempt, retry_on=retry_on)


@pytest.mark.parametrize("status", [400, 404, 503])
def test_what_was_answered_is_told_to_nobody_unless_the_author_asks(status: int) -> None:
    for keep, shown in ((False, ""), (True, ": \ufffdwhy")):
        with pytest.raises((TerminalError, RetryableError)) as raised:
            told(response(status), keep_body=keep)
        assert str(raised.value) == f"the target answered {status}{shown}"


def test_a_target_that_does_not_say() -> None:
    with pytest.raises(RetryableError) as raised:
        told(response(429))
    assert raised.value.retry_after_s is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("01 Jan 99999999999999999999 00:00:00 GMT", None), ("inf", None)],
)
def test_a_target_that_says_when(value: str, seconds: float | None) -> None:
    with pytest.raises(RetryableError) as raised:
        told(response(503, {"Retry-After": value}))
    assert raised.value.retry_after_s == seconds


@pytest.mark.parametrize(("lease_s", "sent"), [(0.001, True), (0.0, False)])
async def test_nothing_is_sent_without_a_lease(lease_s: float, sent: bool) -> None:
    requests: list[HttpRequest] = []

    async def deliver(request: HttpRequest) -> HttpResponse:
        requests.append(request)
        return response(200)

    agent = outbox_agent(HttpDelivery(deliver, SystemClock()))
    run = a_run(agent="outbox", run_id="a:r:0:0", step="deliver_effect", attempt=2)
    ctx = FakeEngine(run, lease_s=lease_s).attempt()
    effect = HttpEffect(
        method="PUT",
        url="http://h/p",
        body="ü",
        headers={
            "A": "1",
            "idempotency-key": "forged",
            "Content-Length": "0",
            "transfer-encoding": "chunked",
        },
    )
    if sent:
        await agent.start_step.fn(ctx, effect)
        (request,) = requests
        assert (request.method, request.url, request.body) == ("PUT", "http://h/p", "ü".encode())
        assert request.headers == {"A": "1", "Idempotency-Key": "a:r:0:0"}
    else:
        with pytest.raises(OwnershipLost):
            await agent.start_step.fn(ctx, effect)
        assert requests == []


def test_the_relay_delivers_every_kind_of_effect_as_the_registry_says() -> None:
    agent = relay_agent(load_settings())
    assert agent.start_step.name == EFFECT_KINDS[0].step
    assert {
        name: (step.retry, step.adapter.json_schema()) for name, step in agent.steps.items()
    } == {kind.step: (kind.retry, kind.stored.json_schema()) for kind in EFFECT_KINDS}
