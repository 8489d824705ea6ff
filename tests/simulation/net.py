"""The network of a simulation: what becomes of each request to the broker, and when."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from aiokafka.errors import KafkaError, RequestTimedOutError

from tests.simulation.broker import SimBroker
from tests.simulation.loop import PROCESS, Process, SimLoop

#: between two tries of a request, in seconds
BACKOFF_S = 0.1


@dataclass(slots=True)
class Weather:
    """How the network treats requests, by api: chances of each fate."""

    lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    reset: float = 0.0


class Net:
    """Carries requests to the broker, in its own time."""

    def __init__(self, loop: SimLoop, broker: SimBroker, random: Random) -> None:
        self.loop = loop
        self.broker = broker
        self._random = random
        self.weather: dict[str, Weather] = {}
        self.calm = Weather()
        #: how often each fault bit
        self.bitten: dict[str, int] = {}
        #: told which process gets the answer to an EndTxn that has recorded something of a step
        self.on_journaled: Callable[[Process], None] | None = None
        self._world = contextvars.Context()

    async def call(self, api: str, work: Callable[[], Any], timeout_s: float) -> Any:
        """Have the broker do it. Raises what it raises, or RequestTimedOutError."""
        loop, random = self.loop, self._random
        weather = self.weather.get(api, self.calm)
        there_s, back_s = 0.001 + random.random() * 0.004, 0.001 + random.random() * 0.004
        if weather.slow and random.random() < weather.slow:
            there_s += random.random() * timeout_s * 0.8
            self.bite("slow")
        lost = bool(weather.lost) and random.random() < weather.lost
        answer_lost = bool(weather.answer_lost) and random.random() < weather.answer_lost
        if weather.late and random.random() < weather.late:
            there_s = timeout_s + random.random() * 3
            self.bite(f"late {api}")
        will_reset = bool(weather.reset) and random.random() < weather.reset
        if will_reset:
            there_s = random.choice((0.002, 0.05, 0.2, 0.5, 1.0, 3.0)) * random.random()
        answer: asyncio.Future[Any] = loop.create_future()
        process = PROCESS.get()

        journaled = False

        def arrive() -> None:
            nonlocal journaled
            try:
                result, error = work(), None
            except KafkaError as raised:
                result, error = None, raised
            journaled = api == "end" and self.broker.journaled
            if not answer_lost:
                loop.call_later(back_s, deliver, result, error, context=self._world)

        def deliver(result: Any, error: KafkaError | None) -> None:
            if answer.done():
                return
            if journaled and process is not None and self.on_journaled is not None:
                self.on_journaled(process)
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        def time_out() -> None:
            if not answer.done():
                answer.set_exception(RequestTimedOutError())

        if lost:
            self.bite(f"lost {api}")
        else:
            if answer_lost:
                self.bite(f"answer lost {api}")
            loop.call_later(there_s, arrive, context=self._world)
            if weather.twice and random.random() < weather.twice:
                self.bite(f"twice {api}")
                later_s = there_s + random.random() * 0.05
                loop.call_later(later_s, arrive, context=self._world)
        if will_reset:
            self.bite(f"reset {api}")
            # the socket broke after the request had left: it may arrive at any time, or has
            timeout_s = random.random() * 0.02
        timer = loop.call_later(timeout_s, time_out, context=self._world)
        try:
            return await answer
        finally:
            timer.cancel()

    def bite(self, what: str) -> None:
        self.bitten[what] = self.bitten.get(what, 0) + 1

    async def insist(self, api: str, work: Callable[[], Any], timeout_s: float) -> Any:
        """As `call`, again and again until there is an answer."""
        while True:
            try:
                return await self.call(api, work, timeout_s)
            except RequestTimedOutError:
                await asyncio.sleep(BACKOFF_S)


#: of the life that is being lived
NET: Net


def use(net: Net) -> None:
    """The network that clients made from now on are on."""
    global NET  # noqa: PLW0603  (aiokafka's constructors take no network)
    NET = net
