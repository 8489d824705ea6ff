"""Tokens of a certified identity provider, oidc-provider: its discovery, its keys, its JWTs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from surefoot.infra.access.oidc import OidcAccounts
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from tests.support.free_ports import unused_port
from tests.support.required_programs import program

SOURCE = Path(__file__).parents[2] / "support" / "oidc_provider"
_INSTALL_S = 300


def installed(npm: str) -> Path:
    """The folder of the provider with its packages, which are kept for the next time. The test is
    skipped where their registry cannot be reached."""
    lock = (SOURCE / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "surefoot"
    there = cache / f"oidc-provider-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not there.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = shutil.copytree(SOURCE, Path(folder) / "made")
            command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            try:
                subprocess.run(
                    command, cwd=made, capture_output=True, check=True, timeout=_INSTALL_S
                )
            except subprocess.SubprocessError as error:
                pytest.skip(f"npm has not installed the provider: {error}")
            made.rename(there)
    shutil.copy(SOURCE / "provider.mjs", there)
    return there


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    node, folder, port = program("node"), installed(program("npm")), unused_port()
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [node, "provider.mjs", url, str(port)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"listening\n"
            yield url
        finally:
            process.kill()


@pytest.fixture
async def accounts(issuer: str) -> AsyncIterator[OidcAccounts]:
    settings = load_settings(
        auth="oidc",
        oidc_issuer=issuer,
        oidc_audience="surefoot",
        oidc_role_claim="groups",
    )
    made = OidcAccounts(settings, SystemClock())
    yield made
    await made.stop()


async def token(issuer: str, resource: str) -> str:
    """A token of the client `nightly`."""
    async with httpx.AsyncClient(trust_env=False, timeout=90) as http:
        answer = await http.post(
            f"{issuer}/token",
            auth=("nightly", "made-up-secret"),
            data={"grant_type": "client_credentials", "resource": resource},
        )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["access_token"])


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256"])
async def test_its_token_signs_in(issuer: str, accounts: OidcAccounts, algorithm: str) -> None:
    account = await accounts.sign_in(await token(issuer, f"urn:{algorithm}:surefoot"))
    assert account is not None
    assert (account.name, account.role, account.issuer) == ("nightly", "operator", issuer)
    assert not account.expired(SystemClock().now_ms())


@pytest.mark.parametrize(
    "resource", ["urn:RS256:another", "urn:EdDSA:surefoot", "urn:opaque:surefoot"]
)
async def test_a_token_for_others_of_another_algorithm_or_opaque_does_not(
    issuer: str, accounts: OidcAccounts, resource: str
) -> None:
    assert await accounts.sign_in(await token(issuer, resource)) is None
