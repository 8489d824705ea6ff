"""What sources share: calling the author's mapping, and a start that is retried until written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from surefoot.consumers.attempts.threads import in_thread
from surefoot.consumers.backoff import backoff
from surefoot.schemas.payload import BadPayload, Unserialisable, dump
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.callables import finished, label
from surefoot.state.errors import RecordRefused, Unavailable
from surefoot.state.ports.clock import Clock
from surefoot.state.reading.ports import Commands

log = structlog.get_logger(__name__)

#: time limit of a mapping, in seconds, so that later events are not held up
MAPPING_S = 300.0
#: most mappings of one source at a time, including hanging ones
MAPPING_THREADS = 64
#: time limit of one attempt to write a start command, in seconds
START_S = 10.0


class BadEvent(Exception):
    """An event of a source can never be used; says why."""


class Mappings:
    """Calls the author's functions of one source, each in a thread.

    A function that hangs keeps its thread, so each source has a number of its own. When all hang,
    the source waits for one; other sources do not.
    """

    def __init__(self, source: str, threads: int = MAPPING_THREADS) -> None:
        self._source = source
        self._free = asyncio.Semaphore(threads)
        #: mappings that still run although nobody waits for them
        self._hanging = 0

    async def payload_of(self, agent: Agent, fn: Callable[[Any], Any], event: Any) -> bytes | None:
        """Return the payload of the agent's first step; None: the mapping does not want the event.

        Raises: BadEvent.
        """
        try:
            value = await self._answer(agent, fn, event)
            return None if value is None else dump(agent.start_step.adapter, value)
        except BadEvent:
            raise
        except BadPayload as error:
            raise BadEvent(f"the mapping {label(fn)} cannot read the event: {error}") from error
        except Unserialisable as error:
            raise BadEvent(f"payload of {agent.name}.{agent.start_step.name}: {error}") from error
        except Exception as error:
            log.exception("mapping_failed", agent=agent.name, mapping=label(fn))
            raise BadEvent(f"the mapping {label(fn)} raised {type(error).__name__}") from error

    async def _answer(self, agent: Agent, fn: Callable[[Any], Any], event: Any) -> Any:
        await self._free.acquire()
        asked = asyncio.ensure_future(in_thread(_asked, fn, event))
        asked.add_done_callback(self._ended)
        ended, _ = await asyncio.wait({asked}, timeout=MAPPING_S)
        if ended:
            return asked.result()
        self._hanging += 1
        asked.add_done_callback(self._back)
        log.error(
            "mapping_hangs",
            source=self._source,
            agent=agent.name,
            mapping=label(fn),
            threads_hanging=self._hanging,
            advice="set a timeout on what it waits for; its thread cannot be stopped",
        )
        raise BadEvent(f"the mapping {label(fn)} did not end within {MAPPING_S:g} s")

    def _ended(self, asked: asyncio.Future[Any]) -> None:
        self._free.release()
        if not asked.cancelled():
            asked.exception()  # retrieve it, whether or not somebody still waits

    def _back(self, asked: asyncio.Future[Any]) -> None:
        del asked
        self._hanging -= 1


def _asked(fn: Callable[[Any], Any], event: Any) -> Any:
    """Call the function; turns SystemExit and the like into an error of this event."""
    try:
        return finished(fn(event))
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def name_of(agent: Agent, run_id: str, payload: bytes) -> str:
    """Return the name of the run. Raises BadEvent — the agent's flow control cannot name it."""
    try:
        return agent.name_run(run_id, payload)
    except ValueError as error:
        raise BadEvent(str(error)) from error


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts runs for sources."""

    commands: Commands
    clock: Clock

    async def start(self, agent: str, run_id: str, payload: bytes) -> None:
        """Start a run; returns once the command is durable.

        Retries while the log is unavailable: meanwhile the source keeps the event, and delivers no
        more.

        Raises: BadEvent — the log will never accept it.
        """
        for wait_s in backoff(self.clock):
            try:
                await self.commands.start(agent, run_id, payload, deadline_s=START_S)
            except Unavailable as error:
                log.warning("start_waits", agent=agent, run_id=run_id, reason=str(error))
                await asyncio.sleep(wait_s)
            except RecordRefused as error:
                raise BadEvent(str(error)) from error
            else:
                return
