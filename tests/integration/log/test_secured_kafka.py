"""A cluster that lets not everybody in: what each command says of it, on a real secured broker."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from surefoot.cli import app as surefoot
from surefoot.consumers.deadlines import ConsumerDeadlines
from surefoot.consumers.partition.worker import Worker
from surefoot.consumers.topic_triggers.worker import EventWorker
from surefoot.infra.processes import trigger as trigger_main
from surefoot.infra.processes import worker as worker_main
from tests.support.eventually import until_sync
from tests.support.secured_broker import PASSWORD, USER, Secured, unsecured_token

AGENT = """
from surefoot import Agent, Context, Done

{name} = Agent("{name}")

@{name}.step
async def greet(ctx: Context, name: str) -> Done:
    return Done(name)
"""

LISTENS = """
@{name}.on_event(topic="{topic}")
def on_order(event: dict) -> str:
    return event["name"]
"""


def agent_file(folder: Path, name: str) -> str:
    path = folder / f"{name}.py"
    path.write_text(AGENT.format(name=name))
    return str(path)


def told(env: dict[str, str], *args: str, status: int = 69) -> str:
    """What a command says as it fails: its first line."""
    done = CliRunner().invoke(surefoot, args, env=env)
    assert done.exit_code == status, done.output
    assert PASSWORD not in done.output
    return done.stderr.splitlines()[0]


def with_tls(secured: Secured, **more: str) -> dict[str, str]:
    return {"SUREFOOT_BOOTSTRAP_SERVERS": secured.tls, "SUREFOOT_SECURITY_PROTOCOL": "SSL", **more}


@pytest.mark.parametrize(
    "command", [("topics", "verify", "FILE"), ("runs", "list", "greeter"), ("worker", "FILE")]
)
def test_a_wrong_password_is_told_as_such(secured, tmp_path, command):
    file = agent_file(tmp_path, "greeter")
    env = secured.signed_in() | {"SUREFOOT_SASL_PASSWORD": "wrong"}
    line = told(env, *(file if part == "FILE" else part for part in command))
    assert "SF3090" in line
    assert (
        f"Kafka at {secured.sasl} refuses the sign-in: authentication failed for '{USER}'" in line
    )


def test_a_mechanism_that_the_broker_does_not_take(secured, tmp_path):
    env = secured.signed_in() | {"SUREFOOT_SASL_MECHANISM": "SCRAM-SHA-512"}
    line = told(env, "topics", "verify", agent_file(tmp_path, "greeter"))
    assert "SF3090" in line
    assert "does not take SUREFOOT_SASL_MECHANISM=SCRAM-SHA-512" in line


def test_a_token_that_is_refused(secured, tmp_path):
    file, token = agent_file(tmp_path, "greeter"), tmp_path / "token"
    token.write_text(unsecured_token("bob", lasts_s=-60))
    line = told(secured.with_token(token), "topics", "verify", file)
    assert "SF3090" in line
    assert f"Kafka at {secured.bearer} refuses the token of SUREFOOT_SASL_TOKEN_FILE" in line


@pytest.mark.parametrize(
    ("listener", "protocol", "why"),
    [
        ("tls", "PLAINTEXT", "SUREFOOT_SECURITY_PROTOCOL is PLAINTEXT; set it to SSL"),
        ("tls", "SASL_PLAINTEXT", "is SASL_PLAINTEXT; set it to SASL_SSL"),
        ("plain", "SSL", "speaks no TLS, and SUREFOOT_SECURITY_PROTOCOL is SSL"),
        ("sasl", "SASL_SSL", "or set it to SASL_PLAINTEXT"),
        ("sasl", "PLAINTEXT", "it may want a sign-in (SUREFOOT_SECURITY_PROTOCOL=SASL_PLAINTEXT)"),
        ("plain", "SASL_PLAINTEXT", "asks for no sign-in"),
    ],
)
def test_a_protocol_that_is_not_the_listener_s(secured, tmp_path, listener, protocol, why):
    env = secured.signed_in() | {
        "SUREFOOT_BOOTSTRAP_SERVERS": getattr(secured, listener),
        "SUREFOOT_SECURITY_PROTOCOL": protocol,
    }
    if not protocol.startswith("SASL"):
        env |= {"SUREFOOT_SASL_USERNAME": "", "SUREFOOT_SASL_PASSWORD": ""}
    line = told(env, "topics", "verify", agent_file(tmp_path, "greeter"))
    assert "SF3092" in line
    assert why in line


def test_an_authority_that_is_not_trusted_and_one_that_is(secured, tmp_path):
    file = agent_file(tmp_path, "greeter")
    assert "authority that is not trusted here" in told(with_tls(secured), "topics", "verify", file)
    trusting = with_tls(secured, SUREFOOT_SSL_CAFILE=str(secured.authority))
    assert "SF3005" in told(trusting, "topics", "verify", file, status=2)


def test_a_client_certificate_that_is_asked_for(secured, tmp_path):
    file = agent_file(tmp_path, "greeter")
    env = with_tls(secured, SUREFOOT_SSL_CAFILE=str(secured.authority))
    env["SUREFOOT_BOOTSTRAP_SERVERS"] = secured.mutual
    line = told(env, "topics", "verify", file)
    assert "SF3091" in line
    assert "check SUREFOOT_SSL_CERTFILE" in line
    env |= dict.fromkeys(("SUREFOOT_SSL_CERTFILE", "SUREFOOT_SSL_KEYFILE"), str(secured.client))
    env["SUREFOOT_SSL_KEY_PASSWORD"] = PASSWORD
    assert "SF3005" in told(env, "topics", "verify", file, status=2)


def test_a_missing_right_is_named_with_whose_it_is_and_what_grants_it(secured, tmp_path):
    """Step by step, from no right to topics that are made and verified."""
    file, env = agent_file(tmp_path, "denied"), secured.signed_in()
    env["SUREFOOT_APP"] = "acl-app"
    line = told(env, "topics", "apply", file, status=77)
    assert "SF3093" in line
    assert f"User:{USER} lacks DescribeConfigs on cluster; grant it: kafka-acls" in line
    env["SUREFOOT_REPLICATION_FACTOR"] = "1"
    line = told(env, "topics", "apply", file, status=77)
    assert f"User:{USER} lacks Create on topic acl-app.denied." in line
    assert f"--allow-principal 'User:{USER}' --operation Create --topic acl-app." in line

    secured.allow("acl-app.", "CREATE", "DESCRIBE")
    denied = f"cannot verify the topics: User:{USER} lacks DescribeConfigs on topic acl-app."
    until_sync(
        lambda: denied in told(env, "topics", "apply", file, status=77), what="the first rights"
    )
    line = told(env, "runs", "start", "denied", "--payload", "1", status=77)
    assert f"User:{USER} lacks IdempotentWrite on cluster" in line

    secured.allow("acl-app.", "DESCRIBE_CONFIGS")

    def applied() -> bool:
        return CliRunner().invoke(surefoot, ["topics", "apply", file], env=env).exit_code == 0

    until_sync(applied, what="the right to see configs")


def test_topics_that_are_there_and_may_not_be_seen(secured, tmp_path):
    file, env = agent_file(tmp_path, "hidden"), secured.signed_in() | {"SUREFOOT_APP": "acl-hidden"}
    env["SUREFOOT_REPLICATION_FACTOR"] = "1"
    above = env | {
        "SUREFOOT_BOOTSTRAP_SERVERS": secured.plain,
        "SUREFOOT_SECURITY_PROTOCOL": "PLAINTEXT",
        "SUREFOOT_SASL_USERNAME": "",
        "SUREFOOT_SASL_PASSWORD": "",
    }
    done = CliRunner().invoke(surefoot, ["topics", "apply", file], env=above)
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(surefoot, ["topics", "verify", file], env=env)
    assert done.exit_code == 2
    assert "topic acl-hidden.dead does not exist" in done.stderr
    hidden = f"12 may, and not be shown: User:{USER} lacks Describe on topic acl-hidden."
    assert f"of those that do not exist, {hidden}" in done.stderr


@pytest.mark.parametrize(
    ("command", "name"),
    [("worker", "waiter.here.0.a"), ("trigger", "waiter._triggers.orders-trigger.start")],
)
def test_a_transactional_id_that_stays_denied_ends_the_process_and_is_named(
    secured, tmp_path, monkeypatch, command, name
):
    """Every other right is there."""
    soon = ConsumerDeadlines(denied_s=2.0)
    monkeypatch.setattr(worker_main, "Worker", partial(Worker, deadlines=soon))
    monkeypatch.setattr(trigger_main, "EventWorker", partial(EventWorker, deadlines=soon))
    app, topic = f"txn-{command}", f"orders-{command}"
    file = tmp_path / "waiter.py"
    file.write_text(AGENT.format(name="waiter") + LISTENS.format(name="waiter", topic=topic))
    env = secured.signed_in() | {"SUREFOOT_APP": app, "SUREFOOT_REPLICATION_FACTOR": "1"}
    env |= {"SUREFOOT_PARTITIONS": "1", "SUREFOOT_INSTANCE": "here"}
    secured.create(topic)
    for prefix in (f"{app}.", topic):
        secured.allow(prefix, "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE")
    secured.allow(f"{app}.", "READ", kind="GROUP")

    def applied() -> bool:
        done = CliRunner().invoke(surefoot, ["topics", "apply", str(file)], env=env)
        return done.exit_code == 0

    until_sync(applied, what="the rights on topics")
    done = CliRunner().invoke(surefoot, [command, str(file), "--slot", "0"], env=env)
    assert done.exit_code == 77, done.output
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("surefoot: SF3093: ")]
    missing = f"User:{USER} lacks Write on transactional id {app}.{name}; grant it: kafka-acls "
    assert missing in line
