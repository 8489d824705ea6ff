"""What a topic must look like before anybody subscribes, and what is said when it does not."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import codec
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import NodeNotReadyError

from surefoot.infra.kafka_client.topics import Topics, problems, specs_for
from surefoot.infra.log.ports import Found
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.errors import Unavailable
from surefoot.state.names.topics import (
    AgentTopics,
    TopicSpec,
    dead_topic,
    fence_id,
    transactional_ids,
)

SETTINGS = load_settings(app="shop", partitions=6, record_max_bytes=1_000_000)
SPECS = {spec.name: spec for spec in specs_for(["triage"], SETTINGS)}


def as_asked(spec: TopicSpec, **config: str) -> Found:
    return Found(spec.partitions, 3, {**spec.config, **config})


def test_every_topic_of_an_agent_the_outbox_and_the_dead_letters() -> None:
    kinds = ("commands", "tasks", "state", "events", "stream")
    assert set(SPECS) == {
        "shop.dead",
        "shop.deliveries",
        *(f"shop.{agent}.{kind}" for agent in ("triage", "outbox") for kind in kinds),
    }


def test_the_outbox_is_asked_for_once_however_often_it_is_named() -> None:
    names = [spec.name for spec in specs_for(["outbox", "triage", "triage"], SETTINGS)]
    assert len(names) == len(set(names)) == 12


def test_only_the_state_is_compacted_and_all_are_copartitioned() -> None:
    for name, spec in SPECS.items():
        policy = "compact" if name.endswith(".state") else "delete"
        assert spec.config["cleanup.policy"] == policy
        assert spec.partitions == (1 if name == "shop.dead" else 6)
        # Event time never decides on what is retained.
        assert spec.config["message.timestamp.type"] == "CreateTime"


def test_a_dead_letter_has_room_for_any_record_and_why_it_is_dead() -> None:
    assert int(SPECS["shop.dead"].config["max.message.bytes"]) > 1_000_000 + 4_096 + 1_000


def test_what_strangers_can_fill_is_bounded_in_bytes() -> None:
    config = SPECS["shop.deliveries"].config
    # a segment is what goes at a time; the active one is not counted
    assert int(config["segment.bytes"]) * 2 <= int(config["retention.bytes"]) <= 64 * 1_048_576


def test_names_come_from_one_place() -> None:
    topics = AgentTopics("shop", "triage")
    assert topics.state == "shop.triage.state"
    assert topics.group == "shop.triage"
    assert fence_id(topics.group, 3) == "shop.triage.3"
    assert transactional_ids("shop.triage.pod-1.0") == (
        "shop.triage.pod-1.0.a",
        "shop.triage.pod-1.0.b",
    )
    assert dead_topic("shop") == "shop.dead"


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_a_topic_as_it_was_asked_for_is_fine(spec: TopicSpec) -> None:
    assert problems(spec, as_asked(spec), -1) == []
    assert problems(spec, as_asked(spec), 3) == []


STATE, TASKS = SPECS["shop.triage.state"], SPECS["shop.triage.tasks"]


@pytest.mark.parametrize(
    ("spec", "found", "replication", "told"),
    [
        (TASKS, None, -1, "does not exist; run `surefoot topics apply`"),
        (TASKS, Found(5, 3, TASKS.config), -1, "set SUREFOOT_PARTITIONS=5"),
        (TASKS, as_asked(TASKS), 2, "set SUREFOOT_REPLICATION_FACTOR=3"),
        (STATE, as_asked(STATE, **{"cleanup.policy": "delete"}), -1, "cleanup.policy=compact"),
        (STATE, as_asked(STATE, **{"cleanup.policy": "compact,delete"}), -1, "must be compact"),
        (TASKS, as_asked(TASKS, **{"retention.ms": "1000"}), -1, "retention.ms=604800000"),
        (TASKS, as_asked(TASKS, **{"max.message.bytes": "999999"}), -1, "max.message.bytes="),
        (
            TASKS,
            as_asked(TASKS, **{"message.timestamp.type": "LogAppendTime"}),
            -1,
            "message.timestamp.type=CreateTime",
        ),
        (TASKS, Found(6, 3, {}), -1, "retention.ms=None"),
    ],
)
def test_what_is_wrong_is_told_with_its_fix(
    spec: TopicSpec, found: Found | None, replication: int, told: str
) -> None:
    wrong = problems(spec, found, replication)
    assert any(told in line for line in wrong)
    assert all(spec.name in line for line in wrong)


@pytest.mark.parametrize(
    "config",
    [{"retention.ms": "-1"}, {"retention.ms": "9999999999999"}, {"max.message.bytes": "2000000"}],
)
def test_more_than_was_asked_for_is_fine(config: dict[str, Any]) -> None:
    assert problems(TASKS, as_asked(TASKS, **config), -1) == []


@pytest.mark.parametrize("packed", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_may_be_compressed_with_whatever_can_be_unpacked(packed: str) -> None:
    assert problems(STATE, as_asked(STATE, **{"compression.type": packed}), -1) == []


def test_a_topic_that_nobody_here_can_unpack_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "cramjam", None)
    (told,) = problems(STATE, as_asked(STATE, **{"compression.type": "zstd"}), -1)
    assert told.startswith("topic shop.triage.state has compression.type=zstd")
    assert "aiokafka[lz4,snappy,zstd]" in told


def test_everything_that_is_wrong_is_told_at_once() -> None:
    found = Found(5, 1, {**STATE.config, "cleanup.policy": "delete"})
    assert len(problems(STATE, found, 3)) == 3


def test_a_clean_up_policy_is_a_list_in_no_order() -> None:
    spec = TopicSpec(name="shop.audit", partitions=1, config={"cleanup.policy": "compact,delete"})
    for found in ("compact,delete", "delete,compact", "delete, compact"):
        assert problems(spec, Found(1, 1, {"cleanup.policy": found}), -1) == []
    (wrong,) = problems(spec, Found(1, 1, {"cleanup.policy": "delete"}), -1)
    assert "has cleanup.policy=delete, it must be compact,delete" in wrong


async def test_a_broker_that_does_not_answer_is_told_in_the_ports_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(_: AIOKafkaAdminClient) -> list[str]:
        raise NodeNotReadyError

    monkeypatch.setattr(AIOKafkaAdminClient, "list_topics", away)
    topics = Topics(load_settings(bootstrap_servers="127.0.0.1:1"))
    for question in (topics.names(), topics.partitions(["t"]), topics.verify([]), topics.apply([])):
        with pytest.raises(Unavailable, match="NodeNotReadyError"):
            await question
    await topics.__aexit__()
