"""Declarations of the sources that start runs: queues and folders. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, get_args

from surefoot.schemas.payload import parse_json
from surefoot.state.declare.annotations import annotation, why_hidden
from surefoot.state.declare.callables import label
from surefoot.state.errors import ConfigError

#: subfolders that the files of a watched folder move to
DONE, FAILED = "done", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMessage:
    """Any message of an SQS queue."""

    queue: str
    #: equal on every redelivery
    id: str
    body: str
    #: the message's own attributes, text ones only
    attributes: Mapping[str, str]
    #: its MessageGroupId; a FIFO queue delivers the messages of one group in sending order
    group: str | None = None
    #: its MessageDeduplicationId, in a FIFO queue
    deduplication_id: str | None = None

    @property
    def json(self) -> Any:
        """The body as strict JSON. Raises BadPayload, which makes it a bad message."""
        return parse_json(self.body.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBridgeEvent:
    """An event that an EventBridge rule sent to the queue."""

    #: equal on every redelivery
    id: str
    source: str
    detail_type: str
    account: str
    region: str
    time: str
    resources: tuple[str, ...]
    detail: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Object:
    """An object that was created in a bucket."""

    bucket: str
    key: str
    #: object version, if the bucket has versioning
    version: str | None
    #: orders the events of one key; from a store without sequencers, the event's time and the ETag
    sequencer: str
    size: int
    etag: str
    #: how it was created: Put, Copy, CompleteMultipartUpload ...
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFile:
    """A file found in a watched folder, read whole."""

    #: where it was found; it moves to `done/` once its run has been requested
    path: PurePath
    body: bytes

    @property
    def name(self) -> str:
        """Its name as text: bytes that are not UTF-8 are U+FFFD here, and intact in `path`."""
        return self.path.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    @property
    def json(self) -> Any:
        """The content as strict JSON. Raises BadPayload, which makes it a bad file."""
        return parse_json(self.body)


QueueEvent = QueueMessage | EventBridgeEvent | S3Object


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTrigger:
    """Starts a run from a message for which `fn` returns a payload rather than None."""

    #: name or URL
    queue: str
    #: the type that `fn` takes
    shape: type[QueueEvent]
    fn: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTrigger:
    """Starts a run from a file for which `fn` returns a payload rather than None."""

    pattern: str
    fn: Callable[[WatchedFile], Any]


def queue_trigger(agent: str, queue: str, fn: Callable[..., Any]) -> QueueTrigger:
    """Check a queue trigger's declaration. Raises ConfigError when it cannot work."""
    where = f"queue mapping {label(fn)!r} of agent {agent!r}"
    shape = _only_argument(fn, where)
    shapes = get_args(QueueEvent)
    if shape not in shapes:
        names = ", ".join(each.__name__ for each in shapes)
        raise ConfigError(
            "SF1128", f"{where}: annotate its argument with one of {names}{why_hidden(fn)}"
        )
    if not queue.strip():
        raise ConfigError("SF1128", f"{where}: the queue is empty; give its name or its URL")
    return QueueTrigger(queue=queue, shape=shape, fn=fn)


def folder_trigger(agent: str, pattern: str, fn: Callable[..., Any]) -> FolderTrigger:
    """Check a folder trigger's declaration. Raises ConfigError when it cannot work."""
    where = f"folder mapping {label(fn)!r} of agent {agent!r}"
    if _only_argument(fn, where) is not WatchedFile:
        raise ConfigError(
            "SF1128", f"{where}: annotate its argument with WatchedFile{why_hidden(fn)}"
        )
    folder, _, name = pattern.rpartition("/")
    if not folder or not name or any(sign in folder for sign in "*?["):
        raise ConfigError(
            "SF1128",
            f"{where}: the pattern must be a folder and a file pattern, such as "
            f'"inbox/*.json"; got {pattern!r}',
        )
    return FolderTrigger(pattern=pattern, fn=fn)


def _only_argument(fn: Callable[..., Any], where: str) -> Any:
    """Return the annotated type of the function's only argument."""
    parameters = list(inspect.signature(fn).parameters)
    if len(parameters) != 1:
        raise ConfigError("SF1128", f"{where} must take one argument{why_hidden(fn)}")
    return annotation(fn, parameters[0], where)
