"""Accounts through the real command line, on a real broker: tokens, roles, scope, revocation and
the audit trail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cli.test_cli_end_to_end import ROOT, Cli, until_taken
from tests.support.eventually import until_sync
from tests.support.free_ports import unused_port

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


def test_gateway_and_views_go_by_a_proxy_and_by_tokens_and_withhold_payloads(
    tmp_path: Path,
) -> None:
    """On the embedded log."""
    views_url = f"http://127.0.0.1:{unused_port()}"
    env = {
        "SUREFOOT_LOG": f"sqlite:///{tmp_path / 'runs.db'}",
        "SUREFOOT_PARTITIONS": "2",
        "SUREFOOT_GATEWAY_PORT": "0",
        "SUREFOOT_VIEWS_PORT": views_url.rpartition(":")[2],
        "SUREFOOT_VIEWS_URL": views_url,
        "SUREFOOT_AUTH": "proxy",
        "SUREFOOT_PROXY_NETWORKS": "127.0.0.1",
        "SUREFOOT_PROXY_ROLES": "ops=operator",
        "SUREFOOT_PAYLOAD_ROLES": "operator",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    cli = Cli(env, tmp_path)
    secret = cli.here("tokens", "create", "vic", "--role", "viewer").stdout.strip()
    served = Cli({**env, "SUREFOOT_TOKEN": secret}, tmp_path)
    try:
        url = served.start("serve", OPS).wait_for("gateway_ready")[0]["url"]
        served.start("views", OPS).wait_for("views_ready")
        oli = {"X-Forwarded-User": "oli", "X-Forwarded-Groups": "ops"}
        vic = {"Authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=url, timeout=90, trust_env=False) as http:
            start = {"payload": {"do": "ask", "by": ["ann"]}, "run_id": "r1"}
            assert http.post("/runs/ops", json=start).status_code == 401
            assert http.post("/runs/ops", json=start, headers=vic).status_code == 403
            until_taken(lambda: http.post("/runs/ops", json=start, headers=oli))

            def asks() -> bool:
                return bool(http.get("/runs/ops/r1", headers=vic).json().get("wait"))

            until_sync(asks, what="the question")
            shown, withheld = (http.get("/runs/ops/r1", headers=who).json() for who in (oli, vic))
            assert (shown["seq"], shown["wait"]) == (withheld["seq"], withheld["wait"])
            assert shown["carry"] != withheld["carry"] == "[withheld]"

            def counted() -> bool:
                answer = http.get("/views/ops/summary", headers=oli)
                return answer.status_code == 200 and bool(answer.json()["statuses"])

            until_sync(counted, what="the views, which the gateway signs in to")
            direct = f"{views_url}/views/ops/summary"
            assert [http.get(direct, headers=who).status_code for who in ({}, vic, oli)] == [
                401,
                200,
                200,
            ]
        login = subprocess.run(
            [sys.executable, "-m", "surefoot", "login", url],
            input=f"{secret}\n",
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert (login.returncode, "as vic, viewer" in login.stdout) == (0, True), login.stderr
    finally:
        served.close()
        cli.close()
