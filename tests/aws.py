"""AWS for tests: moto's server, spoken to over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import httpx
import pytest
from moto.server import ThreadedMotoServer

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
REGION = "eu-west-1"


@contextmanager
def aws_server() -> Iterator[str]:
    """The URL of a server of its own, on a free port; the environment has keys for it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in KEYS.items():
                patch.setenv(name, value)
            host, port = server.get_host_and_port()
            url = f"http://{host}:{port}"
            # All servers of a process show the same buckets and queues.
            httpx.post(f"{url}/moto-api/reset", timeout=60).raise_for_status()
            boto3.client("sts", endpoint_url=url, region_name=REGION).get_caller_identity()
            yield url
    finally:
        server.stop()


def client(url: str, service: str) -> Any:
    return boto3.client(service, endpoint_url=url, region_name=REGION)
