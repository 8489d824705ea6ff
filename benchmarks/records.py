"""The records of a run, made by the engine's own core, for the bare loop to write. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from surefoot.schemas.payload import digest
from surefoot.state.machine.decide import decide
from surefoot.state.machine.decision import Rules
from surefoot.state.machine.model import Complete, GoTo, Record, StartRun, State, StepReturned, Work
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.encoding import Wire

AGENT = "bench"
STEP = "work"
#: size of the state that a run carries, as JSON
STATE_BYTES = 1024
#: any time of today's size, in epoch ms: a varint is as long as its number
_NOW_MS = 1_800_000_000_000
#: headers of today's size that a record has of its transaction; an event's id is made from them
_TRANSACTION = (("sf-txn", b"0" * 32), ("sf-src", b"surefoot.bench.tasks/0/12345"))


@dataclass(frozen=True, slots=True)
class Template:
    """One record of a step, but for its key, its partition and the headers of its transaction."""

    topic: str
    value: bytes
    #: those of CloudEvents, on an event
    headers: tuple[tuple[str, bytes], ...] = ()


def payload(left: int) -> bytes:
    """State with so many steps to go."""
    bare = json.dumps({"left": left, "pad": ""}, separators=(",", ":"))
    return bare.replace('""', '"' + "x" * (STATE_BYTES - len(bare)) + '"').encode()


def run_name(number: int) -> str:
    """Run ids of one length, so that a template is as long as the real record."""
    return f"run-{number:08}"


def chain(app: str, partitions: int, steps: int) -> list[list[Template]]:
    """The records that the engine commits for each step of one run, checkpoint first."""
    wire = Wire(app, AgentTopics(app, AGENT), partitions)
    start = StartRun(
        run_id=run_name(0),
        agent=AGENT,
        version=1,
        step=STEP,
        payload=payload(steps),
        input_digest=digest(payload(steps)),
    )
    rules = Rules(agent=AGENT, steps=frozenset({STEP}))
    decision = decide(rules, State(None), start, _NOW_MS)
    run = decision.run
    pending: tuple[Record, ...] = decision.records
    templates: list[list[Template]] = []
    for left in range(steps - 1, -1, -1):
        then = GoTo(step=STEP, payload=payload(left)) if left else Complete(result=b"null")
        work = Work(seq=steps - 1 - left, attempt=0)
        returned = StepReturned(work=work, then=then, started_ms=_NOW_MS, version=1)
        decision = decide(rules, State(run), returned, _NOW_MS)
        run = decision.run
        assert run is not None
        records = (*pending, *decision.records)
        outs = [wire.checkpoint(run, len(records) + 1, _TRANSACTION, 0)]
        outs += [wire.out(record, run.run_id, 0, _TRANSACTION, _NOW_MS) for record in records]
        templates.append([_template(out) for out in outs])
        pending = ()
    return templates


def _template(out: ProducerRecord) -> Template:
    return Template(out.topic, out.value or b"", tuple(out.headers)[len(_TRANSACTION) :])


def applied(app: str, partitions: int) -> Template:
    """The record that each of the engine's transactions ends with."""
    wire = Wire(app, AgentTopics(app, AGENT), partitions)
    out = wire.applied({"commands": 10_000, "tasks": 10_000}, 0, ())
    return Template(out.topic, out.value or b"")
