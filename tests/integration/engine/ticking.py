"""An agent whose schedules tick every second, for the processes of test_schedules.py."""

from surefoot import Agent, Context, Done, Tick

ticking = Agent("ticking")


@ticking.step
async def note(ctx: Context, second: str) -> Done:
    return Done(second)


def second(tick: Tick) -> str:
    return f"{tick.at:%H:%M:%S}"


for overlap in ("queue", "allow"):
    for number in range(2):
        ticking.schedule("* * * * * *", name=f"{overlap}-{number}", overlap=overlap, misfire="all")(
            second
        )
