"""A broker whose clients' network can be made to misbehave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from surefoot.infra.broker.config import ONE_NODE, STORAGE, Storage, free_ports
from surefoot.infra.broker.find import Broker, start_broker
from surefoot.infra.runtime.settings import Settings
from tests.chaos.faults.proxy import Proxy, proxy

_QUICK = {
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # Compaction looks for work every 15 s by default.
    "log.cleaner.backoff.ms": "100",
}


@dataclass(frozen=True, slots=True)
class Networked:
    """A broker with two doors. One is direct, for the test that looks. The other sends those who
    come through it to the proxy for everything that they ask for afterwards."""

    broker: Broker
    #: the port on which the proxy listens
    proxy_port: int
    #: the port of the door behind it
    door: int

    @property
    def direct(self) -> str:
        return self.broker.bootstrap

    @property
    def data(self) -> Path:
        """The broker's data folder."""
        assert self.broker.log_path is not None
        return self.broker.log_path.parent / "data"

    def network(self) -> AbstractAsyncContextManager[Proxy]:
        """The proxy; without it nobody gets through the second door."""
        return proxy(self.proxy_port, broker=("127.0.0.1", self.door))

    def behind(self, settings: Settings) -> Settings:
        """The same settings, for processes that are to be behind the proxy."""
        return settings.model_copy(update={"bootstrap_servers": f"127.0.0.1:{self.proxy_port}"})


@contextmanager
def start_networked(storage: Storage = STORAGE) -> Iterator[Networked]:
    """Start a broker on Java. Raises ConfigError when it cannot be had."""
    client, controller, door, proxy_port = (f"127.0.0.1:{port}" for port in free_ports(4))
    protocols = ONE_NODE["listener.security.protocol.map"]
    properties = _QUICK | {
        "listeners": f"PLAINTEXT://{client},CONTROLLER://{controller},DOOR://{door}",
        "advertised.listeners": f"PLAINTEXT://{client},DOOR://{proxy_port}",
        "listener.security.protocol.map": f"{protocols},DOOR:PLAINTEXT",
        "controller.quorum.bootstrap.servers": controller,
    }
    port = int(client.rpartition(":")[2])
    with start_broker(ways=("java",), port=port, properties=properties, storage=storage) as broker:
        yield Networked(broker, int(proxy_port.rpartition(":")[2]), int(door.rpartition(":")[2]))
