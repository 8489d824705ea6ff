"""SF11, SF12: declaring an agent, and what its steps do."""

from __future__ import annotations

from surefoot.state.errors.catalogue.page import Page

_CHECK = "Check the fix without starting anything: `surefoot topics verify agent.py`"

DECLARING_PAGES: tuple[Page, ...] = (
    Page(
        number="SF1101",
        title="Agent file not found",
        means="The path does not lead to a Python file.",
        causes=("the command is run from another folder", "the file's name is mistyped"),
        mend=("Look: `ls *.py`", "Make a first agent: `surefoot new hello`"),
    ),
    Page(
        number="SF1102",
        title="The file defines no agent",
        means="The file was imported, and no top-level name is an Agent.",
        causes=(
            "the agent is made inside of a function",
            "this is the test or a helper; the agent is in another file",
            "the file only imports agents: those are served where they are defined",
        ),
        mend=(
            'Write at top level: `hello = Agent("hello")`',
            "Export what is imported: `agents = [hello, goodbye]`, or put the names in `__all__`.",
        ),
    ),
    Page(
        number="SF1103",
        title="Invalid agent name",
        means="The name becomes part of topics and of a consumer group: a lower-case letter, "
        "then up to 62 of a-z 0-9 and -. `outbox` is reserved for the relay.",
        causes=("capitals, spaces, dots or _ in the name",),
        mend=('Rename it: `Agent("send-invoice")`',),
    ),
    Page(
        number="SF1104",
        title="Two agents share a name",
        means="They would share topics and process each other's runs.",
        causes=("a file was given twice", "an agent was copied and not renamed"),
        mend=("Rename one of them.", "Find both: `grep -n 'Agent(' *.py`"),
    ),
    Page(
        number="SF1105",
        title="Invalid agent version",
        means="Versions are whole numbers from 1 that increase with each change of stored state.",
        causes=("0, or a number below it",),
        mend=('Write `Agent("hello", version=1)`; docs/how-to/versions.md says when it goes up.',),
    ),
    Page(
        number="SF1106",
        title="Agent without steps",
        means="A run of it would have nowhere to begin.",
        causes=("the decorator is missing or belongs to another agent",),
        mend=("Put `@hello.step` before a function.",),
    ),
    Page(
        number="SF1107",
        title="Step declared twice",
        means="Two steps of one agent have the same name, or two have start=True.",
        causes=("a function was copied", "start=True was moved and not taken away"),
        mend=("Give one another name: `@hello.step(name=...)`", "Leave start=True at one step."),
    ),
    Page(
        number="SF1108",
        title="Wrong step signature",
        means="A step is a function of (ctx, payload), or of three arguments after a wait. "
        "Its payload has a type. It cannot be a generator.",
        causes=(
            "the payload has no annotation",
            "its type is declared inside of a function, or below the step",
            "an argument too many or too few",
            "a decorator without functools.wraps, which hides all that",
        ),
        mend=("Write `async def greet(ctx: Context, name: str) -> Done:`", _CHECK),
    ),
    Page(
        number="SF1109",
        title="Payload type cannot be stored",
        means="Payloads are stored as JSON, and this type has no JSON form.",
        causes=(
            "a client, a connection, a file or a class of your own as payload",
            "a field of a type imported under `if TYPE_CHECKING:`, where nothing else loads it",
        ),
        mend=(
            "Take a dataclass, a pydantic model, a TypedDict or plain JSON types.",
            "Before Python 3.12: `from typing_extensions import TypedDict`",
            "Import what fields are annotated with at module level: values are made of it.",
            "Hand over what identifies the thing (an id, a path) and open it in the step.",
            _CHECK,
        ),
    ),
    Page(
        number="SF1110",
        title="Invalid or unknown pool",
        means="A pool's name is up to 31 of a-z 0-9 and -, and concurrency= requires pool=.",
        causes=("a mistyped name behind --pool", "concurrency= without pool="),
        mend=("See the pools: `grep -n 'pool=' agent.py`", "docs/how-to/pools.md shows one."),
    ),
    Page(
        number="SF1111",
        title="Invalid duration",
        means='A duration is a number of seconds or a text such as "30s", "2m", "1h" or "3d", '
        "above 0 and at most 1000 years.",
        causes=('a unit is missing or unknown ("5 min")', "0 or less"),
        mend=('Write `timeout="2m"`.',),
    ),
    Page(
        number="SF1112",
        title="Invalid retry policy",
        means="The arguments of Retry contradict each other. The message names the argument.",
        causes=("attempts=0, where 1 means no second attempt", "on= without a tuple"),
        mend=("Write `Retry(attempts=5, on=(ConnectionError,))`; docs/how-to/retries.md",),
    ),
    Page(
        number="SF1113",
        title="Invalid budget or cost",
        means="Budgets are amounts above 0; costs are amounts from 0, and token counts are "
        "whole numbers.",
        causes=("0 was meant as 'no limit': leave it out instead",),
        mend=("Write `Budget(tokens=100_000)`; docs/how-to/budgets.md",),
    ),
    Page(
        number="SF1114",
        title="Invalid compensation",
        means="@agent.on_cancel and @agent.on_failure take one step each, of (ctx, ended: Ended).",
        causes=("a second one", "another type of payload"),
        mend=("Write `async def undo(ctx: Context, ended: Ended) -> Done:`",),
    ),
    Page(
        number="SF1115",
        title="Invalid upcast",
        means="@agent.upcast(from_version=N) is declared once for each N below the version.",
        causes=("the agent's version was not raised", "one was copied"),
        mend=("Raise `Agent(..., version=N + 1)`; docs/how-to/versions.md",),
    ),
    Page(
        number="SF1117",
        title="Unknown step",
        means="The agent has no step of this name. The check reads the source; nothing ran.",
        causes=("the decorator is missing", "the step's name was given as text"),
        mend=("Give the function itself: `Next(ship, order)`", _CHECK),
    ),
    Page(
        number="SF1118",
        title="Wrong payload for a step",
        means="The payload or the number of arguments does not fit the step. The check reads "
        "the source; nothing ran.",
        causes=(
            "the step takes another type",
            "its third argument is only given after a wait",
            "after Approve a step takes (ctx, approval, what)",
        ),
        mend=("Give the step what it takes, or change its annotation.", _CHECK),
    ),
    Page(
        number="SF1119",
        title="Invalid signal names",
        means="all_of, any_of and n_of take names, each once; n_of takes a count from 1.",
        causes=("an empty or repeated name",),
        mend=('Write `any_of("paid", "refused")`; docs/how-to/waits.md',),
    ),
    Page(
        number="SF1120",
        title="Invalid call name",
        means="The first argument of ctx.call and ctx.once is a name of 1 to 128 characters.",
        causes=("the function was given first",),
        mend=('Write `await ctx.call("ask the model", ask, prompt)`',),
    ),
    Page(
        number="SF1121",
        title="Invalid tool_loop argument",
        means="The message names the argument.",
        causes=("max_turns below 1", "idle= without chat=True"),
        mend=("docs/how-to/tool-loop.md shows all of its arguments.",),
    ),
    Page(
        number="SF1122",
        title="Invalid tool",
        means="A tool is a function with a name, a docstring and arguments with types that "
        "JSON can express.",
        causes=("no docstring", "an argument without a type, or *args", "two tools of one name"),
        mend=("Write what is missing; docs/how-to/tool-loop.md shows a tool.",),
    ),
    Page(
        number="SF1123",
        title="Model SDK is not installed",
        means="The adapter for this provider needs an optional package.",
        causes=("surefoot was installed without the extra",),
        mend=("`pip install 'surefoot[anthropic]'`", "`pip install 'surefoot[openai]'`"),
    ),
    Page(
        number="SF1124",
        title="Invalid webhook sender",
        means="The declaration of who sends to a webhook source contradicts itself, or "
        "verifies nothing. Nothing was started.",
        causes=(
            "a header is named that cannot be one",
            "the body or the timestamp is not part of what is signed",
            "two agents say that other senders send to one source",
        ),
        mend=(
            (
                "Compare with docs/how-to/webhooks.md, which has a declaration for each kind of "
                "sender."
            ),
        ),
    ),
    Page(
        number="SF1125",
        title="Invalid flow or rate",
        means="The arguments of Flow or Rate contradict each other. Nothing was started.",
        causes=(
            "a limit below 1",
            "singleton together with concurrency or debounce",
            "priority without anything that makes runs wait",
            "a step's rate on an agent without a flow",
        ),
        mend=("See docs/how-to/flow-control.md.",),
    ),
    Page(
        number="SF1126",
        title="Invalid topic trigger",
        means="This agent.on_event declaration cannot work. Nothing was started.",
        causes=(
            "its function is async, or takes other arguments",
            "the event's type is missing, or cannot be read from JSON or Avro",
            "key= names a field that the type has not",
            "it listens to the dead letters, or to one topic twice",
        ),
        mend=("See docs/how-to/kafka-events.md.",),
    ),
    Page(
        number="SF1127",
        title="Invalid schedule",
        means="The cron expression, the time zone or a policy of the schedule cannot be used. "
        "Nothing was started.",
        causes=(
            "a field of the expression is out of range",
            "the time zone is none of the IANA database",
            "two schedules of one name",
        ),
        mend=(
            "See what it comes to: `surefoot schedules next agent.py NAME`",
            "See docs/how-to/schedules.md.",
        ),
    ),
    Page(
        number="SF1128",
        title="Invalid queue or folder trigger",
        means="This agent.sqs or agent.files declaration cannot work. Nothing was started.",
        causes=(
            "its function is async, or its argument has no type",
            "the pattern names no folder",
        ),
        mend=("See docs/how-to/aws.md and docs/how-to/files.md.",),
    ),
    Page(
        number="SF1129",
        title="A flow function failed",
        means="A function of the agent's flow (key, id) raised, or returned what cannot be "
        "part of a run's id. Nothing was started.",
        causes=("the payload lacks what the function looks at",),
        mend=("See docs/how-to/flow-control.md, and try the function on that payload.",),
    ),
    Page(
        number="SF1138",
        title="Invalid subscription",
        means="The arguments of agent.subscribe(...) contradict each other: its name, the "
        "events, a function, or a URL that is never allowed. Nothing was started.",
        causes=(
            "an event that there is not",
            "a URL with credentials in it, or with a host that is a bare number",
            "two subscriptions of one name",
        ),
        mend=("Correct what the message names; see docs/how-to/webhooks-out.md.",),
    ),
    Page(
        number="SF1167",
        title="Records of an Avro union cannot be told apart",
        means="schema= has a union of records, and the event's type a union of classes. Each "
        "record becomes the class of the same name. A record without such a class, or "
        "with two, would become another one by chance. Nothing was started.",
        causes=(
            "a class is called otherwise than its record",
            "the union of classes leaves one of the schema's records out",
            "two records of a union differ in their namespace only",
        ),
        mend=(
            "Call the classes as the schema calls its records, and name all of them in the union.",
            "Take the event as a `dict[str, Any]` where one class is not to be made of each.",
        ),
    ),
    Page(
        number="SF1186",
        title="Invalid argument of a model adapter",
        means="`ends` maps a server's own stop reasons to one of a few words.",
        causes=("a mistyped word",),
        mend=('Write `ends={"eos": "done"}`; docs/how-to/tool-loop.md has all of the words.',),
    ),
    Page(
        number="SF1201",
        title="A step raised",
        means="The step's own code raised an exception, and its retry policy has no attempt left "
        "or does not retry it. The run failed; its dead letter is on surefoot.dead.",
        causes=("a bug in the step", "what it calls is down for longer than the retries last"),
        mend=(
            "See what was raised: `surefoot runs show AGENT RUN_ID`",
            "Fix and deploy the step, then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("step_raised", "call_failed"),
    ),
    Page(
        number="SF1202",
        title="A step timed out",
        means="Each attempt was stopped at the step's timeout.",
        causes=("timeout= is shorter than what it calls takes", "a call without a time limit"),
        mend=(
            'Give it longer: `@agent.step(timeout="10m")`',
            "Then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("timeout",),
    ),
    Page(
        number="SF1203",
        title="Invalid return value of a step",
        means="A step returns Next, Sleep, Done, Wait, Approve, Parallel, Call or Handoff, "
        "with arguments that fit.",
        causes=(
            "a bare value instead of Done(value)",
            "a return is missing on one path, so that it is None",
            "a time without a time zone",
        ),
        mend=(
            "Write `return Done(value)`; README.md has the table of what a step returns.",
            "Then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("bad_return",),
    ),
    Page(
        number="SF1204",
        title="The version has no such step",
        means="A run is at, or was sent to, a step that this version of the agent does not "
        "have. The run waits for a person; nothing of it is lost.",
        causes=("the step was renamed or removed under runs that were on their way",),
        mend=(
            "Map it with `@agent.upcast(from_version=N)`, then `surefoot runs retry AGENT RUN_ID`",
            "Or go back to a step that is left: `surefoot runs rewind AGENT RUN_ID --to SEQ`",
        ),
        codes=("unknown_step",),
    ),
    Page(
        number="SF1206",
        title="Invalid use of ctx",
        means="A method of ctx has an argument that cannot work in any attempt.",
        causes=(
            "a URL that nobody can ask for",
            "a header that cannot be sent, or that is the relay's to set",
            "json= and body= at once",
            "an id that is not there",
        ),
        mend=("Fix the call that the message names, then `surefoot runs retry AGENT RUN_ID`",),
    ),
    Page(
        number="SF1182",
        title="Two files have the same module name",
        means="A process has one module of each name, so one agent would get the helpers of "
        "the other.",
        causes=(
            "one/agent.py and two/agent.py in one process",
            "a helper of the same name beside each of two agents",
            "a file called as a module of Python's, such as queue.py",
        ),
        mend=(
            "Name them from the folder above: `surefoot gateway one.agent two.agent`",
            "Import the helpers of each with `from . import helpers`.",
            "Give one of the files another name.",
            "Run them as processes of their own.",
        ),
    ),
    Page(
        number="SF1183",
        title="Annotation cannot be resolved",
        means="The annotation decides how a value is stored and read back, so it is never "
        "guessed. The message names the function and the annotation. Names are looked "
        "up in the module, in the enclosing functions, and under `if TYPE_CHECKING:` in "
        "modules that are loaded.",
        causes=(
            "the type is defined below the function",
            "the name is mistyped, or its import is missing",
            "it is imported under `if TYPE_CHECKING:`, and nothing else loads that module",
        ),
        mend=("Define or import the type at module level, above the function.",),
    ),
    Page(
        number="SF1184",
        title="Ambiguous union",
        means="Values are stored as plain JSON without their types. The message shows a value "
        "that would come back as another member of the union, so runs would fail, or go "
        "wrong, depending on their data.",
        causes=(
            "`UUID | str`, `Decimal | str`, `bytes | str`: each is text in JSON",
            "two dataclasses, or a dataclass and a dict, with the same fields",
            "`list[int] | tuple[int, ...]`, `Page[UUID] | Page[str]`",
        ),
        mend=(
            "Take the one type that is meant: a str can be made a UUID where it is used.",
            'Tell dataclasses apart by a field: `kind: Literal["order"] = "order"`',
        ),
    ),
)
