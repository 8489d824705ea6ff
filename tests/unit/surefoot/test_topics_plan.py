"""`surefoot topics plan`: it prints what `topics apply` would create."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from surefoot.cli import app as surefoot
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.runtime.settings import load_settings

AGENT = """
from surefoot import Agent, Context, Done

shop = Agent("shop")

@shop.step
async def sell(ctx: Context, item: str) -> Done:
    return Done(item)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.py"
    path.write_text(AGENT)
    return path


def planned(file: Path, *options: str, **env: str) -> str:
    done = CliRunner().invoke(surefoot, ["topics", "plan", str(file), *options], env=env)
    assert done.exit_code == 0, done.output
    return done.stdout


def resources(file: Path, **env: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(planned(file, "-o", "strimzi", **env)))


def test_the_topics_of_strimzi_are_those_that_apply_creates(file):
    wanted = specs_for(["shop"], load_settings(auth="tokens", partitions=12))
    made = resources(file, SUREFOOT_AUTH="tokens", SUREFOOT_PARTITIONS="12")
    assert [topic["spec"] for topic in made] == [
        {"topicName": spec.name, "partitions": spec.partitions, "config": spec.config}
        for spec in wanted
    ]
    assert {(topic["apiVersion"], topic["kind"]) for topic in made} == {
        ("kafka.strimzi.io/v1", "KafkaTopic")
    }
    assert [topic["metadata"] for topic in made] == [{"name": spec.name} for spec in wanted]


def test_the_replication_factor_is_named_only_where_it_is_set(file):
    assert {topic["spec"]["replicas"] for topic in resources(file, SUREFOOT_REPLICATION_FACTOR="3")}
    assert not [topic for topic in resources(file) if "replicas" in topic["spec"]]


def test_a_name_that_kubernetes_refuses_is_replaced_by_one_that_no_other_topic_has(file):
    upper = resources(file, SUREFOOT_APP="Acme_1")[0]
    lower = resources(file, SUREFOOT_APP="acme_1")[0]
    assert upper["spec"]["topicName"] == "Acme_1.dead"
    assert upper["metadata"]["name"].startswith("acme-1-dead-")
    assert upper["metadata"]["name"] != lower["metadata"]["name"]


def test_the_commands_create_the_same_topics(file):
    env = {"SUREFOOT_BOOTSTRAP_SERVERS": "kafka:9093", "SUREFOOT_REPLICATION_FACTOR": "3"}
    commands = [shlex.split(line) for line in planned(file, **env).splitlines()]
    for command, spec in zip(commands, specs_for(["shop"], load_settings()), strict=True):
        assert command == [
            *("kafka-topics", "--bootstrap-server", "kafka:9093", "--create", "--if-not-exists"),
            *("--topic", spec.name, "--partitions", str(spec.partitions)),
            *("--replication-factor", "3"),
            *(word for item in spec.config.items() for word in ("--config", "=".join(item))),
        ]
