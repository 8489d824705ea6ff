"""An operator's commands: what is sent, and what is made of the answer of the run's owner.

The owner is the real state machine, behind ports in memory.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from surefoot.producers.commands.operations import REFUSALS, CommandReply, Operator, command
from surefoot.state.errors import StateError, Unavailable
from surefoot.state.machine import decide as machine
from surefoot.state.machine.commands import BODIES, WireCommand
from surefoot.state.machine.decide import ignored_start
from surefoot.state.machine.model import Complete, EventRecord, Failure, GoTo, Park, Status
from surefoot.state.machine.operations import DeliverSignal
from surefoot.state.records.encoding import start_of
from tests.support.fake_runs import AGENT, AWAY, World
from tests.support.run_driver import PLAIN, fork, wait_for

NOW = 1_700_000_100_000


class FakeClock:
    def now_ms(self) -> int:
        return NOW

    def monotonic_s(self) -> float:
        return 0.0

    def random(self) -> float:
        return 0.5

    def unique(self) -> str:
        return "018f0000000070008000000000000000"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def operator(world: World) -> Operator:
    return made(world)


def made(world: World, answer_s: float = 5.0) -> Operator:
    return Operator(commands=world, reader=world, clock=FakeClock(), send_s=2.0, answer_s=answer_s)


async def ask(
    operator: Operator, verb: str, said: dict[str, Any] | None = None, **more
) -> CommandReply:
    run_id = more.get("run_id", "r")
    asked = command(verb, said or {}, run_id=run_id, new_id="c1")
    return await operator.ask(AGENT, run_id, asked)


# Answers ------------------------------------------------------------------------------------


async def test_each_command_is_answered_with_the_resulting_run(
    world: World, operator: Operator
) -> None:
    world.started()
    told = []
    verbs = ["pause", "resume", "cancel"]
    for number, verb in enumerate(verbs):
        reply = await ask(operator, verb, {"id": f"c{number}", "by": "ann"})
        assert reply.run is not None
        told.append((reply.accepted, reply.status, reply.event, reply.run.status))
    assert told == [
        (True, 200, "run.paused", "paused"),
        (True, 200, "run.resumed", "running"),
        (True, 200, "run.cancelled", "cancelled"),
    ]
    assert [(sent.id, sent.by) for sent in world.sent] == [
        (f"c{number}", "ann") for number in range(3)
    ]


async def test_the_same_id_again_changes_nothing_and_is_accepted_again(
    world: World, operator: Operator
) -> None:
    life = world.started()
    world.lead("r", lambda: life.returned(wait_for("go")))
    first = await ask(operator, "signal", {"id": "s1", "name": "go", "payload": {"n": 1}})
    again = await ask(operator, "signal", {"id": "s1", "name": "go", "payload": {"n": 1}})
    assert (first.event, again.event) == ("signal.received", "command.repeated")
    assert first.accepted
    assert again.accepted
    assert first.run == again.run
    assert (world.run().step, json.loads(world.run().payload)) == ("b", {"n": 1})


async def test_a_signal_for_a_run_that_does_not_exist_yet_is_kept(
    world: World, operator: Operator
) -> None:
    reply = await ask(operator, "signal", {"name": "go"})
    assert (reply.accepted, reply.status, reply.run) == (True, 200, None)
    life = world.started()
    world.lead("r", lambda: life.returned(wait_for("go")))
    assert world.run().step == "b"


async def test_an_answer_to_the_question_of_a_run_decides_it(
    world: World, operator: Operator
) -> None:
    life = world.started()
    world.lead("r", lambda: life.returned(wait_for(about=b"pay", by=("ann",))))
    wait = world.run().wait
    assert wait is not None
    said = {"question": wait.question, "approved": False, "note": "too dear"}
    refused = await ask(operator, "approve", said | {"by": "bob", "id": "c1"})
    assert (refused.status, refused.code) == (403, "not_allowed")
    reply = await ask(operator, "approve", said | {"by": "ann", "id": "c2"})
    assert (reply.accepted, reply.event) == (True, "approval.decided")
    decision = json.loads(world.run().payload)
    assert (decision["approved"], decision["note"], decision["by"]) == (False, "too dear", "ann")
    again = await ask(operator, "approve", said | {"by": "ann", "id": "c3", "note": "no"})
    assert (again.status, again.event) == (200, "command.repeated")
    late = await ask(operator, "approve", said | {"by": "ann", "id": "c4", "approved": True})
    assert (late.status, late.code) == (409, "already_decided")
    assert "refused by ann" in (late.message or "")


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "retry", "resolve"])
async def test_a_run_that_there_is_not_is_a_404(operator: Operator, verb: str) -> None:
    reply = await ask(operator, verb, {"choice": "did_not"} if verb == "resolve" else {})
    assert (reply.accepted, reply.status, reply.code) == (False, 404, "unknown_run")
    assert reply.run is None


async def test_what_comes_too_late_is_refused_and_the_answer_tells_what_holds(
    world: World, operator: Operator
) -> None:
    life = world.started()
    world.lead("r", lambda: life.ends(b'"done"'))
    reply = await ask(operator, "cancel")
    assert (reply.status, reply.code, reply.event) == (409, "too_late", "command.refused")
    shown = reply.json()["run"]
    assert shown is not None
    assert shown["result"] == "done"
    assert world.run().status == "completed"


async def test_a_refusal_whose_event_has_no_reason_is_a_refusal(
    world: World, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    life, tell = world.started(), world._tell
    world.lead("r", lambda: life.ends(b'"done"'))
    monkeypatch.setattr(
        world, "_tell", lambda run_id, record: tell(run_id, record._replace(failure=None))
    )
    reply = await ask(operator, "cancel")
    assert (reply.status, reply.code, reply.message) == (409, "too_late", None)


async def test_retry_and_resolve_say_why_they_cannot(world: World, operator: Operator) -> None:
    life = world.started()
    assert (await ask(operator, "retry", {"id": "c1"})).event == "command.repeated"
    await ask(operator, "pause", {"id": "p"})
    paused = await ask(operator, "retry", {"id": "c0"})
    assert (paused.status, paused.code) == (409, "not_possible")
    assert paused.message == "retry is not possible: the run is paused"
    await ask(operator, "resume", {"id": "q"})
    world.lead("r", lambda: life.legal(Park(failure=Failure(code="x", message="y"))))
    nothing = await ask(operator, "resolve", {"id": "c2", "choice": "did_not"})
    assert (nothing.status, nothing.code) == (409, "nothing_in_doubt")
    assert (await ask(operator, "retry", {"id": "c3"})).event == "run.retried"
    life.journaled("c:charge#0", "intent", digest=b"d", value=b"null")
    world.lead("r", lambda: life.legal(Park(failure=Failure(code="x", message="y"))))
    resolved = await ask(
        operator, "resolve", {"id": "c4", "choice": "happened", "result": {"receipt": 7}}
    )
    assert resolved.event == "run.resolved"
    assert life.entries["c:charge#0"].value == b'{"receipt":7}'


async def test_no_answer_in_time_says_so_and_the_command_is_on_its_way(world: World) -> None:
    world.started()
    world.asleep = True
    reply = await ask(made(world, answer_s=0.05), "cancel")
    assert (reply.accepted, reply.status) == (None, 202)
    assert reply.json().keys() == {"id", "accepted", "hint"}
    assert len(world.sent) == 1
    assert not world.watching["r"]


async def test_an_event_of_another_command_or_of_a_signal_of_that_id_is_no_answer(
    world: World,
) -> None:
    life = world.started()
    await ask(made(world), "signal", {"id": "c1", "name": "never"})
    world.asleep = True
    asking = asyncio.create_task(ask(made(world, answer_s=0.2), "pause", {"id": "c1"}))
    while not world.watching["r"]:
        await asyncio.sleep(0)
    world.lead("r", life.ends)  # tells of the signal c1 that nobody has read
    assert "signal.unread" in life.told
    assert (await asking).accepted is None


async def test_a_log_that_is_away_is_told_before_anything_is_waited_for(world: World) -> None:
    world.away = AWAY
    with pytest.raises(Unavailable):
        await ask(made(world, answer_s=60), "pause")
    assert not world.watching["r"]


async def test_an_answer_counts_also_when_the_run_cannot_be_read(
    world: World, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> None:
        raise AWAY

    world.started()
    monkeypatch.setattr(world, "latest", away)
    reply = await ask(operator, "pause")
    assert (reply.accepted, reply.event, reply.run) == (True, "run.paused", None)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("unknown_run", 404),
        ("unknown_question", 404),
        ("no_such_version", 404),
        ("too_late", 409),
        ("already_decided", 409),
        ("not_possible", 409),
        ("stale_epoch", 409),
        ("expired", 409),
        ("compensated", 409),
        ("nothing_in_doubt", 409),
        ("not_allowed", 403),
        ("bad_payload", 422),
        ("bad_choice", 422),
        ("unknown_step", 422),
        ("mailbox_full", 429),
        ("a_code_of_a_later_version", 409),
    ],
)
def test_every_refusal_has_its_status(code: str, status: int) -> None:
    assert CommandReply(id="c", accepted=False, code=code).status == status


def test_every_refusal_of_the_machine_has_a_status() -> None:
    """By its source: the codes are the first arguments of what it raises."""
    sources = [path.read_text() for path in Path(machine.__file__).parent.glob("*.py")]
    codes = set(re.findall(r'\bInputRefused\(\s*"(\w+)"', "".join(sources))) - {"stale"}
    assert codes | {"no_such_action"} == REFUSALS.keys()  # that is the operator's own


# What may be said ---------------------------------------------------------------------------


@pytest.mark.parametrize("verb", BODIES)
@pytest.mark.parametrize(
    "command_id",
    ["", "*", None, 7, "a\0", "x" * 129, "x" * 10_000, "\uff41", "a b", "a\n", "-a", [], "é"],
)
def test_an_id_that_cannot_be_one_is_refused_and_never_replaced(
    verb: str, command_id: object
) -> None:
    with pytest.raises(ValueError, match=r"\bid\b"):
        command(verb, {"id": command_id, **_enough(verb)}, run_id="r", new_id="c1")


def _enough(verb: str) -> dict[str, Any]:
    enough: dict[str, dict[str, Any]] = {
        "signal": {"name": "go"},
        "approve": {"question": "q", "approved": True},
        "resolve": {"choice": "did_not"},
    }
    return enough.get(verb, {})


@pytest.mark.parametrize(
    ("verb", "said", "told"),
    [
        ("pause", [], "the body"),
        ("pause", None, "the body"),
        ("pause", {"reason": "x"}, "reason"),
        ("pause", {"by": ""}, "by"),
        ("pause", {"by": "a\x1b[31m"}, "by"),
        ("signal", {}, "name"),
        ("signal", {"name": ""}, "name"),
        ("signal", {"name": "x" * 257}, "name"),
        ("signal", {"name": "a\0"}, "name"),
        ("signal", {"name": None}, "name"),
        ("approve", {"question": "q"}, "approved"),
        ("approve", {"approved": True}, "question"),
        ("approve", {"question": "q", "approved": "yes"}, "approved"),
        ("approve", {"question": "q", "approved": 1}, "approved"),
        ("approve", {"question": "q", "approved": True, "note": "x" * 5000}, "note"),
        ("resolve", {}, "choice"),
        ("resolve", {"choice": "maybe"}, "choice"),
        ("resolve", {"choice": "did_not", "result": 1}, "result"),
    ],
)
def test_what_a_command_cannot_say_is_told_by_the_name_of_the_field(
    verb: str, said: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        command(verb, said, run_id="r", new_id="c1")


def test_what_a_command_says_is_exact() -> None:
    said = {"id": "A.b:c~d=e+f-1", "name": "gö", "payload": {"n": 2**64, "x": None}}
    signal = command("signal", said, run_id="r", new_id="c1")
    assert isinstance(signal, DeliverSignal)
    assert (signal.id, signal.run_id, signal.name) == ("A.b:c~d=e+f-1", "r", "gö")
    assert json.loads(signal.payload) == {"n": 2**64, "x": None}
    bare = command("signal", {"name": "go"}, run_id="r", new_id="c1")
    assert bare == DeliverSignal(id="c1", run_id="r", name="go", payload=b"null")


# Rewind -------------------------------------------------------------------------------------


async def rewound(world: World, seq: int, **more: Any) -> CommandReply:
    given: dict[str, Any] = {"command_id": "back", "emit": False} | more
    return await made(world).rewind(world, AGENT, "r", seq, **given)


async def test_a_run_is_sent_back_to_any_version_with_all_that_it_carried(world: World) -> None:
    life = world.started()
    world.lead("r", lambda: life.goes("b", b"2", messages=(b'"hi"', b'"ho"')))
    world.lead("r", lambda: life.goes("c", b"3", messages=(b'"more"',)))
    world.lead("r", life.ends)
    created_ms = world.run().created_ms
    reply = await rewound(world, 1, by="ann")
    assert (reply.event, reply.accepted) == ("run.rewound", True)
    assert (world.sent[-1].created_ms, world.sent[-1].by) == (created_ms, "ann")
    run = world.run()
    assert (run.status, run.seq, run.step, run.payload) == ("running", 1, "b", b"2")
    assert (run.epoch, run.emit) == (1, 0)
    assert run.memory is not None
    assert run.memory.thread == 2
    assert [life.entries[f"m:{n}"].value for n in range(2)] == [b'"hi"', b'"ho"']
    again = await rewound(world, 0, command_id="back2", emit=True)
    assert again.accepted
    assert (world.run().seq, world.run().epoch, world.run().emit) == (0, 2, 2)


async def test_a_version_is_that_of_the_current_line_of_history(world: World) -> None:
    life = world.started()
    world.lead("r", lambda: life.goes("b", b"2"))
    world.lead("r", lambda: life.goes("c", b"3"))
    await rewound(world, 1)
    world.lead("r", lambda: life.goes("a", b"4"))
    world.lead("r", lambda: life.goes("b", b"5"))
    line = (await world.lines(AGENT, ["r"], lambda *_: True))["r"]
    found = {v.seq: (v.step, v.payload, v.epoch) for v in line.versions.values()}
    assert found == {
        0: ("a", b"1", 0),
        1: ("b", b"2", 1),
        2: ("a", b"4", 1),
        3: ("b", b"5", 1),
    }
    await rewound(world, 2, command_id="again")
    assert (world.run().step, world.run().payload, world.run().epoch) == ("a", b"4", 2)
    # version 3 belongs to a line that is gone
    reply = await rewound(world, 3, command_id="third")
    assert (reply.status, reply.code) == (404, "no_such_version")


async def test_what_came_after_a_rewound_version_is_no_version_any_more(world: World) -> None:
    life = world.started()
    world.lead("r", lambda: life.goes("b", b"2"))
    world.lead("r", lambda: life.goes("c", b"3"))
    await rewound(world, 1)
    world.lead("r", life.ends)  # now it has two steps, and ended with the second
    reply = await rewound(world, 2, command_id="again")
    assert (reply.code, world.run().epoch) == ("no_such_version", 1)


async def test_the_same_rewind_again_is_one_rewind_also_when_the_run_is_over_by_then(
    world: World,
) -> None:
    life = world.started()
    await rewound(world, 0)
    world.lead("r", life.ends)
    life.maybe = life.run._replace(commands=())  # a receipt keeps none
    again = await rewound(world, 0)
    assert (again.accepted, again.event) == (True, "command.repeated")
    assert (world.run().status, world.run().epoch) == ("completed", 1)
    assert len(world.sent) == 1


async def test_a_run_that_has_moved_on_to_another_epoch_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.started()
    await rewound(world, 0)
    real = world.latest

    async def stale(agent: str, run_id: str) -> Any:
        view = await real(agent, run_id)
        assert view is not None
        return replace(view, epoch=0)

    monkeypatch.setattr(world, "latest", stale)
    reply = await rewound(world, 0, command_id="other")
    assert (reply.status, reply.code) == (409, "stale_epoch")
    assert world.run().epoch == 1


@pytest.mark.parametrize("seq", [2, 3, 10**9])
async def test_a_version_that_there_is_not_is_a_404_and_nothing_is_sent(
    world: World, seq: int
) -> None:
    life = world.started()
    world.lead("r", lambda: life.goes("b"))
    world.lead("r", life.ends)
    reply = await rewound(world, seq)
    assert (reply.status, reply.code) == (404, "no_such_version")
    assert "0 to 2" in (reply.message or "")
    assert world.sent == []


async def test_there_is_no_way_back_into_a_compensation(world: World) -> None:
    life = world.started()
    life.rules = replace(PLAIN, on_cancel="undo")
    await ask(made(world), "cancel")
    world.lead("r", lambda: life.goes("sorry"))
    world.lead("r", life.ends)
    assert world.run().status == "cancelled"
    for seq in range(1, world.run().seq + 1):
        assert (await rewound(world, seq)).code == "no_such_version"
    assert (await rewound(world, 0)).accepted
    assert (world.run().step, world.run().ending) == ("a", None)
    world.lead("r", lambda: life.goes("b"))  # on a new line, where nothing is compensated
    assert (await rewound(world, 1, command_id="again")).accepted


async def test_a_wait_begins_anew_with_as_much_time_as_it_had(world: World) -> None:
    life = world.started()
    world.lead("r", lambda: life.returned(wait_for("go", timeout_ms=60_000, on_timeout="c")))
    await ask(made(world), "signal", {"name": "go"})
    life.now_ms = NOW + 3_600_000
    reply = await rewound(world, 1)
    assert reply.accepted
    run = world.run()
    assert run.wait is not None
    assert (run.status, run.wait.since_ms, run.due_ms) == ("waiting", NOW, NOW + 60_000)


async def test_a_version_that_waits_for_children_cannot_be_gone_back_to(world: World) -> None:
    life = world.started()
    world.lead("r", lambda: life.returned(fork(2)))
    reply = await rewound(world, 1)
    assert (reply.status, reply.code) == (404, "no_such_version")
    assert "waits for children" in (reply.message or "")


async def test_a_thread_of_which_a_part_is_gone_is_an_error_and_nothing_is_sent(
    world: World,
) -> None:
    life = world.started()
    world.lead("r", lambda: life.goes("b", messages=(b"1", b"2")))
    del life.entries["m:1"]
    with pytest.raises(StateError, match="only 1 are left"):
        await rewound(world, 1)
    assert world.sent == []


async def test_a_run_id_of_which_nothing_is_known_is_a_404(world: World) -> None:
    assert (await rewound(world, 0)).code == "unknown_run"


async def test_a_run_id_that_is_used_again_has_no_versions_of_before(world: World) -> None:
    life = world.started()
    world.lead("r", lambda: life.goes("b"))
    world.lead("r", life.ends)
    life.maybe = None  # its receipt is tombstoned
    world.started()
    line = (await world.lines(AGENT, ["r"], lambda *_: True))["r"]
    assert list(line.versions) == [0]


# Parallel ---------------------------------------------------------------------------------------


def told(reply: CommandReply) -> tuple[str, ...]:
    """Which actions do not simply run again."""
    return tuple(map(str, reply.kept))


async def forked(
    world: World, seq: int, new_id: str = "new", repeat: Collection[str] = (), **more: Any
) -> CommandReply:
    one = made(world, **more)
    return await one.fork(world, AGENT, "r", seq, new_id=new_id, repeat=repeat)


async def test_a_fork_is_a_run_of_its_own_from_that_version(world: World) -> None:
    life = world.started()
    world.lead("r", lambda: life.goes("b", b"2", messages=(b'"hi"',), carry=b'"c"'))
    world.lead("r", lambda: life.goes("c", b"3"))
    reply = await forked(world, 1)
    assert (reply.accepted, reply.event) == (True, "run.started")
    new = world.run("new")
    assert (new.seq, new.step, new.payload, new.carry) == (0, "b", b"2", b'"c"')
    assert new.memory is not None
    assert new.memory.thread == 1
    assert world.life("new").entries["m:0"].value == b'"hi"'
    assert (world.run().seq, world.run().epoch) == (2, 0)


async def test_the_same_fork_again_is_the_same_run_and_another_one_of_that_name_is_refused(
    world: World,
) -> None:
    life = world.started()
    world.lead("r", lambda: life.goes("b", b"2"))
    await forked(world, 1)
    again = await forked(world, 1)
    assert (again.accepted, again.event) == (True, "command.repeated")
    other = await forked(world, 0)
    assert (other.status, other.code) == (409, "not_possible")
    assert len(world.sent) == 1


async def test_a_copy_that_the_flow_of_its_agent_skips_is_refused_with_that_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = world.started()
    world.lead("r", lambda: life.goes("b", b"2"))

    def skipped(command: WireCommand) -> None:
        failure = Failure(code="skipped", message="run x of its key is under way")
        for record in ignored_start(start_of(command, AGENT, 3, "a"), failure, 1):
            assert isinstance(record, EventRecord)
            world._tell(command.run_id, record._replace(run_id=command.run_id))

    monkeypatch.setattr(world, "_obey", skipped)
    reply = await forked(world, 1)
    assert (reply.status, reply.code) == (409, "not_possible")
    assert reply.message == "run x of its key is under way"


async def test_a_version_that_waits_cannot_be_forked(world: World) -> None:
    life = world.started()
    world.lead("r", lambda: life.returned(wait_for("go")))
    reply = await forked(world, 1)
    assert (reply.status, reply.code) == (409, "not_possible")
    assert "fork an earlier version" in (reply.message or "")
    assert world.sent == []


async def test_a_version_that_sleeps_is_forked_without_its_sleep(world: World) -> None:
    life = world.started()
    world.lead("r", lambda: life.returned(GoTo(step="b", payload=b"2", after_ms=10**9)))
    assert (await forked(world, 1)).accepted
    assert (world.run("new").status, world.run("new").due_ms) == ("running", None)


@pytest.mark.parametrize("new_id", ["", "*", "a b", "\0", "x" * 300, "\uff41"])
async def test_a_fork_cannot_have_a_name_that_no_run_can_have(world: World, new_id: str) -> None:
    world.started()
    with pytest.raises(ValueError, match="run_id must be"):
        await forked(world, 0, new_id)
    assert new_id not in world.watching


async def test_a_fork_that_nobody_answers_says_so(world: World) -> None:
    world.started()
    world.asleep = True
    reply = await forked(world, 0, answer_s=0.05)
    assert (reply.accepted, reply.status, reply.id) == (None, 202, "new")


@pytest.mark.parametrize("status", [status for status in get_args(Status) if status != "pending"])
async def test_a_run_of_any_status_can_be_sent_back(world: World, status: Status) -> None:
    life = world.started()
    failure = Failure(code="x", message="y")
    acts: dict[str, Any] = {
        "running": lambda: None,
        "waiting": lambda: life.returned(wait_for("go")),
        "attention": lambda: life.legal(Park(failure=failure)),
        "completed": lambda: life.returned(Complete(result=b"1")),
        "failed": life.raised,
    }
    if status in acts:
        world.lead("r", acts[status])
    else:
        await ask(made(world), "pause" if status == "paused" else "cancel")
    assert world.run().status == status
    assert (await rewound(world, 0)).accepted
    assert (world.run().status, world.run().seq, world.run().epoch) == ("running", 0, 1)


# Actions ------------------------------------------------------------------------------------


def paid(world: World) -> None:
    """Version 1 is behind a payment, a step that is in doubt behind that."""
    life = world.started()
    acted = {"digest": b"d", "action": True}
    world.lead("r", lambda: life.journaled("c:pay#0", value=b'"receipt"', **acted))
    world.lead("r", lambda: life.goes("b"))
    world.lead("r", lambda: life.journaled("c:ship#0", "intent", value=b"null", **acted))


async def test_a_rewind_tells_what_is_not_done_again_and_repeats_what_is_named(
    world: World,
) -> None:
    paid(world)
    reply = await rewound(world, 0)
    assert told(reply) == ("pay#0 of step 'a'", "ship#0 of step 'b', in doubt")
    assert reply.json()["kept"] == list(told(reply))
    assert [e.kind for e in world.life("r").entries.values()] == ["past", "past"]
    named = await rewound(world, 0, command_id="again", repeat=["pay"])
    assert told(named) == ("ship#0 of step 'b', in doubt",)
    assert world.sent[-1].repeat == ("pay",)
    assert [e.name for e in world.life("r").entries.values()] == ["b"]


async def test_a_fork_hands_on_what_was_done_since_its_version_as_done_by_that_run(
    world: World,
) -> None:
    paid(world)
    reply = await forked(world, 0, "copy", repeat=["ship"])
    assert told(reply) == ("pay#0 of step 'a'",)
    (entry,) = world.life("copy").entries.values()
    assert (entry.kind, entry.by, entry.name, entry.value) == ("past", "r", "a", None)
    assert told(await forked(world, 1, "later")) == ("ship#0 of step 'b', in doubt",)


async def test_an_action_that_was_not_done_cannot_be_repeated_and_nothing_is_sent(
    world: World,
) -> None:
    paid(world)
    replies = [await rewound(world, 1, repeat=["pay"]), await forked(world, 1, "n", repeat=["x"])]
    for reply in replies:
        assert (reply.status, reply.code) == (404, "no_such_action")
        assert "since version 1; it has done ship" in (reply.message or "")
    assert world.sent == []


async def test_any_name_is_taken_where_children_since_that_version_may_have_used_it(
    world: World,
) -> None:
    life = world.started()
    world.lead("r", lambda: life.returned(fork(1)))
    world.lead("r", lambda: life.child(0))
    world.lead("r", lambda: life.goes("c"))
    later = await rewound(world, 2, repeat=["pay"])  # behind the children
    assert (later.code, life.entries) == ("no_such_action", {})
    kept = ("actions of children and pooled steps, in doubt",)
    copy = await forked(world, 0, "copy", repeat=["pay"])
    back = await rewound(world, 0, command_id="2", repeat=["pay"])
    for reply, run_id in ((copy, "copy"), (back, "r")):
        assert (reply.accepted, told(reply)) == (True, kept)
        (entry,) = world.life(run_id).entries.values()
        assert (entry.slot, entry.seq, entry.value) == ("a:forks", 1, b'["pay"]')
