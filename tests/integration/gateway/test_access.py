"""Accounts through the real command line, on a real broker: tokens, roles, scope, revocation and
the audit trail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cli.test_cli_end_to_end import ROOT, Cli, until_taken
from tests.support.eventually import until_sync

#: answers that are not final on a slow machine
SLOW = {("start", 503), ("approve", 202), ("approve", 503)}
OPS = str(ROOT / "tests" / "support" / "operable_agent.py")


def answered(post: Callable[[], httpx.Response]) -> int:
    """The status of what is sent again until its run has answered."""

    def status() -> int | None:
        found = post().status_code
        return None if ("approve", found) in SLOW else found

    found = until_sync(status, what="an answer")
    assert found is not None
    return found


@pytest.fixture
def cli(bootstrap: str, app: str, tmp_path: Path) -> Iterator[Cli]:
    env = {
        "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap,
        "SUREFOOT_APP": app,
        "SUREFOOT_PARTITIONS": "2",
        "SUREFOOT_GATEWAY_PORT": "0",
        "SUREFOOT_AUTH": "tokens",
    }
    made = Cli(env, tmp_path)
    yield made
    made.close()


def test_an_account_does_what_its_role_allows_until_it_is_revoked(cli: Cli) -> None:
    def token(name: str, *options: str) -> dict[str, str]:
        made = cli.here("tokens", "create", name, *options)
        assert made.returncode == 0, made.stderr
        return {"Authorization": f"Bearer {made.stdout.strip()}"}

    ann = token("ann", "--role", "approver")
    bob = token("bob", "--role", "approver")
    eve = token("eve", "--role", "admin", "--agents", "other-*", "--expires", "1h")
    oli = token("oli", "--role", "operator")
    again = cli.here("tokens", "create", "ann", "--role", "admin")
    assert (again.returncode, "SF1083" in again.stderr) == (2, True)

    service = cli.start("serve", OPS)
    [ready] = service.wait_for("gateway_ready")
    with httpx.Client(base_url=ready["url"], timeout=90) as http:
        assert http.get("/runs/ops").status_code == 401
        start = {"payload": {"do": "ask", "by": ["ann"]}, "run_id": "r1"}
        assert http.post("/runs/ops", json=start, headers=ann).status_code == 403
        until_taken(lambda: http.post("/runs/ops", json=start, headers=oli))
        assert http.get("/runs/ops/r1", headers=eve).status_code == 404

        def question() -> str | None:
            run = http.get("/runs/ops/r1", headers=ann)
            return run.json()["wait"]["question"] if run.json().get("wait") else None

        said = {"question": until_sync(question, what="the question"), "approved": True}
        approve = "/runs/ops/r1/approve"
        for who, body, status in (
            (oli, said, 403),  # its role does not allow it
            (bob, said, 403),  # the run asks somebody else
            (bob, {**said, "by": "ann"}, 403),
            (ann, said, 200),
        ):
            assert answered(partial(http.post, approve, json=body, headers=who)) == status

        with http.stream("GET", "/events", headers=ann) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("id: ")
            assert cli.here("tokens", "revoke", "ann").returncode == 0
            assert [*lines]  # it ends
        assert http.get("/runs/ops", headers=ann).status_code == 401
        assert http.get("/runs/ops", headers=bob).status_code == 200

    def audit(*options: str) -> list[dict[str, Any]]:
        told = cli.here("audit", "--json", *options)
        return [json.loads(line) for line in told.stdout.splitlines()]

    def told(*options: str) -> list[tuple[str, str, int]]:
        """Each once, without those that the log was too slow for."""
        found = [(each["who"], each["action"], each["status"]) for each in audit(*options)]
        return [*dict.fromkeys(each for each in found if each[1:] not in SLOW)]

    assert told("--run", "r1") == [
        ("oli", "start", 202),
        ("eve", "read", 404),
        ("oli", "approve", 403),
        ("bob", "approve", 403),
        ("ann", "approve", 200),
    ]
    assert told("--refused")[:2] == [(None, "read", 401), ("ann", "start", 403)]
    assert {each["who"] for each in audit("--who", "bob")} == {"bob"}
    made = [each for each in audit("--since", "1h") if each["action"].startswith("tokens")]
    assert [each["note"].partition(":")[0] for each in made] == ["ann", "bob", "eve", "oli", "ann"]
    listed = [json.loads(line) for line in cli.here("tokens", "list", "--json").stdout.splitlines()]
    assert [(each["name"], each["role"], each["agents"]) for each in listed] == [
        ("bob", "approver", ["*"]),
        ("eve", "admin", ["other-*"]),
        ("oli", "operator", ["*"]),
    ]
    assert not any("digest" in each for each in listed)
    secrets = [each["Authorization"].split()[1] for each in (ann, bob, eve, oli)]
    assert not any(secret in service.said() for secret in secrets)
