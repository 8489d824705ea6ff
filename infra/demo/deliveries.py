"""Deliveries of GitHub's `issues` event: generated from a seed, signed, and sent to the gateway.

Some are sent twice, at once or a little later, as senders do when an answer is slow; some are
signed with a wrong secret.
Source: docs.github.com, "Webhook events and payloads" and "Validating webhook deliveries"
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import httpx

from surefoot.schemas.payload import JsonObject

#: repeated deliveries per 200, at least one; and number of forged ones
TWICE_OF_200 = 20
FORGED = 3
#: time between a delivery and its late copy, in seconds
LATE_COPY_S = 0.8
#: pause before an unanswered delivery is sent again, and how often it is
RETRY_S = 1.0
ATTEMPTS = 30

_SUBJECTS = (
    ("Spelling error in the README file", "It looks like you spelled 'commit' with two t's."),
    ("Crash when the config file is empty", "Traceback (most recent call last): … KeyError: 'x'"),
    ("Please add support for zstd", "It would be nice to have; gzip is slow for us."),
    ("How do I set the timeout?", None),
    ("Token shows up in the log", "Possible vulnerability: the access token is printed. Urgent!"),
    ("Wrong result after upgrade", "Regression since 2.1, blocker for our production outage."),
    ("日本語のファイル名で失敗する", "Fails with “naïve” names, too 🙂\r\n```\r\nerror: 3\r\n```"),
)
_ACTIONS = ("opened", "opened", "opened", "edited", "reopened")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDelivery:
    """One delivery to be sent."""

    id: str
    body: bytes
    forged: bool = False
    #: seconds until the same delivery is sent again; None: it is not
    again_s: float | None = None


@dataclass(slots=True)
class SentOutcome:
    """The gateway's answers."""

    sent: int = 0
    #: run ids of deliveries answered with 202
    accepted: set[str] = field(default_factory=set)
    duplicates: int = 0
    rejected: int = 0
    #: deliveries answered with anything else, or not at all
    strange: list[str] = field(default_factory=list)


def plan(count: int, random: Random) -> list[PlannedDelivery]:
    """Return `count` deliveries in the order of sending, with forged ones among them."""
    twice = set(random.sample(range(count), max(1, count * TWICE_OF_200 // 200)))
    made = [
        PlannedDelivery(
            id=_uuid(random),
            body=issue_event(number, random),
            again_s=random.choice((0.0, LATE_COPY_S)) if number - 1 in twice else None,
        )
        for number in range(1, count + 1)
    ]
    for _ in range(FORGED):
        forged = PlannedDelivery(id=_uuid(random), body=issue_event(count + 1, random), forged=True)
        made.insert(random.randrange(len(made) + 1), forged)
    return made


def issue_event(number: int, random: Random) -> bytes:
    """Return the body of one `issues` event; about every fifth names an issue it duplicates."""
    title, text = random.choice(_SUBJECTS)
    if number > 1 and random.random() < 0.2:  # noqa: PLR2004
        text = f"{text or ''}\nduplicate of #{random.randrange(1, number)}"
    site, repo = "https://api.github.com", "acme/widgets"
    address = f"{site}/repos/{repo}/issues/{number}"
    user = {"login": "octo-user", "id": 583231, "type": "User", "site_admin": False}
    issue: JsonObject = {
        "url": address,
        "repository_url": f"{site}/repos/{repo}",
        "labels_url": f"{address}/labels{{/name}}",
        "comments_url": f"{address}/comments",
        "events_url": f"{address}/events",
        "html_url": f"https://github.com/{repo}/issues/{number}",
        "id": 444_500_000 + number,
        "number": number,
        "title": title,
        "user": user,
        "labels": [{"id": 1, "name": "from-demo", "color": "d73a4a", "default": False}],
        "state": "open",
        "locked": False,
        "assignee": None,
        "assignees": [],
        "milestone": None,
        "comments": 0,
        "created_at": "2026-01-15T15:20:18Z",
        "updated_at": "2026-01-15T15:20:18Z",
        "closed_at": None,
        "author_association": "NONE",
        "body": text,
    }
    event = {
        "action": random.choice(_ACTIONS),
        "issue": issue,
        "repository": {"id": 186_853_002, "name": "widgets", "full_name": repo, "private": False},
        "sender": user,
    }
    return json.dumps(event, ensure_ascii=False).encode()


def signature(secret: str, body: bytes) -> str:
    """Return the value of X-Hub-Signature-256."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def _uuid(random: Random) -> str:
    return str(UUID(int=random.getrandbits(128), version=4))


class Sender:
    """Sends deliveries at an even pace and counts the answers."""

    def __init__(self, gateway_url: str, secret: str, outcome: SentOutcome) -> None:
        self.outcome = outcome
        self._url = f"{gateway_url}/webhooks/github"
        self._secret = secret

    async def send_all(self, deliveries: Sequence[PlannedDelivery], *, every_s: float) -> None:
        """Send all; returns when each has been answered, whatever the answer."""
        async with (
            httpx.AsyncClient(timeout=15.0, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            for delivery in deliveries:
                group.create_task(self._deliver(client, delivery))
                await asyncio.sleep(every_s)

    async def _deliver(self, client: httpx.AsyncClient, delivery: PlannedDelivery) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._post(client, delivery))
            if delivery.again_s is not None:
                await asyncio.sleep(delivery.again_s)
                group.create_task(self._post(client, delivery))

    async def _post(self, client: httpx.AsyncClient, delivery: PlannedDelivery) -> None:
        """Send it until it is answered; a 503 says that sending it again is safe."""
        secret = "a secret that nobody gave us" if delivery.forged else self._secret
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/demo",
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": delivery.id,
            "X-Hub-Signature-256": signature(secret, delivery.body),
        }
        told = "no answer"
        for _ in range(ATTEMPTS):
            try:
                response = await client.post(self._url, content=delivery.body, headers=headers)
            except httpx.TransportError as error:
                told = repr(error)
            else:
                told = str(response.status_code)
                if told != "503":
                    break
            await asyncio.sleep(RETRY_S)
        self._count(delivery, told)

    def _count(self, delivery: PlannedDelivery, answer: str) -> None:
        outcome, run_id = self.outcome, f"github-{delivery.id}"
        outcome.sent += 1
        if answer == "401" and delivery.forged:
            outcome.rejected += 1
        elif answer == "202" and not delivery.forged:
            outcome.duplicates += run_id in outcome.accepted
            outcome.accepted.add(run_id)
        else:
            outcome.strange.append(f"{delivery.id}: {answer}")
