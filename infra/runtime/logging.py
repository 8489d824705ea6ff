"""Sets up structlog: JSON lines on stderr, or readable lines when stderr is a terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from surefoot.infra.runtime.redaction import redact
from surefoot.infra.runtime.terminal import printable, printable_lines
from surefoot.state.telemetry import log_context


def _whose(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Structlog processor: add the step's fields to a line; the line's own fields win."""
    for name, value in log_context.fields().items():
        entry.setdefault(name, value)
    return entry


def _inert(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Structlog processor: escape what a terminal would act upon; JSON escapes it by itself."""
    for name, value in entry.items():
        if isinstance(value, str):
            entry[name] = printable_lines(value) if name == "exception" else printable(value)
    return entry


def _told_with_its_cause(record: logging.LogRecord) -> bool:
    """Logging filter: drop connection failures; infra/kafka_client/errors.py reports them, once."""
    return not str(record.msg).startswith("Unable connect to")


def configure(*, level: str = "INFO", json: bool | None = None) -> None:
    """Set up this process's logging. `json` None: JSON unless stderr is a terminal."""
    as_json = not sys.stderr.isatty() if json is None else json
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        _whose,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Local variables stay out of tracebacks: they contain payloads and secrets.
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
            _inert,
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
    # Our own events report every expected retry of the client.
    logging.getLogger("aiokafka").setLevel(max(number, logging.ERROR))
    logging.getLogger("aiokafka").addFilter(_told_with_its_cause)
