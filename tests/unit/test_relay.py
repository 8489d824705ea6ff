"""What the relay makes of an answer, and of having no proof that the effect is its to send."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from surefoot import RetryableError, TerminalError
from surefoot.consumers.relay import judge, outbox_agent
from surefoot.infra.clock import SystemClock
from surefoot.state.errors import OwnershipLost
from surefoot.state.http_effect import HttpEffect
from surefoot.state.ports import HttpRequest, HttpResponse
from tests.attempts import FakeEngine, a_run

#: Sun, 06 Nov 1994 08:49:37 GMT
NOW_MS = 784_111_777_000


def response(status: int, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return HttpResponse(status=status, headers=headers or {}, body=b"\xffwhy")


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_taken(status: int) -> None:
    assert judge(response(status), NOW_MS) == {"status": status}


@pytest.mark.parametrize("status", [408, 409, 421, 423, 425, 429, 500, 501, 502, 503, 504, 599])
def test_not_now(status: int) -> None:
    with pytest.raises(RetryableError, match=f"answered {status}: \ufffdwhy"):
        judge(response(status), NOW_MS)


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 403, 404, 405, 410, 413, 422])
def test_not_like_this(status: int) -> None:
    with pytest.raises(TerminalError, match=f"answered {status}"):
        judge(response(status), NOW_MS)


def test_a_target_that_does_not_say() -> None:
    with pytest.raises(RetryableError) as raised:
        judge(response(429), NOW_MS)
    assert raised.value.retry_after_s is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("01 Jan 99999999999999999999 00:00:00 GMT", None), ("inf", None)],
)
def test_a_target_that_says_when(value: str, seconds: float | None) -> None:
    with pytest.raises(RetryableError) as raised:
        judge(response(503, {"Retry-After": value}), NOW_MS)
    assert raised.value.retry_after_s == seconds


@pytest.mark.parametrize(("lease_s", "sent"), [(0.001, True), (0.0, False)])
async def test_nothing_is_sent_without_a_lease(lease_s: float, sent: bool) -> None:
    requests: list[HttpRequest] = []

    async def deliver(request: HttpRequest) -> HttpResponse:
        requests.append(request)
        return response(200)

    agent = outbox_agent(deliver, SystemClock())
    run = a_run(agent="outbox", run_id="a:r:0:0", step="deliver_effect", attempt=2)
    ctx = FakeEngine(run, lease_s=lease_s).attempt()
    effect = HttpEffect(
        method="PUT", url="http://h/p", body="ü",
        headers={"A": "1", "idempotency-key": "forged", "Content-Length": "0",
                 "transfer-encoding": "chunked"},
    )  # fmt: skip
    if sent:
        await agent.start_step.fn(ctx, effect)
        (request,) = requests
        assert (request.method, request.url, request.body) == ("PUT", "http://h/p", "ü".encode())
        assert request.headers == {"A": "1", "Idempotency-Key": "a:r:0:0"}
    else:
        with pytest.raises(OwnershipLost):
            await agent.start_step.fn(ctx, effect)
        assert requests == []
