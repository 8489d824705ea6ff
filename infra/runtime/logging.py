"""structlog set up once: JSON lines on stderr, or for people when stderr is a terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from surefoot.infra.runtime.redaction import redact
from surefoot.state.telemetry import log_context


def _whose(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: a line in a step says which one; what the line says itself holds."""
    for name, value in log_context.fields().items():
        entry.setdefault(name, value)
    return entry


def _told_with_its_cause(record: logging.LogRecord) -> bool:
    """Not what keeps aiokafka from connecting: infra/kafka_client/errors.py tells it, once."""
    return not str(record.msg).startswith("Unable connect to")


def configure(*, level: str = "INFO", json: bool | None = None) -> None:
    """Set up logging of this process. `json` None: JSON unless stderr is a terminal."""
    as_json = not sys.stderr.isatty() if json is None else json
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        _whose,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Local variables stay out of tracebacks: they hold payloads and secrets.
    frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    render: list[structlog.types.Processor] = (
        [
            structlog.processors.ExceptionRenderer(frames),
            redact,
            structlog.processors.JSONRenderer(),
        ]
        if as_json
        else [
            structlog.processors.format_exc_info,
            redact,
            structlog.dev.ConsoleRenderer(
                colors=not os.environ.get("NO_COLOR"),
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    # Every expected retry of the client is told by our own events.
    logging.getLogger("aiokafka").setLevel(max(number, logging.ERROR))
    logging.getLogger("aiokafka").addFilter(_told_with_its_cause)
