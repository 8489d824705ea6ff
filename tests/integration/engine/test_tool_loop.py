"""The agent loop on a real broker, with a local server in the model's place."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from surefoot import Agent
from surefoot.agents.messages import Reply, ToolCall
from surefoot.agents.openai_model import OpenAIModel
from surefoot.agents.tool_loop import tool_loop
from surefoot.schemas.codec.codec import decode
from surefoot.schemas.payload import parse_json, strict_json
from tests.support.cluster import Cluster, cluster, names
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT
from tests.support.model_server import Asked, ModelServer, model_server

ROOT = Path(__file__).parents[3]


def dig_then_answer(asked: Asked) -> Reply:
    """Digs once, and then answers each message of the user."""
    if asked.turn == 0:
        wanted = ToolCall(id="dig-1", name="dig", arguments={"where": "here"})
        return Reply(text="Let me dig.", tool_calls=(wanted,))
    return Reply(text=f"Answer {asked.turn}")


class Site:
    """A tool that takes as long as the test wants."""

    def __init__(self) -> None:
        self.begun = 0
        self.free = False

    async def dig(self, where: str) -> str:
        """Dig."""
        self.begun += 1
        await until(lambda: self.free, what="the digging to be let on")
        return f"nothing {where}"


def digging(name: str, server: ModelServer, site: Site) -> Agent:
    agent = Agent(name)
    client = openai.AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1")

    async def dig(where: str) -> str:
        """Dig."""
        return await site.dig(where)

    tool_loop(agent, model=OpenAIModel("m", client=client), tools=[dig])
    return agent


@asynccontextmanager
async def at_work(
    bootstrap: str, app: str, name: str
) -> AsyncIterator[tuple[Cluster, Agent, ModelServer, Site]]:
    site = Site()
    async with model_server(dig_then_answer) as server:
        agent = digging(name, server, site)
        async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
            await kafka.work(agent)
            await kafka.start(agent, "r1", strict_json("dig"))
            yield kafka, agent, server, site


async def result(kafka: Cluster, agent: Agent) -> Any:
    await kafka.until_status(agent, "r1", "completed")
    checkpoint = await kafka.checkpoint(agent, "r1")
    assert checkpoint is not None
    return parse_json(checkpoint["result"])


def roles(asked: Asked) -> list[str]:
    return [message["role"] for message in asked.body["messages"]]


async def test_a_run_thinks_acts_and_answers_and_each_question_is_asked_once(
    bootstrap: str, app: str, agent_name: str
) -> None:
    async with at_work(bootstrap, app, agent_name) as (kafka, agent, server, site):
        site.free = True
        assert await result(kafka, agent) == "Answer 1"
        assert server.keys == [f"{agent_name}:r1:0", f"{agent_name}:r1:3"]
        steps = [each["step"] for each in await kafka.events(agent, "r1") if each["next_step"]]
        assert steps[1:] == ["think", "act", "hear", "think"]
        await kafka.check_history(agent)

        async def told() -> str:
            pieces = await kafka.read(kafka.topics(agent).stream, isolation="read_uncommitted")
            return "".join(decode(each.value or b"", "Stream")[1]["text"] for each in pieces)

        await until(lambda: _is(told, "Let me dig.Answer 1"), what="the answer on the stream topic")


async def _is(told: Callable[[], Any], wanted: str) -> bool:
    return bool(await told() == wanted)


async def test_a_message_in_the_middle_is_heard_at_the_next_boundary(
    bootstrap: str, app: str, agent_name: str
) -> None:
    async with at_work(bootstrap, app, agent_name) as (kafka, agent, server, site):
        await until(lambda: site.begun, what="the digging to begin")
        first = await kafka.tell(agent, "r1", "signal", name="message", payload=b'"deeper"')
        await kafka.answer(agent, "r1", first)
        server.gate.clear()
        site.free = True
        await until(lambda: len(server.book) == 2, what="the second question")
        second = await kafka.tell(agent, "r1", "signal", name="message", payload=b'"and wider"')
        await kafka.answer(agent, "r1", second)
        server.gate.set()
        assert await result(kafka, agent) == "Answer 2"
        assert [roles(asked) for asked in server.book] == [
            ["user"],
            ["user", "assistant", "tool", "user"],
            ["user", "assistant", "tool", "user", "assistant", "user"],
        ]
        said = [m["content"] for m in server.book[-1].body["messages"] if m["role"] == "user"]
        assert said == ["dig", "deeper", "and wider"]
        await kafka.check_history(agent)


async def test_a_pause_keeps_what_was_thought_and_a_resume_goes_on_from_it(
    bootstrap: str, app: str, agent_name: str
) -> None:
    async with at_work(bootstrap, app, agent_name) as (kafka, agent, server, site):
        server.gate.clear()
        site.free = True
        await until(lambda: server.book, what="the first question")
        told = await kafka.answer(agent, "r1", await kafka.tell(agent, "r1", "pause"))
        assert (told["type"], told["status"]) == ("run.paused", "paused")
        server.gate.set()

        async def thought() -> bool:
            return names(await kafka.events(agent, "r1")).count("step.completed") == 1

        await until(thought, what="the thought to be kept")
        assert await kafka.status(agent, "r1") == "paused"
        assert site.begun == 0
        await kafka.tell(agent, "r1", "resume")
        assert await result(kafka, agent) == "Answer 1"
        assert len(server.book) == 2
        await kafka.check_history(agent)


async def test_a_cancel_does_not_wait_for_the_model(
    bootstrap: str, app: str, agent_name: str
) -> None:
    async with at_work(bootstrap, app, agent_name) as (kafka, agent, server, _site):
        server.gate.clear()
        await until(lambda: server.book, what="the first question")
        await kafka.tell(agent, "r1", "cancel")
        await kafka.until_status(agent, "r1", "cancelled")
        assert len(server.book) == 1
        await kafka.check_history(agent)


AGENT_FILE = """
import asyncio
from pathlib import Path

import openai

from surefoot import Agent
from surefoot.agents.openai_model import OpenAIModel
from surefoot.agents.tool_loop import tool_loop

FOLDER = Path({folder!r})
agent = Agent({name!r})


async def dig(where: str) -> str:
    '''Dig.'''
    with (FOLDER / "begun").open("a") as journal:
        journal.write("x")
    while not (FOLDER / "free").exists():
        await asyncio.sleep(0.02)
    return f"nothing {{where}}"


client = openai.AsyncOpenAI(api_key="none", base_url={url!r})
tool_loop(agent, model=OpenAIModel("m", client=client), tools=[dig])
"""


@pytest.fixture
def begun(tmp_path: Path) -> Callable[[], int]:
    """How often the digging was begun."""

    def count() -> int:
        journal = tmp_path / "begun"
        return len(journal.read_text()) if journal.exists() else 0

    return count


async def test_killed_between_thinking_and_acting_no_answer_is_paid_for_twice(
    bootstrap: str, app: str, agent_name: str, tmp_path: Path, begun: Callable[[], int]
) -> None:
    agent = Agent(agent_name)  # the workers load it from a file
    lives: list[asyncio.subprocess.Process] = []

    async def live(kafka: Cluster) -> asyncio.subprocess.Process:
        set_here = kafka.settings.model_dump(exclude_unset=True, exclude_none=True)
        with (tmp_path / f"life-{len(lives)}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "surefoot",
                "worker",
                str(tmp_path / "agent.py"),
                "--slot",
                "0",
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=os.environ
                | {f"SUREFOOT_{name.upper()}": str(value) for name, value in set_here.items()},
            )
        lives.append(process)
        return process

    async with (
        model_server(dig_then_answer) as server,
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
    ):
        source = AGENT_FILE.format(folder=str(tmp_path), name=agent_name, url=f"{server.url}/v1")
        (tmp_path / "agent.py").write_text(source)
        try:
            await kafka.start(agent, "r1", strict_json("dig"))
            first = await live(kafka)
            await until(lambda: begun() == 1, what="the digging to begin")
            first.kill()
            await first.wait()
            server.gate.clear()
            second = await live(kafka)
            await until(lambda: begun() == 2, what="the digging to begin again")
            assert len(server.book) == 1
            (tmp_path / "free").touch()
            await until(lambda: len(server.book) == 2, what="the second question")
            second.kill()
            await second.wait()
            server.gate.set()
            await live(kafka)
            await kafka.until_status(agent, "r1", "completed")
            assert await result(kafka, agent) == "Answer 1"
        finally:
            for process in lives:
                if process.returncode is None:
                    process.kill()
                await process.wait()
        # The second question was in the air when its worker died: it is asked again, by the same
        # key. What was answered is never asked again.
        assert Counter(server.keys) == {f"{agent_name}:r1:0": 1, f"{agent_name}:r1:3": 2}
        assert begun() == 2
        await kafka.check_history(agent)
