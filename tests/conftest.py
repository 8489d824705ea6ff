"""Fixtures of the whole suite: one real broker, names of one's own, and no swallowed errors."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import re
import uuid
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

from surefoot.infra.broker.find import Broker, start_broker
from surefoot.infra.processes import overdue
from surefoot.infra.runtime import loader

#: The same examples each time, however slow the machine. Others: `--hypothesis-profile=default`.
settings.load_profile("ci")

#: Where the tests' targets are; everything else is where a request may not go.
os.environ.setdefault("SUREFOOT_OUT_ALLOW", "127.0.0.1")

#: A convenience while developing: use this broker instead of starting one.
_GIVEN = os.environ.get("SUREFOOT_TEST_BOOTSTRAP") or None

#: So that tests of timeouts need not wait for the broker's leisurely defaults.
_QUICK = {
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # The offset and index files of the many small topics that tests create.
    "log.index.size.max.bytes": "65536",
}


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A real broker for the whole session; a test that stops or pauses one starts its own."""
    with start_broker(_GIVEN, ways=("java", "docker"), properties=_QUICK) as started:
        yield started


@pytest.fixture(scope="session")
def bootstrap(broker: Broker) -> str:
    return broker.bootstrap


@pytest.fixture
def app(request: pytest.FixtureRequest) -> str:
    """A topic prefix that no other test, and no earlier run on the same broker, has used."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"t-{name[:40].rstrip('-')}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def agent_name(app: str) -> str:
    """A name for an agent of this test alone."""
    return f"agent-{app.rpartition('-')[2]}"


def pytest_collection_finish() -> None:
    """What the modules hold is not looked through again by each test's collection of garbage."""
    gc.collect()
    gc.freeze()


class _Reports(logging.Handler):
    """Keeps what asyncio's logger reports at ERROR, whatever a test does to the other loggers."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def no_swallowed_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test whose event loop reported an error that nobody looked at.

    asyncio only logs them: a task whose exception was never retrieved, a callback that raised; and
    aiokafka's clients do so when they are dropped without being closed.
    """
    reports = _Reports()
    asyncio_log = logging.getLogger("asyncio")
    asyncio_log.addHandler(reports)
    yield
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        # Such reports are made when the task or client is collected.
        gc.collect()
    asyncio_log.removeHandler(reports)
    assert not reports.messages, "asyncio reported errors:\n" + "\n".join(reports.messages)


@pytest.fixture(autouse=True)
def nothing_loaded() -> Iterator[None]:
    """Each test's agent file is the first one that its process loads."""
    yield
    loader.forget()


@pytest.fixture(autouse=True)
def this_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is run in this process ends, and the process does not: nothing counts the
    time that it has left. tests/unit/infra/test_overdue.py has processes of its own."""
    monkeypatch.setattr(overdue._Overdue, "start", lambda _guard: None)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo what a test does that sets up the process's logging, as every command does.

    Loggers that cache their set-up would keep writing to that test's stderr, out of reach of
    `structlog.testing.capture_logs`, for the rest of the session.
    """
    real = structlog.configure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            structlog,
            "configure",
            lambda **options: real(**{**options, "cache_logger_on_first_use": False}),
        )
        yield
    structlog.reset_defaults()
    root = logging.getLogger()
    for handler in root.handlers[:]:
        # Exactly this class: pytest's own are derived from it.
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
