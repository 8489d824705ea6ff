"""Code that changes under runs that are on their way, on a real broker."""

from __future__ import annotations

from typing import Any

from surefoot import Agent, Context, Done, Next, Resuming, Wait
from tests.support.cluster import LATER_MS, MovingClock, cluster, names
from tests.support.long_deadlines import PATIENT


def version_1(name: str) -> Agent:
    agent = Agent(name)

    @agent.step
    async def ask(ctx: Context, payload: dict[str, Any]) -> Wait | Next:
        if "after" in payload:
            return Next(end, 1, after=payload["after"])
        return Wait("go", then=end)

    @agent.step
    async def end(ctx: Context, payload: int) -> Done:
        return Done(["v1", payload])

    return agent


async def test_runs_that_wait_go_on_under_a_new_version(
    bootstrap: str, app: str, agent_name: str
) -> None:
    old = version_1(agent_name)
    new = Agent(agent_name, version=2)

    @new.step
    async def ask(ctx: Context, payload: dict[str, Any]) -> Wait:
        return Wait("go", then=end)

    @new.step
    async def end(ctx: Context, payload: int) -> Done:
        return Done(["v2", payload])

    async with cluster(bootstrap, app, old, **PATIENT) as kafka:
        worker = await kafka.work(old)
        await kafka.start(old, "waits", b"{}")
        await kafka.start(old, "sleeps", b'{"after":"30m"}')
        await kafka.until_status(old, ["waits", "sleeps"], "waiting")
        await worker.drain()
        kafka.clock = MovingClock(LATER_MS)
        await kafka.work(new)
        await kafka.tell(new, "waits", "signal", name="go", payload=b"5")
        await kafka.until_status(new, ["waits", "sleeps"], "completed")
        for run_id, expected in (("waits", b'["v2",5]'), ("sleeps", b'["v2",1]')):
            checkpoint = await kafka.checkpoint(new, run_id)
            assert checkpoint is not None
            assert (checkpoint["result"], checkpoint["version"]) == (expected, 2)


async def test_upcasters_bring_old_state_to_the_steps_that_there_are(
    bootstrap: str, app: str, agent_name: str
) -> None:
    old = version_1(agent_name)
    new = Agent(agent_name, version=3)

    @new.step
    async def finish(ctx: Context, payload: dict[str, int]) -> Done:
        return Done(payload)

    @new.upcast(from_version=1)
    def to_2(step: str, payload: Any) -> tuple[str, Any]:
        return ("finish" if step == "end" else step), {"speed": payload}

    @new.upcast(from_version=2)
    def to_3(step: str, payload: Any) -> tuple[str, Any]:
        return step, {**payload, "unit": 1}

    async with cluster(bootstrap, app, old, **PATIENT) as kafka:
        worker = await kafka.work(old)
        await kafka.start(old, "r", b"{}")
        await kafka.until_status(old, "r", "waiting")
        await worker.drain()
        await kafka.work(new)
        await kafka.tell(new, "r", "signal", name="go", payload=b"5")
        await kafka.until_status(new, "r", "completed")
        checkpoint = await kafka.checkpoint(new, "r")
        assert checkpoint is not None
        assert (checkpoint["result"], checkpoint["version"]) == (b'{"speed":5,"unit":1}', 3)


async def test_a_run_whose_step_is_gone_says_what_to_do_and_the_others_go_on(
    bootstrap: str, app: str, agent_name: str
) -> None:
    old = version_1(agent_name)
    new = Agent(agent_name, version=2)

    @new.step
    async def only(ctx: Context, payload: dict[str, Any]) -> Done:
        return Done("new")

    async with cluster(bootstrap, app, old, partitions=1, **PATIENT) as kafka:
        worker = await kafka.work(old)
        await kafka.start(old, "r", b"{}")
        await kafka.until_status(old, "r", "waiting")
        await worker.drain()
        later = await kafka.work(new)
        await kafka.start(new, "r2", b"{}")
        await kafka.until_status(new, "r2", "completed")
        await kafka.until_status(new, "r", "attention")
        checkpoint = await kafka.checkpoint(new, "r")
        assert checkpoint is not None
        assert checkpoint["failure"]["code"] == "unknown_step"
        for way_out in ("upcast(from_version=1)", "runs retry", "runs rewind", "cancel"):
            assert way_out in checkpoint["failure"]["message"]
        await later.drain()
        await kafka.work(old)  # the code that knows it is back
        await kafka.tell(old, "r", "retry")
        await kafka.tell(old, "r", "signal", name="go", payload=b"5")
        await kafka.until_status(old, "r", "completed")


async def test_the_authors_checks_come_before_a_run_goes_on(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = version_1(agent_name)
    seen: list[Resuming] = []

    @agent.verify
    async def branch_exists(run: Resuming) -> None:
        seen.append(run)
        if len(seen) == 1:
            raise LookupError("the branch is gone")

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r", b"{}")
        await kafka.until_status(agent, "r", "waiting")
        assert seen == []  # nothing had been interrupted
        await kafka.tell(agent, "r", "signal", name="go", payload=b"5")
        await kafka.until_status(agent, "r", "attention")
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        assert checkpoint["failure"]["code"] == "verify_failed"
        assert checkpoint["failure"]["message"] == "branch_exists: the branch is gone"
        await kafka.tell(agent, "r", "retry")
        await kafka.until_status(agent, "r", "completed")
        assert [(run.step, run.payload) for run in seen] == [("end", 5)] * 2
        assert "run.retried" in names(await kafka.events(agent, "r"))


async def test_a_run_that_newer_code_has_touched_is_left_alone_by_older_code(
    bootstrap: str, app: str, agent_name: str
) -> None:
    old = version_1(agent_name)
    new = version_1(agent_name)
    new.version = 2
    async with cluster(bootstrap, app, old, **PATIENT) as kafka:
        worker = await kafka.work(new)
        await kafka.start(new, "r", b"{}")
        await kafka.until_status(new, "r", "waiting")
        await worker.drain()
        back = await kafka.work(old)
        identity = await kafka.tell(old, "r", "signal", name="go", payload=b"5")
        await kafka.answer(old, "r", identity)
        await kafka.start(old, "r2", b"{}")
        await kafka.until_status(old, "r2", "waiting")
        assert await kafka.status(old, "r") == "running"  # decided, and not run here
        await back.drain()
        await kafka.work(new)
        await kafka.until_status(new, "r", "completed")


async def test_state_that_new_code_cannot_decode_parks_that_run_and_no_other(
    bootstrap: str, app: str, agent_name: str
) -> None:
    old = version_1(agent_name)
    new = Agent(agent_name, version=2)

    @new.step
    async def ask(ctx: Context, payload: dict[str, Any]) -> Wait:
        return Wait("go", then=end)

    @new.step
    async def end(ctx: Context, payload: dict[str, int]) -> Done:
        return Done(payload)

    async with cluster(bootstrap, app, old, partitions=1, **PATIENT) as kafka:
        worker = await kafka.work(old)
        await kafka.start(old, "old", b'{"after":"30m"}')  # stands at `end` with a number
        await kafka.until_status(old, "old", "waiting")
        await worker.drain()
        kafka.clock = MovingClock(LATER_MS)
        later = await kafka.work(new)
        await kafka.start(new, "new", b"{}")
        await kafka.tell(new, "new", "signal", name="go", payload=b'{"speed":1}')
        await kafka.until_status(new, "new", "completed")
        await kafka.until_status(new, "old", "attention")
        checkpoint = await kafka.checkpoint(new, "old")
        assert checkpoint is not None
        assert checkpoint["failure"]["code"] == "bad_payload"
        assert checkpoint["payload"] == b"1"
        await later.drain()
        await kafka.work(old)  # rolled back
        await kafka.tell(old, "old", "retry")
        await kafka.until_status(old, "old", "completed")


async def test_older_code_does_not_wake_a_run_of_newer_code(
    bootstrap: str, app: str, agent_name: str
) -> None:
    old = version_1(agent_name)
    new = version_1(agent_name)
    new.version = 2
    async with cluster(bootstrap, app, old, partitions=1, **PATIENT) as kafka:
        worker = await kafka.work(new)
        await kafka.start(new, "r", b'{"after":"30m"}')
        await kafka.until_status(new, "r", "waiting")
        await worker.drain()
        kafka.clock = MovingClock(LATER_MS)
        back = await kafka.work(old)
        for kind in ("pause", "resume"):
            await kafka.answer(old, "r", await kafka.tell(old, "r", kind))
        await kafka.start(old, "later", b'{"after":"200ms"}')
        await kafka.until_status(old, "later", "completed")  # the time of r has come as well
        assert await kafka.status(old, "r") == "waiting"
        await back.drain()
        await kafka.work(new)
        await kafka.until_status(new, "r", "completed")
