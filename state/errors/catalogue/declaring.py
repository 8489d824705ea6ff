"""SF11, SF12: declaring an agent, and what its steps do."""

from __future__ import annotations

from surefoot.state.errors.catalogue.page import Page

_CHECK = "See whether it is mended, without starting anything: `surefoot topics verify agent.py`"

DECLARING: tuple[Page, ...] = (
    Page(
        number="SF1101",
        title="The agent's file is not there",
        means="The path does not lead to a Python file.",
        causes=("the command is run from another folder", "the file's name is mistyped"),
        mend=("Look: `ls *.py`", "Make a first agent: `surefoot new hello`"),
    ),
    Page(
        number="SF1102",
        title="The file defines no agent",
        means="The file was imported, and no name at its top level is an Agent.",
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
        title="An agent cannot have this name",
        means="The name becomes part of topics and of a consumer group, so it is narrow: a "
        "lower-case letter, then up to 62 of a-z 0-9 and -. `outbox` is the relay's.",
        causes=("capitals, spaces, dots or _ in the name",),
        mend=('Rename it: `Agent("send-invoice")`',),
    ),
    Page(
        number="SF1104",
        title="Two agents of one name",
        means="They would share topics and take each other's runs.",
        causes=("a file was given twice", "an agent was copied and not renamed"),
        mend=("Rename one of them.", "Find both: `grep -n 'Agent(' *.py`"),
    ),
    Page(
        number="SF1105",
        title="An agent's version begins with 1",
        means="Versions are whole numbers that go up by one with each change of stored state.",
        causes=("0, or a number below it",),
        mend=('Write `Agent("hello", version=1)`; docs/how-to/versions.md says when it goes up.',),
    ),
    Page(
        number="SF1106",
        title="An agent without steps",
        means="A run of it would have nowhere to begin.",
        causes=("the decorator is missing or belongs to another agent",),
        mend=("Put `@hello.step` before a function.",),
    ),
    Page(
        number="SF1107",
        title="A step is declared twice",
        means="Two steps of one agent have the same name, or two say start=True.",
        causes=("a function was copied", "start=True was moved and not taken away"),
        mend=("Give one another name: `@hello.step(name=...)`", "Leave start=True at one step."),
    ),
    Page(
        number="SF1108",
        title="A step has the wrong shape",
        means="A step is a function of (ctx, payload), or of three arguments after a wait, whose "
        "payload has a type. It cannot be a generator.",
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
        title="A payload's type cannot be stored",
        means="What a step takes is kept as JSON, and no JSON can be made for that type.",
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
        title="A pool is wrong, or there is none of that name",
        means="Names of pools are up to 31 of a-z 0-9 and -, and concurrency= goes with pool=.",
        causes=("a mistyped name behind --pool", "concurrency= without pool="),
        mend=("See the pools: `grep -n 'pool=' agent.py`", "docs/how-to/pools.md shows one."),
    ),
    Page(
        number="SF1111",
        title="A duration cannot be read",
        means='A duration is a number of seconds or a text such as "30s", "2m", "1h" or "3d", '
        "above 0 and at most 1000 years.",
        causes=('a unit is missing or unknown ("5 min")', "0 or less"),
        mend=('Write `timeout="2m"`.',),
    ),
    Page(
        number="SF1112",
        title="Retry has an argument that cannot be",
        means="The retry policy of a step contradicts itself. The message says which argument.",
        causes=("attempts=0, where 1 means no second attempt", "on= without a tuple"),
        mend=("Write `Retry(attempts=5, on=(ConnectionError,))`; docs/how-to/retries.md",),
    ),
    Page(
        number="SF1113",
        title="A budget or a cost is not a number above 0",
        means="Budgets are amounts above 0; costs are amounts from 0, tokens whole.",
        causes=("0 was meant as 'no limit': leave it out instead",),
        mend=("Write `Budget(tokens=100_000)`; docs/how-to/budgets.md",),
    ),
    Page(
        number="SF1114",
        title="A compensation is declared wrong",
        means="@agent.on_cancel and @agent.on_failure take one step each, of (ctx, ended: Ended).",
        causes=("a second one", "another type of payload"),
        mend=("Write `async def undo(ctx: Context, ended: Ended) -> Done:`",),
    ),
    Page(
        number="SF1115",
        title="An upcast is declared wrong",
        means="@agent.upcast(from_version=N) is declared once for each N below the version.",
        causes=("the agent's version was not raised", "one was copied"),
        mend=("Raise `Agent(..., version=N + 1)`; docs/how-to/versions.md",),
    ),
    Page(
        number="SF1117",
        title="A step names a step that is not there",
        means="Found in the source, before anything runs: the name is not a step of this agent.",
        causes=("the decorator is missing", "the step's name was given as text"),
        mend=("Give the function itself: `Next(ship, order)`", _CHECK),
    ),
    Page(
        number="SF1118",
        title="A step is handed what it does not take",
        means="Found in the source: the payload, or the number of arguments, does not fit.",
        causes=(
            "the step takes another type",
            "its third argument is only given after a wait",
            "after Approve a step takes (ctx, approval, what)",
        ),
        mend=("Give the step what it takes, or change its annotation.", _CHECK),
    ),
    Page(
        number="SF1119",
        title="The signals to wait for are not named well",
        means="all_of, any_of and n_of take names, each once, and n_of a number from 1.",
        causes=("an empty or repeated name",),
        mend=('Write `any_of("paid", "refused")`; docs/how-to/waits.md',),
    ),
    Page(
        number="SF1120",
        title="A call has no usable name",
        means="The first argument of ctx.call and ctx.once is its name, 1 to 128 characters.",
        causes=("the function was given first",),
        mend=('Write `await ctx.call("ask the model", ask, prompt)`',),
    ),
    Page(
        number="SF1121",
        title="tool_loop has an argument that cannot be",
        means="The message says which.",
        causes=("max_turns below 1", "idle= without chat=True"),
        mend=("docs/how-to/tool-loop.md shows all of its arguments.",),
    ),
    Page(
        number="SF1122",
        title="A tool cannot be told to a model",
        means="A tool is a function with a name, a docstring and typed arguments of JSON.",
        causes=("no docstring", "an argument without a type, or *args", "two tools of one name"),
        mend=("Write what is missing; docs/how-to/tool-loop.md shows a tool.",),
    ),
    Page(
        number="SF1123",
        title="The model's SDK is not installed",
        means="The adapter for this provider needs a package that is an extra.",
        causes=("surefoot was installed without the extra",),
        mend=("`pip install 'surefoot[anthropic]'`", "`pip install 'surefoot[openai]'`"),
    ),
    Page(
        number="SF1124",
        title="A webhook's sender is declared wrong",
        means="The declaration of who sends to a webhook source contradicts itself, or proves "
        "nothing. Nothing was started.",
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
        title="A flow or a rate contradicts itself",
        means="Flow or Rate was given arguments that cannot all hold. Nothing was started.",
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
        title="A trigger on a topic is declared wrong",
        means="agent.on_event cannot work as it is written. Nothing was started.",
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
        title="A schedule is declared wrong",
        means="The cron expression, the time zone or a policy of a schedule cannot be used. "
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
        title="A queue or a folder is declared wrong",
        means="agent.sqs or agent.files cannot work as it is written. Nothing was started.",
        causes=(
            "its function is async, or its argument has no type",
            "the pattern names no folder",
        ),
        mend=("See docs/how-to/aws.md and docs/how-to/files.md.",),
    ),
    Page(
        number="SF1129",
        title="A flow's function failed",
        means="A function of the agent's flow (key, id) raised, or what it gave cannot be "
        "part of a run's name. Nothing was started.",
        causes=("the payload lacks what the function looks at",),
        mend=("See docs/how-to/flow-control.md, and try the function on that payload.",),
    ),
    Page(
        number="SF1138",
        title="A subscription cannot work",
        means="What agent.subscribe(...) says contradicts itself: its name, the events, a "
        "function, or a URL to which nothing is ever sent. Nothing was started.",
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
        means="schema= has a union of records, and the event's type a union of classes, of which "
        "each record is the class that is called as it is. A record without such a class, or with "
        "two, would be taken for another one by chance. Nothing was started.",
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
        title="A model's adapter has an argument that cannot be",
        means="`ends` says what a server's own reasons to stop mean, each by one of a few words.",
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
            "Mend and deploy the step, then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("step_raised", "call_failed"),
    ),
    Page(
        number="SF1202",
        title="A step took too long",
        means="Each attempt was given up at the step's timeout.",
        causes=("timeout= is shorter than what it calls takes", "a call without a time limit"),
        mend=(
            'Give it longer: `@agent.step(timeout="10m")`',
            "Then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("timeout",),
    ),
    Page(
        number="SF1203",
        title="A step returned something else",
        means="A step says what comes next with Next, Sleep, Done, Wait, Approve, Parallel, Call "
        "or Handoff, each with arguments that fit.",
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
        title="There is no such step",
        means="A run stands at, or is sent to, a step that this version of the agent does not "
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
        title="ctx was asked for what cannot be",
        means="A method of ctx has an argument that can never work, in every attempt.",
        causes=(
            "a URL that nobody can ask for",
            "a header that cannot be sent, or that is the relay's to set",
            "json= and body= at once",
            "an id that is not there",
        ),
        mend=("Mend the call that the message names, then `surefoot runs retry AGENT RUN_ID`",),
    ),
    Page(
        number="SF1182",
        title="Two files would be one module",
        means="A file is imported under its own name, and a process has one module of each name. "
        "So Python could not tell these two apart, and one agent would get the other's helpers.",
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
        title="An annotation cannot be resolved",
        means="The type of what a function takes or gives says how it is stored and read back, so "
        "it is never guessed. The message names the function and the annotation. Looked at are the "
        "module's names, those of the functions around it, and what is imported under `if "
        "TYPE_CHECKING:` of modules that are loaded.",
        causes=(
            "the type is defined below the function",
            "the name is mistyped, or its import is missing",
            "it is imported under `if TYPE_CHECKING:`, and nothing else loads that module",
        ),
        mend=("Define or import the type at module level, above the function.",),
    ),
    Page(
        number="SF1184",
        title="A union that loses which of its members a value was",
        means="Values are stored as plain JSON, which other systems read too, without their types. "
        "The message has an example that would come back as another member of the union, so runs "
        "would fail, or go wrong, by what is in their data.",
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
