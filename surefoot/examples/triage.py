"""Triage of GitHub issues in five steps, by plain rules.

    surefoot dev examples/triage.py

An issue that is opened, edited, reopened or transferred starts a run:

    classify -> find_duplicates -> propose_labels -> comment -> close_out

What a run tells the tracker (labels, a comment, sometimes that the issue is closed) goes through
the outbox: nothing is sent before the step that asked for it has committed.

TRIAGE_TRACKER_URL  where these requests go, such as a proxy that adds your token; by default to the
                    address in the delivery
TRIAGE_THINK_S      seconds that each step takes longer, as asking a model would; by default 0
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from surefoot import Agent, Context, Done, Next, Retry, Webhook

TRACKER_URL = os.environ.get("TRIAGE_TRACKER_URL", "").rstrip("/")
THINK_S = float(os.environ.get("TRIAGE_THINK_S", "0"))

#: actions that change what an issue says. All others are left alone: they say nothing new, and some
#: (labeled, closed) are the echo of what a run has done.
ACTIONS = frozenset({"opened", "edited", "reopened", "transferred"})

#: the first kind with a matching word wins
KINDS = {
    kind: re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    for kind, words in {
        "security": r"vulnerab\w*|cve-\d+|xss|injection|leaks? (?:a|the) (?:token|password|secret)",
        "bug": r"bug|crash\w*|error|exception|traceback|fails?|broken|wrong|regression|spelling",
        "documentation": r"docs?|documentation|readme|guide|example",
        "question": r"how (?:do|can|to)|why|what|question",
        "enhancement": r"feature|support|add|allow|wish|would be nice|improve\w*",
    }.items()
}
URGENT = re.compile(r"\b(urgent|asap|data loss|production|outage|blocker)\b", re.IGNORECASE)
DUPLICATE = re.compile(r"\b(?:duplicate of|same as|see also)\s+#(\d+)", re.IGNORECASE)

triage = Agent("triage")


@dataclass(frozen=True)
class Issue:
    """What a run needs to know of an issue."""

    repository: str
    number: int
    title: str
    body: str = ""
    labels: tuple[str, ...] = ()
    #: its address in the tracker's API; empty: there is nobody to tell
    api_url: str = ""


@dataclass(frozen=True)
class Classified:
    issue: Issue
    kind: str
    urgent: bool


@dataclass(frozen=True)
class Checked:
    issue: Issue
    kind: str
    urgent: bool
    #: number of the issue that this one repeats
    duplicate_of: int | None


@dataclass(frozen=True)
class Proposal:
    issue: Issue
    labels: tuple[str, ...]
    duplicate_of: int | None


@triage.webhook("github", event="issues")
def issue_changed(delivery: Webhook) -> Issue | None:
    """GitHub's `issues` event. Source: docs.github.com, "Webhook events and payloads"."""
    if delivery.json["action"] not in ACTIONS:
        return None
    issue = delivery.json["issue"]
    return Issue(
        repository=delivery.json["repository"]["full_name"],
        number=issue["number"],
        title=issue["title"],
        body=issue["body"] or "",
        labels=tuple(label["name"] for label in issue["labels"]),
        api_url=TRACKER_URL + urlsplit(issue["url"]).path if TRACKER_URL else issue["url"],
    )


@triage.step(start=True, retry=Retry(attempts=5), timeout="2m")
async def classify(ctx: Context, issue: Issue) -> Next:
    await asyncio.sleep(THINK_S)
    text = f"{issue.title}\n{issue.body}"
    kinds = (kind for kind, words in KINDS.items() if words.search(text))
    found = Classified(issue, next(kinds, "needs-triage"), bool(URGENT.search(text)))
    return Next(find_duplicates, found)


@triage.step
async def find_duplicates(ctx: Context, found: Classified) -> Next:
    await asyncio.sleep(THINK_S)
    named = DUPLICATE.search(found.issue.body)
    number = int(named[1]) if named else None
    if number == found.issue.number:
        number = None
    return Next(propose_labels, Checked(found.issue, found.kind, found.urgent, number))


@triage.step
async def propose_labels(ctx: Context, checked: Checked) -> Next:
    await asyncio.sleep(THINK_S)
    labels = {*checked.issue.labels, checked.kind}
    if checked.urgent:
        labels.add("priority: high")
    if checked.duplicate_of is not None:
        labels.add("duplicate")
    proposal = Proposal(checked.issue, tuple(sorted(labels)), checked.duplicate_of)
    if checked.issue.api_url:
        url = f"{checked.issue.api_url}/labels"
        ctx.outbox.http("PUT", url, json={"labels": list(proposal.labels)})
    return Next(comment, proposal)


@triage.step
async def comment(ctx: Context, proposal: Proposal) -> Next:
    await asyncio.sleep(THINK_S)
    lines = [f"Thank you. Labelled: {', '.join(proposal.labels)}."]
    if proposal.duplicate_of is not None:
        lines.append(f"This looks like #{proposal.duplicate_of}; please go on there.")
    if proposal.issue.api_url:
        url = f"{proposal.issue.api_url}/comments"
        ctx.outbox.http("POST", url, json={"body": "\n".join(lines)})
    return Next(close_out, proposal)


@triage.step
async def close_out(ctx: Context, proposal: Proposal) -> Done:
    """A duplicate is closed; every other issue stays open for people."""
    await asyncio.sleep(THINK_S)
    if proposal.duplicate_of is not None and proposal.issue.api_url:
        closed = {"state": "closed", "state_reason": "not_planned"}
        ctx.outbox.http("PATCH", proposal.issue.api_url, json=closed)
    return Done({"labels": list(proposal.labels), "duplicate_of": proposal.duplicate_of})
