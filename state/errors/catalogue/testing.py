"""SF60, SF70: replay, and tests of agents."""

from __future__ import annotations

from surefoot.state.errors.catalogue.page import Page

REPLAY_PAGES: tuple[Page, ...] = (
    Page(
        number="SF6001",
        title="Invalid replay range",
        means="--from and --to are both times with a zone, or both offsets of one partition. "
        "Nothing was replayed.",
        causes=("a time without Z", "an offset without --partition", "an option of another mode"),
        mend=(
            "`surefoot replay AGENT --from 2026-01-31T12:00:00Z --dry-run`",
            "docs/how-to/operate.md has examples.",
        ),
    ),
    Page(
        number="SF6002",
        title="The replay range is not in the log",
        means="The offsets have expired or do not exist yet.",
        causes=("the incident is longer ago than the topic keeps", "another partition was meant"),
        mend=("Use what is left, as the message says, or a time.",),
    ),
)

TESTING_PAGES: tuple[Page, ...] = (
    Page(
        number="SF7001",
        title="Invalid Simulation",
        means="A Simulation needs every agent that takes part, and a plain `def` test.",
        causes=("the test is `async def`", "an agent that is called was not given"),
        mend=("Write `def test_it(): sim = Simulation(parent, child)`",),
    ),
    Page(
        number="SF7002",
        title="The simulation cannot continue",
        means="It was asked for something that does not exist, or nothing in it is due any more.",
        causes=(
            "a step waits for something real: a lock that a killed process holds, a thread",
            "no run was started, or it asks nothing",
        ),
        mend=("Give the step a fake; docs/how-to/testing.md says what is simulated.",),
    ),
    Page(
        number="SF7003",
        title="The agent is not deterministic",
        means="Two runs without a crash differ, so there is nothing to compare with.",
        causes=("time, chance or an id is taken outside of ctx.call", "fakes are not made new"),
        mend=('Take it from a call: `await ctx.call("now", now)`', "Give `setup=` the fakes."),
    ),
    Page(
        number="SF7004",
        title="A crash changes the outcome",
        means="Killed at that commit, the agent ends differently than without the crash.",
        causes=("the step does something to the world by itself, which is repeated with it",),
        mend=("Do it through ctx.outbox or ctx.once, or make it safe to repeat by a key.",),
    ),
    Page(
        number="SF7005",
        title="Not simulated",
        means="Under virtual time there is no network, no subprocess and no signal on the loop.",
        causes=("the step opens a connection in a test",),
        mend=("Give it a fake, or call a plain `def` function through ctx.call.",),
    ),
)
