"""SF40, SF41: runs that stop, commands that are refused."""

from __future__ import annotations

from surefoot.state.errors.catalogue.page import Page

_SHOW = "See what it waits for and what to type: `surefoot runs show AGENT RUN_ID`"

RUNS: tuple[Page, ...] = (
    Page(
        number="SF4002",
        title="Old state could not be brought to this version",
        means="An @agent.upcast raised. The run waits for a person, as it was.",
        causes=("the upcast does not know this step or this payload",),
        mend=("Mend the upcast and deploy it, then: `surefoot runs retry AGENT RUN_ID`",),
        codes=("upcast_failed",),
    ),
    Page(
        number="SF4003",
        title="A check said no",
        means="An @agent.verify raised before the run went on. The run waits for a person.",
        causes=("the world has changed while the run waited, as the message tells",),
        mend=("Put it right, then: `surefoot runs retry AGENT RUN_ID`", _SHOW),
        codes=("verify_failed",),
    ),
    Page(
        number="SF4004",
        title="Nobody knows whether it happened",
        means="A ctx.once was begun and its worker died before it could tell. It is not repeated "
        "on a guess; the run waits for a person.",
        causes=("a worker was killed in the call", "the call raised, and has no probe"),
        mend=(
            "It happened: `surefoot runs resolve AGENT RUN_ID --happened RESULT`",
            "It did not: `surefoot runs resolve AGENT RUN_ID --did-not`",
            "For the next time, give the call a probe: docs/how-to/calls.md",
        ),
        codes=("once_in_doubt",),
    ),
    Page(
        number="SF4005",
        title="A repeated step made another call than before",
        means="An attempt found its recorded call with other arguments, so that the record cannot "
        "be given back. The run waits for a person.",
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
        title="Nothing came in time",
        means="A wait or an approval ended at its time limit and names no step for that.",
        causes=("nobody answered", "the signal was sent to another run or under another name"),
        mend=(
            "Say what happens then: `Wait(..., on_timeout=remind)`",
            "Try again: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("wait_timeout",),
    ),
    Page(
        number="SF4008",
        title="The run's budget is used up",
        means="It has used what it may use, and asks whether it is granted as much again.",
        causes=("the work is larger than planned", "the agent goes round in circles"),
        mend=("Answer: `surefoot runs approve AGENT RUN_ID --yes`", _SHOW),
        codes=("budget_spent",),
    ),
    Page(
        number="SF4009",
        title="No further budget was granted",
        means="Somebody said no, or nobody answered in time; the run failed.",
        causes=("the question was answered with --no, or not at all",),
        mend=("Let it go on: `surefoot runs retry AGENT RUN_ID`",),
        codes=("budget_denied",),
    ),
    Page(
        number="SF4010",
        title="The run was cancelled",
        means="Somebody, or the run's parent, cancelled it.",
        causes=("`surefoot runs cancel`", "its parent was cancelled, or another branch failed"),
        mend=("Go back to before: `surefoot runs rewind AGENT RUN_ID --to SEQ`",),
        codes=("cancelled",),
    ),
    Page(
        number="SF4011",
        title="A call in doubt was given up",
        means="Somebody resolved a ctx.once with --give-up, so that the run failed.",
        causes=("`surefoot runs resolve --give-up`",),
        mend=("Try again: `surefoot runs retry AGENT RUN_ID`",),
        codes=("given_up",),
    ),
    Page(
        number="SF4012",
        title="There is another run of this id",
        means="A child could not be started since a run of its name was there with another input.",
        causes=("somebody started a run with a child's id",),
        mend=("Leave ids with ~ to children.", _SHOW),
        codes=("run_exists",),
    ),
    Page(
        number="SF4013",
        title="A trigger's function raised",
        means="The author's function that makes a start payload of an event raised, or "
        "returned what cannot be stored. The event is among the dead letters; the "
        "others go on.",
        causes=("the event has a shape that the function does not expect",),
        mend=(("Look at the dead letter's message, mend the function, and send the event again."),),
        codes=("mapping_raised",),
    ),
    Page(
        number="SF4014",
        title="A large payload needs a store, and there is none here",
        means="The run's input or result is kept outside of the log, and this worker is told "
        "of no store. The run waits for a person.",
        causes=("SUREFOOT_BLOBS is set for some processes only",),
        mend=("Set `SUREFOOT_BLOBS` for every process, then `surefoot runs retry`.",),
        codes=("no_blob_store",),
    ),
    Page(
        number="SF4015",
        title="A large payload is gone",
        means="What the run's pointer names is not in the store. The run waits for a person, "
        "the others go on.",
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
        title="A large payload is not what it was",
        means="What is in the store has another checksum than the pointer says. It is not "
        "used; the run waits for a person.",
        causes=("somebody wrote to the store",),
        mend=(
            ("Bring the old content back, then `surefoot runs retry`; or `surefoot runs cancel`."),
        ),
        codes=("blob_corrupt",),
    ),
    Page(
        number="SF4017",
        title="Events are gone that were never read",
        means="A topic's retention has taken records that its trigger had not read. It goes "
        "on at the first one that is still there.",
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
        title="Commands are gone that were never read",
        means="The retention of an agent's commands topic has taken records that no worker had "
        "read. What was asked there is not done, and what runs wait for may have been among it.",
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
        title="The start was skipped",
        means="Another run of its key was under way, and the agent's flow has "
        'singleton="skip". There is no such run.',
        causes=("that is what the flow is for",),
        mend=("Start it again when the other one is over; see docs/how-to/flow-control.md.",),
        codes=("skipped",),
    ),
    Page(
        number="SF4086",
        title="The model does not answer this",
        means="The model refused (model_refused), or a filter of its provider held the question or "
        "the answer back (model_filtered). The run failed; what it had thought is in its thread.",
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
        means="The answer reached a limit before its end (model_cut_off), or the question is "
        "larger than the model, or the account, takes at once (model_request_too_large). Half an "
        "answer is none: the run failed, and waiting does not help.",
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
        title="The model's answer may be none",
        means="The model stopped for a reason that the adapter does not know "
        "(model_stop_unknown), or ended its turn without a word (model_said_nothing). It is not "
        "taken for an answer; the run waits for a person.",
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
        title="The provider's account has nothing left",
        means="The provider of the model takes no questions of this account: its quota or its "
        "credit is spent. The run failed; asking again does not help before that is mended.",
        causes=("no credit, or a limit on what may be spent", "the key of another account"),
        mend=(
            "Pay, or raise the limit, at the provider.",
            "Then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("model_quota_spent",),
    ),
    Page(
        number="SF4070",
        title="The store of large payloads refuses what the run needs",
        means="For ten minutes the store has answered nothing but no. What the step has come to is "
        "not kept: it runs again when the run is retried; its recorded calls are not made anew.",
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
        title="What a step is given from the store is too large",
        means="The large payloads that the step would be given, each as often as it occurs, are "
        "together over `SUREFOOT_BLOB_STEP_MAX_BYTES`. Nothing was fetched; the run waits for a "
        "person.",
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
        title="There is no such run",
        means="No run of this agent has this id, or its start is still on its way.",
        causes=("a mistyped id or agent", "the run expired", "another SUREFOOT_APP or cluster"),
        mend=("See what there is: `surefoot runs list AGENT`",),
        codes=("unknown_run",),
    ),
    Page(
        number="SF4061",
        title="An abandoned attempt does not end",
        means="The run was sent back or moved while a step of it was running, and that attempt has "
        "not ended: a thread cannot be stopped. After 30 s the step is begun again beside it; what "
        "the abandoned one returns counts for nothing.",
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
        title="Too many attempts of a step do not end",
        means="So many attempts that were given up or timed out still hold a thread of the worker "
        "that none is added. The run waits for a person.",
        causes=("a `def` step waits for something without a time limit",),
        mend=(
            "Give what the step waits for a time limit",
            "Restart the worker, then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("step_hangs",),
    ),
    Page(
        number="SF4102",
        title="The command comes too late",
        means="The run is over, so that nothing was done.",
        causes=("it completed, failed or was cancelled in the meantime",),
        mend=(
            "Look how it ended: `surefoot runs show AGENT RUN_ID`",
            "Go back into it: `surefoot runs rewind AGENT RUN_ID --to SEQ`",
        ),
        codes=("too_late",),
    ),
    Page(
        number="SF4103",
        title="The run cannot do this now",
        means="The command does not go with the run's status. docs/state-machine.md has the table.",
        causes=("a resume of a run that is not paused, a retry of one that did not fail",),
        mend=(_SHOW,),
        codes=("not_possible",),
    ),
    Page(
        number="SF4104",
        title="The run's compensation has run",
        means="What it had done was undone, so that it cannot just be tried again.",
        causes=("a retry of a run that failed and was compensated",),
        mend=("Go back to before: `surefoot runs rewind AGENT RUN_ID --to SEQ`",),
        codes=("compensated",),
    ),
    Page(
        number="SF4105",
        title="No call of this run is in doubt",
        means="There is nothing to resolve.",
        causes=("somebody has resolved it before", "the run waits for something else"),
        mend=(_SHOW, "`surefoot runs retry AGENT RUN_ID`"),
        codes=("nothing_in_doubt",),
    ),
    Page(
        number="SF4106",
        title="The run has been sent back meanwhile",
        means="Between looking and commanding, somebody rewound the run.",
        causes=("two people, or a replay, work on one run",),
        mend=("Look again: `surefoot runs versions AGENT RUN_ID`", "Repeat the command."),
        codes=("stale_epoch",),
    ),
    Page(
        number="SF4107",
        title="The run has no such version",
        means="It can be sent back to what it was after one of its steps, if that is still kept.",
        causes=("a number too high", "the events that tell it have expired"),
        mend=("See them: `surefoot runs versions AGENT RUN_ID`",),
        codes=("no_such_version",),
    ),
    Page(
        number="SF4108",
        title="What became of the call has to be said",
        means="A resolve says happened, did_not or give_up.",
        causes=("another word in the request",),
        mend=("`surefoot runs resolve AGENT RUN_ID --did-not`",),
        codes=("bad_choice",),
    ),
    Page(
        number="SF4109",
        title="The run has moved on",
        means="An answer of an attempt, a timer or a child came after the run had gone on without "
        "it. It does not count; this is how a second answer is kept out.",
        causes=("a worker that was slow or frozen woke up",),
        mend=("Nothing: it is told in the debug log only.",),
        codes=("stale",),
    ),
    Page(
        number="SF4110",
        title="Too many signals wait for this run",
        means="Nobody has taken those that came before; this one was not kept.",
        causes=("the run never waits for that signal", "a sender in a loop"),
        mend=(_SHOW, "Take them in the step: `ctx.inbox(NAME)`"),
        codes=("mailbox_full",),
    ),
    Page(
        number="SF4111",
        title="The run does not ask this question",
        means="The question's id is not the one that the run asks now.",
        causes=("the question is of an earlier version of the run", "a mistyped id"),
        mend=("Answer what it asks now: `surefoot runs approve AGENT RUN_ID --yes`",),
        codes=("unknown_question",),
    ),
    Page(
        number="SF4112",
        title="Somebody else has to answer",
        means="The approval names who may answer, and --by is not one of them.",
        causes=("--by is missing or mistyped",),
        mend=("`surefoot runs approve AGENT RUN_ID --yes --by NAME`", _SHOW),
        codes=("not_allowed",),
    ),
    Page(
        number="SF4113",
        title="The time to answer is over",
        means="The approval's limit has passed; the run goes another way.",
        causes=("expires= is short for people",),
        mend=('Give them longer: `Approve(..., expires="2d")`',),
        codes=("expired",),
    ),
    Page(
        number="SF4114",
        title="It has been decided before",
        means="The first answer holds; this one came second and said something else.",
        causes=("two people answered",),
        mend=(_SHOW,),
        codes=("already_decided",),
    ),
    Page(
        number="SF4164",
        title="The run has done no such action",
        means="--repeat names a call of ctx.once that the run has not made since that version. "
        "Nothing was sent.",
        causes=("a mistyped name", "the action was done before that version"),
        mend=("Name one that the message lists, or leave --repeat out.",),
        codes=("no_such_action",),
    ),
    Page(
        number="SF4151",
        title="No worker answered in time",
        means="The command is on the run's topic and will be taken; nobody has, so far.",
        causes=("no worker of the agent runs", "its partition is busy or being taken over"),
        mend=(
            _SHOW,
            "Start one: `surefoot worker agent.py`",
            "Repeat the command with the id that it printed: that is safe.",
        ),
    ),
    Page(
        number="SF4150",
        title="A command has fields that cannot be",
        means="The id, the name, the note or another field of the command is wrong, as the message "
        "says. Nothing was sent.",
        causes=("an unknown or mistyped field", "an id with spaces"),
        mend=("See what it takes: `surefoot runs signal --help`, or GET /openapi.json",),
    ),
)
