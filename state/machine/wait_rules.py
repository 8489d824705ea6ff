"""What ends a wait, and with which payload: signals, answers, child runs. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from surefoot.schemas.payload import BadPayload, Unserialisable, parse_json, strict_json
from surefoot.state.machine.model import (
    Branch,
    CommandRecord,
    Entries,
    Entry,
    Failure,
    Parent,
    Run,
    WaitState,
)

#: longest run_id; a longer one of a child is shortened to a digest
_RUN_ID_MAX = 256

#: name of the signal that tells a run that another run has ended
ENDED = "ended"

#: (step, payload) -> why the step cannot take it, or None
Accepts = Callable[[str, bytes], str | None]


def anything(step: str, payload: bytes) -> None:
    """Accept any payload."""
    del step, payload


def signals(entries: Entries) -> list[Entry]:
    """Return the signals that nothing has consumed yet, in order of arrival."""
    return [entry for entry in entries.values() if entry.kind == "signal"]


def refused_by(wait: WaitState, name: str | None, payload: bytes, accepts: Accepts) -> str | None:
    """Return why a signal with the right name cannot end the wait, or None."""
    if name not in wait.names or wait.then is None:
        return None
    if wait.mode == "one":
        return accepts(wait.then, payload)
    try:
        strict_json([{"payload": parse_json(payload)}])
    except (BadPayload, Unserialisable) as error:
        return str(error)
    return None


def matched(wait: WaitState, entries: Entries) -> list[Entry] | None:
    """Return the signals that end the wait, or None if some are missing."""
    found: list[Entry] = []
    for entry in signals(entries):
        if entry.name not in wait.names:
            continue
        if wait.mode == "all" and any(entry.name == other.name for other in found):
            continue
        found.append(entry)
        if len(found) == wait.need:
            return found
    return None


def signals_payload(wait: WaitState, found: list[Entry]) -> bytes:
    """Return the input of the next step: the one signal's payload, or a list of Signal."""
    if wait.mode == "one":
        return found[0].value or b"null"
    return strict_json(
        [
            {
                "id": entry.id,
                "name": entry.name,
                "payload": parse_json(entry.value or b"null"),
                "by": entry.by,
                "at_ms": entry.at_ms,
            }
            for entry in found
        ]
    )


def question(run: Run, about: bytes) -> str:
    """Return the id of the question whether `about` may be done.

    Another step, another epoch or another subject gives another question.
    """
    parts = (run.agent.encode(), run.run_id.encode(), b"%d" % run.epoch, b"%d" % run.seq, about)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


# Children -----------------------------------------------------------------------------------


def child_id(run_id: str, fork: int, branch: int) -> str:
    """Return the run_id of a child: a function of its parent, the fork and the branch."""
    made = f"{run_id}~{fork}~{branch}"
    if len(made) <= _RUN_ID_MAX:
        return made
    return f"{hashlib.sha256(made.encode()).hexdigest()[:40]}~{fork}~{branch}"


def slot_of(branch: int) -> str:
    return f"b:{branch}"


def unfinished(wait: WaitState, entries: Entries) -> list[int]:
    """Return the branches that have not reported their end, in order."""
    return [index for index in range(len(wait.branches)) if slot_of(index) not in entries]


def branches_in_progress(wait: WaitState, entries: Entries) -> list[int]:
    """Return the branches in progress: as many unfinished ones as may run at the same time.

    A branch that has failed the wait makes no room for another.
    """
    left = unfinished(wait, entries)
    if not wait.limit:
        return left
    room = wait.limit
    if wait.mode != "collect":
        room -= sum(e.kind == "branch" and e.failure is not None for e in entries.values())
    return left[: max(room, 0)]


def child_start(run: Run, wait: WaitState, index: int) -> CommandRecord:
    branch: Branch = wait.branches[index]
    return CommandRecord(
        agent=branch.agent,
        run_id=child_id(run.run_id, wait.fork, index),
        kind="start",
        step=branch.step,
        payload=branch.payload,
        parent=Parent(agent=run.agent, run_id=run.run_id, fork=wait.fork, branch=index),
        traceparent=run.traceparent,
        tracestate=run.tracestate,
        baggage=run.baggage,
    )


def cancel_children(run: Run, entries: Entries) -> Iterator[CommandRecord]:
    """Yield commands that cancel the children in progress."""
    if run.wait is None or not run.wait.fork:
        return
    for index in branches_in_progress(run.wait, entries):
        child = child_id(run.run_id, run.wait.fork, index)
        agent = run.wait.branches[index].agent
        yield CommandRecord(agent=agent, run_id=child, kind="cancel", id="parent")


def end_signal(run: Run, parent: Parent, failure: Failure | None) -> CommandRecord:
    """Return the signal of this run's end, for a run that does not wait for it."""
    told = {
        "number": parent.branch,
        "run_id": run.run_id,
        "failure": failure.code if failure is not None else None,
    }
    return CommandRecord(
        agent=parent.agent,
        run_id=parent.run_id,
        kind="signal",
        id=f"{ENDED}~{parent.branch}",
        name=ENDED,
        payload=strict_json(told),
    )


def failed_branch(wait: WaitState, entries: Entries) -> Failure | None:
    """Return the failure that ends the wait, or None."""
    if wait.mode == "collect":
        return None
    for index in range(len(wait.branches)):
        entry = entries.get(slot_of(index))
        if entry is not None and entry.failure is not None:
            branch = wait.branches[index]
            return Failure(
                code="branch_failed",
                message=f"branch {index} ({branch.agent}{'.' + branch.step if branch.step else ''})"
                f": {entry.failure.code}: {entry.failure.message}",
                kind=entry.failure.kind,
                step=branch.step,
                frames=entry.failure.frames,
            )
    return None


def results_payload(wait: WaitState, entries: Entries) -> bytes:
    """Return the input of the next step, in the order of the branches."""
    told = [entries[slot_of(index)] for index in range(len(wait.branches))]
    if wait.mode == "one":
        return told[0].value or b"null"
    if wait.mode == "join":
        return b"[%s]" % b",".join(entry.value or b"null" for entry in told)
    return b"[%s]" % b",".join(_outcome(entry) for entry in told)


def _outcome(entry: Entry) -> bytes:
    if entry.failure is None:
        return b'{"ok":true,"result":%s,"failure":null}' % (entry.value or b"null")
    why = strict_json({"code": entry.failure.code, "message": entry.failure.message})
    return b'{"ok":false,"result":null,"failure":%s}' % why
