"""What sources have in common: a mapping of the author's, and a start that is not let go of."""

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

#: a mapping that has not ended by then, in seconds, is given up: what comes after is not held up
MAPPING_S = 300.0
#: mappings of one source at a time, those that hang included
MAPPING_THREADS = 64
#: how long one try to write a start command may take, in seconds
START_S = 10.0


class BadEvent(Exception):
    """What a source has brought cannot be used, now or later; says why."""


class Mappings:
    """Asks the author's functions of one source, each in a thread. One that hangs keeps its thread,
    so a source has so many of its own; where all hang, it waits for one, and no other source does.
    """

    def __init__(self, source: str, threads: int = MAPPING_THREADS) -> None:
        self._source = source
        self._free = asyncio.Semaphore(threads)
        #: how many are still at what nobody waits for any more
        self._hanging = 0

    async def payload_of(self, agent: Agent, fn: Callable[[Any], Any], event: Any) -> bytes | None:
        """What the agent's first step is to be given; None: the mapping does not want it.

        Raises: BadEvent.
        """
        try:
            value = await self._answer(agent, fn, event)
            return None if value is None else dump(agent.start_step.adapter, value)
        except BadEvent:
            raise
        except BadPayload as error:
            raise BadEvent(f"what the mapping {label(fn)} reads: {error}") from error
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
            advice="give what it waits for a time limit; its thread cannot be stopped",
        )
        raise BadEvent(f"the mapping {label(fn)} has not ended within {MAPPING_S:g} s")

    def _ended(self, asked: asyncio.Future[Any]) -> None:
        self._free.release()
        if not asked.cancelled():
            asked.exception()  # heard, whether or not somebody still waits for it

    def _back(self, asked: asyncio.Future[Any]) -> None:
        del asked
        self._hanging -= 1


def _asked(fn: Callable[[Any], Any], event: Any) -> Any:
    """Whatever it raises is an error: what ends an interpreter or a task ends this event only."""
    try:
        return finished(fn(event))
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def name_of(agent: Agent, run_id: str, payload: bytes) -> str:
    """What the run is called. Raises BadEvent when its flow cannot tell."""
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
        """Return once the start command will not be lost. While the log is away it is tried again:
        whoever brought the event holds on to it, and brings no more.

        Raises: BadEvent — the log will never take it.
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
