"""The registry's client and the commands against a real registry: Apicurio, from Maven Central.

`SUREFOOT_TEST_REGISTRY` names one that is running; without Java and Maven these are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from surefoot import NotFound, Refused
from surefoot.cli import app as command
from surefoot.infra.registry.confluent import Registry
from tests.support.eventually import until_sync
from tests.support.free_ports import unused_port

#: the last line of versions that runs on Java 17
VERSION = "2.6.13.Final"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "item", "type": "string"}],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if running := os.environ.get("SUREFOOT_TEST_REGISTRY"):
        yield running
        return
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None or maven is None:
        pytest.skip("Java and Maven are needed to start a registry")
    folder = tmp_path_factory.mktemp("registry")
    artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    fetched = subprocess.run(
        [
            maven,
            "-q",
            "-B",
            f"{PLUGIN}:copy",
            f"-Dartifact={artifact}",
            f"-DoutputDirectory={folder}",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if fetched.returncode:
        pytest.skip(f"the registry cannot be fetched: {fetched.stdout[-500:]}")
    archive = folder / f"apicurio-registry-app-{VERSION}-all.tar.gz"
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()
    port = unused_port()
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                java,
                "-Xmx400m",
                "-Dquarkus.http.host=127.0.0.1",
                f"-Dquarkus.http.port={port}",
                "-jar",
                f"apicurio-registry-app-{VERSION}-runner.jar",
            ],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    address = f"http://127.0.0.1:{port}/apis/ccompat/v7"

    def answers() -> bool:
        assert server.poll() is None, (folder / "log").read_text()[-2000:]
        try:
            return httpx.get(f"{address}/subjects", timeout=60).is_success
        except httpx.TransportError:
            return False

    try:
        until_sync(answers, what="the registry to answer")
        # The first schemas take long: the server loads much of itself for them.
        for path in ("subjects/warm/versions", "compatibility/subjects/warm/versions/latest"):
            body = {"schema": json.dumps(ORDER)}
            httpx.post(f"{address}/{path}", json=body, timeout=120).raise_for_status()
        yield address
    finally:
        server.terminate()
        server.wait(120)
        shutil.rmtree(folder)


async def test_what_was_registered_is_found_by_its_id(url: str) -> None:
    subject = f"a/{uuid.uuid4().hex} value"
    async with Registry(url, timeout_s=60) as registry:
        with pytest.raises(NotFound):
            await registry.latest(subject)
        assert await registry.problems(subject, ORDER) == []
        number = await registry.register(subject, ORDER)
        assert await registry.register(subject, ORDER) == number
        assert await registry.by_id(number) == ORDER
        latest = await registry.latest(subject)
        assert (latest.id, latest.version, latest.schema) == (number, 1, ORDER)
        with pytest.raises(NotFound):
            await registry.by_id(2**30)
        with pytest.raises(Refused):
            await registry.register(subject, {"type": "nonsense"})


def test_a_ci_is_told_what_may_be_released(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_REGISTRY_URL", url)
    subject = f"orders-{uuid.uuid4().hex}"
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))

    def schemas(verb: str, *more: str) -> int:
        told = CliRunner().invoke(
            command, ["schemas", verb, str(path), *more, "--subject", subject]
        )
        return told.exit_code

    assert schemas("register") == 0
    level = httpx.put(f"{url}/config/{subject}", json={"compatibility": "FULL"}, timeout=60)
    assert level.is_success
    assert schemas("check", "--registry") == 0
    path.write_text(json.dumps({**ORDER, "fields": [{"name": "item", "type": "int"}]}))
    assert schemas("check", "--registry") == 1
    assert schemas("register") == 1
