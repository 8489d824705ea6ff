"""Creates and verifies topics. Nothing subscribes to a topic before it is verified."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from surefoot.infra.kafka_client.batches import INSTALL_CODECS, unpacks
from surefoot.infra.kafka_client.clients import close_client
from surefoot.infra.kafka_client.errors import (
    is_denied,
    not_allowed,
    start_client,
    told,
    unavailable,
)
from surefoot.infra.kafka_client.failover import with_failover
from surefoot.infra.kafka_client.tail import consumer
from surefoot.infra.log.ports import Found
from surefoot.infra.runtime.settings import Settings
from surefoot.state.declare.agent import Agent
from surefoot.state.errors import ConfigError, Unavailable
from surefoot.state.names.agents import pool_agent_name, schedules_agent_name
from surefoot.state.names.topics import (
    OUTBOX,
    TopicSpec,
    access_specs,
    agent_specs,
    dead_spec,
    deliveries_spec,
)

_PARTITIONS_FOREVER = (
    "the partition count of an agent's topics is for ever, since it decides where each run lives"
)
#: command that changes one config of a topic
_ALTER = "kafka-configs --alter --topic {topic} --add-config {name}={value}"
#: how long a broker that has just started may take to serve new topics, in seconds
_SERVED_S = 60.0
#: how long a broker may lag behind the one that has created topics, in seconds
_LAG_S = 10.0
#: and how long a topic that nobody here has created is looked for on other brokers, in seconds
_ELSEWHERE_S = 2.0
_POLL_S = 0.1


def specs_for(agents: Sequence[str], settings: Settings) -> list[TopicSpec]:
    """Return every topic that these agents need, including outbox, dead letters and deliveries,
    and those of accounts where the settings ask for them."""
    specs = [
        dead_spec(settings.app, settings.record_max_bytes),
        deliveries_spec(settings.app, settings.partitions, settings.record_max_bytes),
    ]
    if settings.auth != "off":
        specs += access_specs(settings.app, settings.partitions, settings.record_max_bytes)
    for agent in dict.fromkeys((*agents, OUTBOX)):
        specs += agent_specs(settings.app, agent, settings.partitions, settings.record_max_bytes)
    return specs


def names_of(agents: Sequence[Agent]) -> list[str]:
    """Return the names of the agents, their pools, and their schedules' agents."""
    return [
        name
        for agent in agents
        for name in (
            agent.name,
            *(pool_agent_name(agent.name, pool) for pool in agent.pools),
            *([schedules_agent_name(agent.name)] if agent.schedules else []),
        )
    ]


def check_partitions(topic: str, found: int, partitions: int) -> list[str]:
    """Return what is wrong with the partition count, with its fix: one line or none. Pure."""
    if found == partitions:
        return []
    line = (
        f"topic {topic} has {found} partitions, SUREFOOT_PARTITIONS says {partitions}; "
        f"{_PARTITIONS_FOREVER}: set SUREFOOT_PARTITIONS={found}"
    )
    return [line]


def problems(
    spec: TopicSpec, found: Found | None, replication: int, alter: str = _ALTER
) -> list[str]:
    """Return what is wrong with a topic, each line with its fix. Pure.

    `replication` -1 accepts any factor; `alter` is the command that changes a config."""
    if found is None:
        return [f"topic {spec.name} does not exist; run `surefoot topics apply`"]
    wrong = check_partitions(spec.name, found.partitions, spec.partitions)
    if replication not in {-1, found.replication}:
        wrong.append(
            f"topic {spec.name} has replication factor {found.replication}, "
            f"SUREFOOT_REPLICATION_FACTOR says {replication}; reassign its partitions with "
            f"kafka-reassign-partitions, or set SUREFOOT_REPLICATION_FACTOR={found.replication}"
        )
    wrong += (
        f"topic {spec.name} has {name}={found.config.get(name)}, it must be {value}; run "
        + alter.format(topic=spec.name, name=name, value=value)
        for name, value in wrong_configs(spec, found).items()
    )
    packed = found.config.get("compression.type")
    if packed is not None and not unpacks(packed):
        wrong.append(
            f"topic {spec.name} has compression.type={packed}, which cannot be unpacked here; "
            f"{INSTALL_CODECS}"
        )
    return wrong


def wrong_configs(spec: TopicSpec, found: Found) -> dict[str, str]:
    """Return the required value of each config that is wrong. Pure."""
    return {
        name: value
        for name, value in spec.config.items()
        if not _satisfies(name, value, found.config.get(name))
    }


def _satisfies(name: str, wanted: str, found: str | None) -> bool:
    """Whether a config is as required; retention and size may be larger, or -1 (no limit)."""
    if found is None:
        return False
    if name in ("retention.ms", "retention.bytes", "segment.bytes", "max.message.bytes"):
        return int(found) == -1 or int(found) >= int(wanted)
    if name == "cleanup.policy":  # an unordered list
        return _parts(found) == _parts(wanted)
    return found == wanted


def _parts(config: str) -> set[str]:
    return {part.strip() for part in config.split(",")}


class Topics:
    """`async with Topics(settings) as topics: await topics.apply(specs)`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = with_failover(AIOKafkaAdminClient(**settings.kafka()))

    async def __aenter__(self) -> Self:
        try:
            await start_client(self._admin)
        except BaseException as error:
            await close_client(self._admin)
            if isinstance(error, KafkaError):
                doing = "cannot look at the topics"
                raise unavailable(doing, error, self._settings, starting=True) from error
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await close_client(self._admin)

    async def apply(self, specs: Sequence[TopicSpec]) -> list[str]:
        async with self._told("cannot create the topics"):
            return await self._apply(specs)

    def _told(self, doing: str) -> AbstractAsyncContextManager[None]:
        return told(doing, self._settings)

    async def _apply(self, specs: Sequence[TopicSpec]) -> list[str]:
        found = await self._describe([spec.name for spec in specs])
        missing = [spec for spec in specs if spec.name not in found]
        if missing:
            replication = await self._replication()
            response = await self._admin.create_topics(
                [
                    NewTopic(
                        spec.name,
                        spec.partitions,
                        replication,
                        topic_configs=spec.config,
                    )
                    for spec in missing
                ]
            )
            for name, code, *message in response.topic_errors:
                error = for_code(code)
                if is_denied(error):
                    raise not_allowed(
                        f"cannot create topic {name}",
                        error,
                        name,
                        self._settings,
                        operation="Create",
                    )
                if code and error is not TopicAlreadyExistsError:
                    raise ConfigError(
                        "SF3006", f"cannot create topic {name}: {error.__name__} {message}"
                    )
            await self._wait_for_leaders([spec.name for spec in missing])
        await self._verify(specs, _LAG_S)
        return [spec.name for spec in missing]

    async def _wait_for_leaders(self, names: Sequence[str]) -> None:
        """Wait until topics just created have leaders."""
        for _ in range(100):
            described = await self._admin.describe_topics(list(names))
            if all(
                not topic["error_code"] and all(p["leader"] >= 0 for p in topic["partitions"])
                for topic in described
            ):
                return
            await asyncio.sleep(0.1)
        raise Unavailable("SF3008", f"topics without a leader after 10 s: {', '.join(names)}")

    async def _replication(self) -> int:
        """Return the setting, or the brokers' default, which aiokafka cannot leave to them."""
        if self._settings.replication_factor != -1:
            return self._settings.replication_factor
        node = await self._broker()
        configs = await self._configs(
            [ConfigResource(ConfigResourceType.BROKER, node)],
            "cannot learn the replication factor for new topics; set SUREFOOT_REPLICATION_FACTOR, "
            "or let this principal see it",
        )
        return int(configs[node]["default.replication.factor"])

    async def _broker(self) -> str:
        """Return the id of a broker. A cluster that has just started may name none."""
        for _ in range(100):
            described = await self._admin.describe_cluster()
            if described["brokers"]:
                return str(described["brokers"][0]["node_id"])
            await asyncio.sleep(0.1)
        raise Unavailable("SF3002", "the cluster has named none of its brokers for 10 s")

    async def _configs(
        self, resources: Sequence[ConfigResource], doing: str
    ) -> dict[str, dict[str, str]]:
        """Return the configs by topic or broker. Each answer has its own error code; a topic that
        the broker asked does not know is left out."""
        found: dict[str, dict[str, str]] = {}
        for response in await self._admin.describe_configs(list(resources)):
            for code, message, _, name, entries in response.resources:
                error = for_code(code)
                if is_denied(error):
                    raise not_allowed(
                        doing, error, name, self._settings, operation="DescribeConfigs"
                    )
                if error is UnknownTopicOrPartitionError:
                    continue
                if code:
                    raise Unavailable("SF3002", f"configs of {name}: {error.__name__} {message}")
                found[name] = {entry[0]: entry[1] for entry in entries}
        return found

    async def verify(self, specs: Sequence[TopicSpec]) -> None:
        async with self._told("cannot verify the topics"):
            await self._verify(specs, _ELSEWHERE_S)

    async def _verify(self, specs: Sequence[TopicSpec], patience_s: float) -> None:
        found = await self._found([spec.name for spec in specs], patience_s)
        wrong = [
            line
            for spec in specs
            for line in problems(spec, found.get(spec.name), self._settings.replication_factor)
        ]
        if wrong:
            wrong += await self._hidden([spec.name for spec in specs if spec.name not in found])
            raise ConfigError("SF3005", "\n".join(wrong))

    async def _found(self, names: Sequence[str], patience_s: float) -> dict[str, Found]:
        """Describe the topics, and those that are missing again until all are found or the time is
        over: any broker answers, and one that lags behind does not know the newest topics yet."""
        found = await self._describe(names)
        for _ in range(round(patience_s / _POLL_S)):
            missing = [name for name in names if name not in found]
            if not missing:
                break
            await asyncio.sleep(_POLL_S)
            found |= await self._describe(missing)
        return found

    async def _hidden(self, missing: Sequence[str]) -> list[str]:
        """Say which missing topics may in fact exist, unseen by this principal.

        Brokers do not list topics that a principal may not describe, but answer a request for their
        configs with a missing right."""
        if not missing:
            return []
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in missing]
        hidden = [
            name
            for response in await self._admin.describe_configs(resources)
            for code, _, _, name, _ in response.resources
            if not code or is_denied(for_code(code))
        ]
        if not hidden:
            return []
        denied = not_allowed(
            f"of those that do not exist, {len(hidden)} may, and not be shown",
            TopicAuthorizationFailedError,
            hidden[0],
            self._settings,
            operation="Describe",
        )
        return [denied.message]

    async def names(self) -> list[str]:
        async with self._told("cannot look at the topics"):
            return list(await self._admin.list_topics())

    async def partitions(self, names: Sequence[str]) -> dict[str, int]:
        async with self._told("cannot look at the topics"):
            return {name: len(parts) for name, parts in (await self._existing(names)).items()}

    async def served(self, specs: Sequence[TopicSpec]) -> None:
        places = [TopicPartition(spec.name, p) for spec in specs for p in range(spec.partitions)]
        reader = consumer(self._settings, isolation_level="read_committed")
        try:
            async with asyncio.timeout(_SERVED_S), self._told("cannot look at the new topics"):
                while not await self._serves_groups():  # noqa: ASYNC110  (it polls)
                    await asyncio.sleep(_POLL_S)
                await start_client(reader)
                await reader.end_offsets(places)
        except TimeoutError:
            raise Unavailable(
                "SF3008", f"Kafka did not serve the new topics within {_SERVED_S:g} s"
            ) from None
        finally:
            await close_client(reader)

    async def _serves_groups(self) -> bool:
        try:
            await self._admin.find_coordinator(self._settings.app)
        except KafkaError:
            return False
        return True

    async def _existing(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Return what the brokers say about each partition, for the topics that exist.

        Lists the names first: describing a missing topic could create it, where the broker is set
        to."""
        present = set(await self._admin.list_topics()) & set(names)
        if not present:
            return {}
        described = await self._admin.describe_topics(list(present))
        return {
            topic["topic"]: topic["partitions"] for topic in described if not topic["error_code"]
        }

    async def _describe(self, names: Sequence[str]) -> dict[str, Found]:
        exists = await self._existing(names)
        if not exists:
            return {}
        configs = await self._configs(
            [ConfigResource(ConfigResourceType.TOPIC, name) for name in exists],
            "cannot verify the topics",
        )
        return {
            name: Found(len(parts), min(len(p["replicas"]) for p in parts), configs[name])
            for name, parts in exists.items()
            if name in configs
        }
