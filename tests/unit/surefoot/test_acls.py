"""`surefoot acls plan`: what it prints. That it suffices is seen on a secured broker."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from surefoot.cli import app as surefoot
from surefoot.infra.runtime.loader import load_agents
from surefoot.state.inspect.rights import PROCESS_KINDS, rights_of
from tests.generate.rights_page import PAGE, page

AGENT = """
from surefoot import Agent, Context, Done

shop = Agent("shop")

@shop.step
async def sell(ctx: Context, item: str) -> Done:
    return Done(item)
"""
LISTENS = """
@shop.on_event(topic="orders")
def on_order(event: str) -> str:
    return event

shop.subscribe("crm", url="https://crm.example/hooks")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.py"
    path.write_text(AGENT)
    return path


def planned(file: Path, *options: str) -> str:
    env = {"SUREFOOT_APP": "acme", "SUREFOOT_BOOTSTRAP_SERVERS": "kafka:9093"}
    done = CliRunner().invoke(surefoot, ["acls", "plan", str(file), *options], env=env)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_each_kind_of_process_has_a_principal_of_its_own(file):
    lines = planned(file).splitlines()
    principals = [line.split("'")[1] for line in lines]
    assert list(dict.fromkeys(principals)) == [f"User:acme-{role}" for role in PROCESS_KINDS]


def test_a_command_of_kafka_acls(file):
    before = "kafka-acls --bootstrap-server kafka:9093 --add --allow-principal 'User:ann' "
    prefixed = "--resource-pattern-type prefixed"
    lines = planned(file, "--process", "archive", "--principal", "User:ann").splitlines()
    assert lines == [
        f"{before}--operation Describe --operation DescribeConfigs --topic acme. {prefixed}",
        f"{before}--operation Read --topic acme.shop.events",
        f"{before}--operation Read --group acme.shop._archive",
    ]


def test_what_a_trigger_needs_follows_from_what_it_listens_to(file):
    assert "_triggers" not in planned(file, "--process", "trigger")
    file = file.with_name("listening.py")
    file.write_text(AGENT + LISTENS)
    needed = planned(file, "--process", "trigger")
    assert "--operation Read --topic orders\n" in needed
    assert "--operation Read --group acme.shop._triggers.orders\n" in needed
    assert "--transactional-id acme.shop._hooks.crm. --resource-pattern-type prefixed" in needed


def test_a_user_of_strimzi(file):
    (user,) = yaml.safe_load_all(planned(file, "--process", "archive", "-o", "strimzi"))
    assert user["kind"] == "KafkaUser"
    assert user["metadata"] == {"name": "acme-archive"}
    assert user["spec"]["authorization"]["acls"] == [
        {
            "resource": {"type": "topic", "name": "acme.", "patternType": "prefix"},
            "operations": ["Describe", "DescribeConfigs"],
        },
        {
            "resource": {"type": "topic", "name": "acme.shop.events", "patternType": "literal"},
            "operations": ["Read"],
        },
        {
            "resource": {
                "type": "group",
                "name": "acme.shop._archive",
                "patternType": "literal",
            },
            "operations": ["Read"],
        },
    ]


def test_a_principal_that_kubernetes_cannot_name_is_refused(file):
    done = CliRunner().invoke(
        surefoot,
        ["acls", "plan", str(file), "-o", "strimzi", "--process", "worker"],
        env={"SUREFOOT_APP": "Acme"},
    )
    assert done.exit_code == 2
    assert "'Acme-worker'" in done.stderr
    assert "--principal" in done.stderr


def test_no_process_may_delete_or_alter_and_none_may_touch_what_is_not_of_the_app(file):
    file.write_text(AGENT + LISTENS)
    for kind in PROCESS_KINDS:
        for right in rights_of(kind, "acme", ["shop"], load_agents([file])):
            assert set(right.operations) <= {
                "Create",
                "Describe",
                "DescribeConfigs",
                "Read",
                "Write",
            }
            listens = kind in ("trigger", "doctor")
            reads = listens and right.name == "orders" and right.operations == ("Read",)
            asks = ("Describe",) if kind == "doctor" else ("DescribeConfigs",)
            of_brokers = (right.kind, right.operations) == ("cluster", asks)
            assert right.name.startswith("acme.") or reads or of_brokers
            if right.prefixed and {"Read", "Write"} & set(right.operations):
                assert right.kind == "transactional id" or right.name == "acme.outbox."
            if right.name in ("acme.access", "acme.audit") and "Write" in right.operations:
                assert (kind, right.name) in {
                    ("tokens", "acme.access"),
                    ("tokens", "acme.audit"),
                    ("gateway", "acme.audit"),
                    ("views", "acme.audit"),
                }


def test_the_page_of_rights_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m tests.generate.rights_page"
