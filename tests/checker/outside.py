"""The world outside: who asked, what was requested of it, and what authors' code did in it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from tests.checker.history import Request, Violation
from tests.checker.view import OUTBOX, Findings, Seen, View

#: agent, kind, run and id of a command
_Sent = tuple[str, str, str, str | None]
_ENDLESS_MS = 2**63


def acknowledged(view: View) -> Findings:
    """I1: what was acknowledged is in the log once, what was refused is not, anything else is once
    or not at all."""
    sure, unsure = Counter[_Sent](), Counter[_Sent]()
    for asked in view.history.asked:
        key = (asked.agent, asked.kind, asked.run_id, asked.id)
        sure[key] += asked.outcome == "ok"
        unsure[key] += asked.outcome == "unknown"
    there: dict[_Sent, list[str]] = defaultdict(list)
    for agent in view.agents:
        for command in view.of(agent, "commands"):
            if command.headers is None:  # else the engine wrote it
                key = (agent, command["kind"], command["run_id"], command["id"])
                there[key].append(command.name)
    for key in sure.keys() | unsure.keys():
        least, most = sure[key], sure[key] + unsure[key]
        if not least <= len(there[key]) <= most:
            told = f"{key[1]} of {key[2]} ({key[3]})"
            yield Violation("I1", f"{told} was acknowledged {least} times and is {there[key]}")


def effects(view: View) -> Findings:
    """I11: each effect of a committed step is in the outbox, and was acted upon once, by the very
    request that was committed; I12: and nothing else was requested."""
    asked = {key for agent in view.agents for e in view.events(agent) for key in e["effects"]}
    outbox: dict[str, Seen] = {}
    for command in view.of(OUTBOX, "commands"):
        if command["kind"] == "start":
            outbox.setdefault(command["run_id"], command)
    requests: dict[str, list[Request]] = defaultdict(list)
    for request in view.history.requests:
        requests[request.key].append(request)
    for key in sorted(asked - outbox.keys()):
        yield Violation("I11", f"{key} was asked for and is not in the outbox")
    for key in sorted(outbox.keys() - asked):
        yield Violation("I12", f"{outbox[key].name} ({key}) was asked for by no committed step")
    for key in sorted(requests.keys() - outbox.keys()):
        yield Violation("I12", f"{key} was requested and is not in the outbox")
    for key, command in outbox.items():
        yield from _effect(view, key, command, requests[key])


def _effect(view: View, key: str, command: Seen, requests: list[Request]) -> Findings:
    wanted: dict[str, Any] = json.loads(command["payload"])
    for request in requests:
        same = (request.method, request.url) == (wanted["method"], wanted["url"])
        if not same or request.body != wanted["body"].encode():
            told = f"{request.method} {request.url} {request.body!r}"
            yield Violation("I11", f"{key} was requested as {told}, unlike {command.name}")
    applied = sum(request.applied for request in requests)
    if applied > 1:
        yield Violation("I11", f"{key} ({command.name}) was acted upon {applied} times")
    events = view.runs(OUTBOX).get(key, [])
    delivered = any(event["type"] == "run.completed" for event in events)
    given_up = bool(events) and events[-1]["status"] in ("failed", "cancelled")
    if applied == 0 and (delivered or (view.history.at_rest and not given_up)):
        yield Violation("I11", f"{key} ({command.name}) was never acted upon")


def once(view: View) -> Findings:
    """once: what happens once has happened once, in whichever epoch, unless a person has said that
    it did not."""
    again: Counter[tuple[str, int]] = Counter()
    for agent in view.agents:
        for event in view.events(agent):
            if event["type"] == "run.resolved" and event["name"] == "did_not":
                again[event["run_id"], event["seq"]] += 1
    done = Counter(
        (act.run_id, act.seq, act.slot) for act in view.history.acts if act.kind == "once"
    )
    for (run_id, seq, slot), times in done.items():
        if times > 1 + again[run_id, seq]:
            told = f"{slot} of step {seq} of {run_id}"
            yield Violation("once", f"{told} was done {times} times")


def calls(view: View) -> Findings:
    """call: a body that began after a call of its step was recorded does not make it again, and one
    that began after its step was committed makes none."""
    if view.history.zombies:
        return
    recorded = _recorded(view)
    done = {result.step: result for agent in view.agents for result in view.results(agent)}
    for act in view.history.acts:
        if act.kind != "call" or act.began_ms is None:
            continue
        told = f"{act.slot} of step {act.seq} of {act.run_id}"
        for since_ms, until_ms, name in recorded[act.run_id, act.epoch, act.seq, act.slot]:
            if since_ms < act.began_ms < until_ms:
                yield Violation("call", f"{told} was made again; it is recorded in {name}")
        result = done.get((act.run_id, act.epoch, act.seq))
        if result is not None and result.record.timestamp_ms < act.began_ms:
            yield Violation("call", f"{told} was made by a body that began after {result.name}")


def _recorded(view: View) -> dict[tuple[str, int, int, str], list[tuple[int, int, str]]]:
    """From when to when a call was on record, and where."""
    found: dict[tuple[str, int, int, str], list[tuple[int, int, str]]] = defaultdict(list)
    for agent in view.agents:
        by_key: dict[tuple[int, bytes | None], list[Seen]] = defaultdict(list)
        for entry in view.state(agent, "Entry"):
            by_key[entry.record.partition, entry.record.key].append(entry)
        for entries in by_key.values():
            ends = [entry.record.timestamp_ms for entry in entries[1:]]
            for entry, end_ms in zip(entries, [*ends, _ENDLESS_MS], strict=True):
                if entry.fields and entry["kind"] == "call":
                    slot = entry["slot"].removeprefix("c:")
                    key = (entry["run_id"], entry["epoch"], entry["seq"], slot)
                    found[key].append((entry.record.timestamp_ms, end_ms, entry.name))
    return found
