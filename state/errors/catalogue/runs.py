"""SF40, SF41: runs that stop, commands that are refused."""

from __future__ import annotations

from surefoot.state.errors.catalogue.page import Page

_SHOW = "See what it waits for and what to type: `surefoot runs show AGENT RUN_ID`"

RUNS_PAGES: tuple[Page, ...] = (
    Page(
        number="SF4002",
        title="Upcast failed",
        means="An @agent.upcast raised. The run waits for a person, unchanged.",
        causes=("the upcast does not know this step or this payload",),
        mend=("Mend the upcast and deploy it, then: `surefoot runs retry AGENT RUN_ID`",),
        codes=("upcast_failed",),
    ),
    Page(
        number="SF4003",
        title="Verification failed",
        means="An @agent.verify raised before the run resumed. The run waits for a person.",
        causes=("the world has changed while the run waited, as the message tells",),
        mend=("Put it right, then: `surefoot runs retry AGENT RUN_ID`", _SHOW),
        codes=("verify_failed",),
    ),
    Page(
        number="SF4004",
        title="Outcome of an action is unknown",
        means="A ctx.once began, and its worker died before it could record the outcome. It "
        "is not repeated on a guess; the run waits for a person.",
        causes=(
            "a worker was killed in the call",
            "the call raised, and has no probe",
            "the run or its parent was rewound or forked, and another run may have done it",
        ),
        mend=(
            "It happened: `surefoot runs resolve AGENT RUN_ID --happened RESULT`",
            "It did not: `surefoot runs resolve AGENT RUN_ID --did-not`",
            "For the next time, give the call a probe: docs/how-to/calls.md",
        ),
        codes=("once_in_doubt",),
    ),
    Page(
        number="SF4005",
        title="A repeated step made a different call",
        means="An attempt made a recorded call with other arguments, so the record cannot be "
        "returned. The run waits for a person.",
        causes=(
            "the step uses time, chance or what it read outside of ctx.call",
            "the step's code was changed under a run that was in it",
        ),
        mend=(
            "Bring the old code back, then: `surefoot runs retry AGENT RUN_ID`",
            "Or make its calls anew: `surefoot runs rewind AGENT RUN_ID --to SEQ`",
            "Find the cause with `check_crashes`: docs/how-to/testing.md",
        ),
        codes=("journal_mismatch",),
    ),
    Page(
        number="SF4006",
        title="A branch failed",
        means='A child of a Parallel or a Call failed, and on_error is "fail".',
        causes=("the child's own failure, which the message has",),
        mend=(
            "Look at the child: `surefoot runs show AGENT CHILD_ID`",
            'Let the join see failures: `Parallel(..., on_error="collect")`',
        ),
        codes=("branch_failed",),
    ),
    Page(
        number="SF4007",
        title="A wait timed out",
        means="A wait or an approval reached its time limit and names no step for that.",
        causes=("nobody answered", "the signal was sent to another run or under another name"),
        mend=(
            "Say what happens then: `Wait(..., on_timeout=remind)`",
            "Try again: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("wait_timeout",),
    ),
    Page(
        number="SF4008",
        title="Budget exhausted",
        means="The run has used its budget and asks for as much again.",
        causes=("the work is larger than planned", "the agent goes round in circles"),
        mend=("Answer: `surefoot runs approve AGENT RUN_ID --yes`", _SHOW),
        codes=("budget_spent",),
    ),
    Page(
        number="SF4009",
        title="Budget not renewed",
        means="Somebody refused, or nobody answered in time; the run failed.",
        causes=("the question was answered with --no, or not at all",),
        mend=("Let it go on: `surefoot runs retry AGENT RUN_ID`",),
        codes=("budget_denied",),
    ),
    Page(
        number="SF4010",
        title="The run was cancelled",
        means="A person, or the run's parent, cancelled it.",
        causes=("`surefoot runs cancel`", "its parent was cancelled, or another branch failed"),
        mend=("Go back to before: `surefoot runs rewind AGENT RUN_ID --to SEQ`",),
        codes=("cancelled",),
    ),
    Page(
        number="SF4011",
        title="An action in doubt was given up",
        means="Somebody resolved a ctx.once with --give-up, and the run failed.",
        causes=("`surefoot runs resolve --give-up`",),
        mend=("Try again: `surefoot runs retry AGENT RUN_ID`",),
        codes=("given_up",),
    ),
    Page(
        number="SF4012",
        title="Run id already in use",
        means="A child could not start: a run of its id exists with another input.",
        causes=("somebody started a run with a child's id",),
        mend=("Leave ids with ~ to children.", _SHOW),
        codes=("run_exists",),
    ),
    Page(
        number="SF4013",
        title="A trigger function raised",
        means="The function that turns an event into a start payload raised, or returned what "
        "cannot be stored. The event is among the dead letters; the others continue.",
        causes=("the event has a shape that the function does not expect",),
        mend=(("Look at the dead letter's message, fix the function, and send the event again."),),
        codes=("mapping_raised",),
    ),
    Page(
        number="SF4014",
        title="No store for a large payload",
        means="The run's input or result is kept outside of the log, and this worker has no "
        "store configured. The run waits for a person.",
        causes=("SUREFOOT_BLOBS is set for some processes only",),
        mend=("Set `SUREFOOT_BLOBS` for every process, then `surefoot runs retry`.",),
        codes=("no_blob_store",),
    ),
    Page(
        number="SF4015",
        title="A large payload is missing",
        means="The store does not have what the run refers to. The run waits for a person; "
        "the others continue.",
        causes=("a lifecycle rule of the bucket deleted it", "another store is named"),
        mend=(
            (
                "Bring it back, or name the right store in `SUREFOOT_BLOBS`, then `surefoot "
                "runs retry`."
            ),
        ),
        codes=("blob_missing",),
    ),
    Page(
        number="SF4016",
        title="A large payload was changed",
        means="The stored content has another checksum than the run's reference. It is not "
        "used; the run waits for a person.",
        causes=("somebody wrote to the store",),
        mend=(
            ("Bring the old content back, then `surefoot runs retry`; or `surefoot runs cancel`."),
        ),
        codes=("blob_corrupt",),
    ),
    Page(
        number="SF4017",
        title="Events were deleted before they were read",
        means="The topic's retention deleted records that its trigger had not read. The "
        "trigger continues at the first record that exists.",
        causes=(
            "the trigger was down for longer than the topic keeps its records",
            "the topic was made anew",
        ),
        mend=(
            "The dead letter names the range: send these events again, if their source can.",
            "Keep the topic's records for longer than your longest outage.",
        ),
        codes=("events_lost",),
    ),
    Page(
        number="SF4065",
        title="Commands were deleted before they were read",
        means="The retention of an agent's commands topic deleted records that no worker had "
        "read. These commands were not carried out, and runs may wait for them.",
        causes=(
            "no worker of the agent ran for longer than the topic keeps its records",
            "somebody has deleted records, or made the topic anew",
        ),
        mend=(
            "The dead letter names the range, and up to 100 runs of the partition that wait.",
            "See what each waits for, and send it again: `surefoot runs show AGENT RUN_ID`",
            "Have starts sent again by whoever sent them; one that was read is recognised.",
        ),
        codes=("commands_lost",),
    ),
    Page(
        number="SF4018",
        title="Start skipped",
        means="Another run of its key was in progress, and the agent's flow has "
        'singleton="skip". No run was started.',
        causes=("that is what the flow is for",),
        mend=("Start it again when the other one is over; see docs/how-to/flow-control.md.",),
        codes=("skipped",),
    ),
    Page(
        number="SF4086",
        title="The model refused to answer",
        means="The model refused (model_refused), or a filter of its provider withheld the "
        "question or the answer (model_filtered). The run failed; what it had said is "
        "in its thread.",
        causes=("what was asked, or what a tool gave, is against the provider's rules",),
        mend=(
            "Read the message: what the provider says of it stands there.",
            "To ask once more: `surefoot runs retry AGENT RUN_ID`",
            "To go back to before it: `surefoot runs rewind AGENT RUN_ID --to SEQ`",
        ),
        codes=("model_refused", "model_filtered"),
    ),
    Page(
        number="SF4087",
        title="Too long for the model",
        means="The answer reached a limit before its end (model_cut_off), or the request is "
        "larger than the model, or the account, accepts (model_request_too_large). Half "
        "an answer is not used: the run failed, and waiting does not help.",
        causes=(
            "a low limit of tokens for one answer",
            "a long thread, or tools that give much",
        ),
        mend=(
            "Give the adapter a higher limit: `AnthropicModel(..., max_tokens=32000)`",
            "OpenAI's name for it: `OpenAIModel(..., max_completion_tokens=32000)`",
            "Let tools give less: `@tool(chars_max=5000)`; or take a model with a larger window.",
            "Deploy it, then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("model_cut_off", "model_request_too_large"),
    ),
    Page(
        number="SF4088",
        title="Unclear end of the model's answer",
        means="The model stopped for a reason that the adapter does not know "
        "(model_stop_unknown), or ended its turn without text or calls "
        "(model_said_nothing). The run waits for a person.",
        causes=(
            "a server that has words of its own for why it stops",
            "a model that holds its turn for done after a tool",
            "a server that could not read a call that the model made",
        ),
        mend=(
            "Ask once more: `surefoot runs retry AGENT RUN_ID`",
            'Say what the reason means: `OpenAIModel(..., ends={"eos": "done"})`, deploy, retry.',
            "End it: `surefoot runs cancel AGENT RUN_ID`",
        ),
        codes=("model_stop_unknown", "model_said_nothing"),
    ),
    Page(
        number="SF4089",
        title="Model quota exhausted",
        means="The provider accepts no more requests from this account: its quota or credit "
        "is used up. The run failed; retrying does not help until that is resolved.",
        causes=("no credit, or a limit on what may be spent", "the key of another account"),
        mend=(
            "Pay, or raise the limit, at the provider.",
            "Then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("model_quota_spent",),
    ),
    Page(
        number="SF4070",
        title="The store refuses what the run needs",
        means="For ten minutes the store has only refused. The step's result is not kept: it "
        "runs again when the run is retried; its recorded calls are not made again.",
        causes=(
            "a permission is missing, a key has expired, the bucket is gone",
            "the store does not know the checksums that boto3 adds to requests",
        ),
        mend=(
            (
                "Correct the bucket, the permissions or `SUREFOOT_AWS_CHECKSUMS`, then "
                "`surefoot runs retry`."
            ),
        ),
        codes=("blob_refused",),
    ),
    Page(
        number="SF4071",
        title="Large payloads of a step exceed the limit",
        means="The large payloads for the step, each counted as often as it occurs, exceed "
        "`SUREFOOT_BLOB_STEP_MAX_BYTES` in total. Nothing was fetched; the run waits "
        "for a person.",
        causes=("a join of many large results", "a payload that occurs many times in one input"),
        mend=(
            (
                "If the process has the memory for it, set `SUREFOOT_BLOB_STEP_MAX_BYTES` higher, "
                "then `surefoot runs retry`."
            ),
            "Hand on where the data is (a URL, a key) instead of the data.",
        ),
        codes=("blob_too_large",),
    ),
    Page(
        number="SF4101",
        title="No such run",
        means="No run of this agent has this id, or its start has not been processed yet.",
        causes=("a mistyped id or agent", "the run expired", "another SUREFOOT_APP or cluster"),
        mend=("See what there is: `surefoot runs list AGENT`",),
        codes=("unknown_run",),
    ),
    Page(
        number="SF4061",
        title="An abandoned attempt does not end",
        means="The run was rewound or moved while a step was running, and that attempt has "
        "not ended: a thread cannot be stopped. After 30 s the step starts again beside "
        "it; whatever the abandoned attempt returns is ignored.",
        causes=(
            "a `def` step waits for something without a time limit",
            "an `async def` step swallows asyncio.CancelledError",
        ),
        mend=(
            "Give what the step waits for a time limit, and the step `timeout=`",
            "The thread goes with its worker: restart that",
        ),
        codes=("attempt_abandoned",),
    ),
    Page(
        number="SF4062",
        title="Too many attempts do not end",
        means="Attempts that were abandoned or timed out hold all threads that the worker "
        "allows. The run waits for a person.",
        causes=("a `def` step waits for something without a time limit",),
        mend=(
            "Give what the step waits for a time limit",
            "Restart the worker, then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("step_hangs",),
    ),
    Page(
        number="SF4102",
        title="The run is over",
        means="The command came after the run had ended, and did nothing.",
        causes=("it completed, failed or was cancelled in the meantime",),
        mend=(
            "Look how it ended: `surefoot runs show AGENT RUN_ID`",
            "Go back into it: `surefoot runs rewind AGENT RUN_ID --to SEQ`",
        ),
        codes=("too_late",),
    ),
    Page(
        number="SF4103",
        title="Not possible in this status",
        means="The command does not apply to the run's status. docs/state-machine.md has the "
        "table.",
        causes=("a resume of a run that is not paused, a retry of one that did not fail",),
        mend=(_SHOW,),
        codes=("not_possible",),
    ),
    Page(
        number="SF4104",
        title="The run was compensated",
        means="Its work was undone, so it cannot be retried.",
        causes=("a retry of a run that failed and was compensated",),
        mend=("Go back to before: `surefoot runs rewind AGENT RUN_ID --to SEQ`",),
        codes=("compensated",),
    ),
    Page(
        number="SF4105",
        title="No action in doubt",
        means="No call of this run needs resolving.",
        causes=("somebody has resolved it before", "the run waits for something else"),
        mend=(_SHOW, "`surefoot runs retry AGENT RUN_ID`"),
        codes=("nothing_in_doubt",),
    ),
    Page(
        number="SF4106",
        title="The run was rewound meanwhile",
        means="Somebody rewound the run between your look and your command.",
        causes=("two people, or a replay, work on one run",),
        mend=("Look again: `surefoot runs versions AGENT RUN_ID`", "Repeat the command."),
        codes=("stale_epoch",),
    ),
    Page(
        number="SF4107",
        title="No such version",
        means="A run can return to its state after one of its steps, while that is kept.",
        causes=("a number too high", "the events that tell it have expired"),
        mend=("See them: `surefoot runs versions AGENT RUN_ID`",),
        codes=("no_such_version",),
    ),
    Page(
        number="SF4108",
        title="Invalid choice",
        means="A resolve is one of happened, did_not or give_up.",
        causes=("another word in the request",),
        mend=("`surefoot runs resolve AGENT RUN_ID --did-not`",),
        codes=("bad_choice",),
    ),
    Page(
        number="SF4109",
        title="Outdated answer",
        means="The answer of an attempt, a timer or a child came after the run had moved on. "
        "It is ignored; this is how a second answer is kept out.",
        causes=("a worker that was slow or frozen woke up",),
        mend=("Nothing: it is told in the debug log only.",),
        codes=("stale",),
    ),
    Page(
        number="SF4110",
        title="Too many pending signals",
        means="The run has not taken earlier signals; this one was not kept.",
        causes=("the run never waits for that signal", "a sender in a loop"),
        mend=(_SHOW, "Take them in the step: `ctx.inbox(NAME)`"),
        codes=("mailbox_full",),
    ),
    Page(
        number="SF4111",
        title="The run does not ask this question",
        means="The question's id is not that of the run's present question.",
        causes=("the question is of an earlier version of the run", "a mistyped id"),
        mend=("Answer what it asks now: `surefoot runs approve AGENT RUN_ID --yes`",),
        codes=("unknown_question",),
    ),
    Page(
        number="SF4112",
        title="You may not answer",
        means="The approval names who may answer, and --by is not among them.",
        causes=("--by is missing or mistyped",),
        mend=("`surefoot runs approve AGENT RUN_ID --yes --by NAME`", _SHOW),
        codes=("not_allowed",),
    ),
    Page(
        number="SF4113",
        title="The approval has expired",
        means="Its time limit has passed; the run took its timeout branch.",
        causes=("expires= is short for people",),
        mend=('Give them longer: `Approve(..., expires="2d")`',),
        codes=("expired",),
    ),
    Page(
        number="SF4114",
        title="Already decided",
        means="The first answer holds; this one came second and differs.",
        causes=("two people answered",),
        mend=(_SHOW,),
        codes=("already_decided",),
    ),
    Page(
        number="SF4164",
        title="No such action",
        means="--repeat names a ctx.once that the run has not made since that version. "
        "Nothing was sent.",
        causes=("a mistyped name", "the action was done before that version"),
        mend=("Name one that the message lists, or leave --repeat out.",),
        codes=("no_such_action",),
    ),
    Page(
        number="SF4151",
        title="No worker answered in time",
        means="The command is on the run's topic and will be processed; no worker has done so yet.",
        causes=("no worker of the agent runs", "its partition is busy or being taken over"),
        mend=(
            _SHOW,
            "Start one: `surefoot worker agent.py`",
            "Repeat the command with the id that it printed: that is safe.",
        ),
    ),
    Page(
        number="SF4150",
        title="Invalid command",
        means="The id, the name, the note or another field of the command is invalid, as the "
        "message says. Nothing was sent.",
        causes=("an unknown or mistyped field", "an id with spaces"),
        mend=("See what it takes: `surefoot runs signal --help`, or GET /openapi.json",),
    ),
)
