"""Stores that speak like S3, and what they do not take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from structlog.testing import capture_logs

from surefoot import ConfigError
from surefoot.infra.blobs.stores import check_blobs, open_blobs
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.schemas.pointer import pointer_to
from surefoot.state.errors import StoreRefused
from tests.support.aws import REGION, aws_server, client, strict_store


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    with strict_store(monkeypatch) as store:
        yield store


def settings(url: str | None, **more: Any) -> Settings:
    return load_settings(
        app="a", blobs="s3://large/here", aws_endpoint_url=url, aws_region=REGION, **more
    )


async def kept(made: Settings) -> bytes | None:
    """What comes back."""
    store = open_blobs(made)
    assert store is not None
    pointer = pointer_to(b"[1]", 0)
    await store.put(pointer, b"[1]")
    return await store.get(pointer)


async def test_a_store_that_refuses_checksums_is_told_at_the_start(strict: Any) -> None:
    with pytest.raises(ConfigError, match=r"SF1070.*NotImplemented.*CHECKSUMS=when_required"):
        await check_blobs(settings(strict[0]), SystemClock())


async def test_and_is_used_without_them_when_that_is_set(strict: Any) -> None:
    url, store = strict
    made = settings(url, aws_checksums="when_required")
    await check_blobs(made, SystemClock())
    assert store.objects == {}  # the probe is gone
    assert await kept(made) == b"[1]"


async def test_what_botocore_is_told_in_its_own_variables_holds(
    strict: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", strict[0])
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
    await check_blobs(settings(None), SystemClock())
    assert await kept(settings(None)) == b"[1]"


async def test_what_botocore_is_told_in_its_own_files_holds(
    strict: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(
        "[default]\nrequest_checksum_calculation = when_required\n"
        "response_checksum_validation = when_required\nservices = mine\n"
        f"[services mine]\ns3 =\n  endpoint_url = {strict[0]}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # which has read them
    assert await kept(settings(None)) == b"[1]"
    assert list(strict[1].objects) == [f"/large/here/a/{pointer_to(b'[1]', 0).key}"]


@pytest.mark.parametrize(
    ("status", "code"), [(400, "InvalidRequest"), (403, "AccessDenied"), (501, "NotImplemented")]
)
async def test_a_refusal_is_told_from_an_outage(strict: Any, status: int, code: str) -> None:
    url, store = strict
    store.refuses = (status, code)
    with pytest.raises(StoreRefused, match=f"SF3070.*{code}"):
        await kept(settings(url))


async def test_a_store_that_gives_back_something_else_is_told_at_the_start(strict: Any) -> None:
    url, store = strict

    class Mangled(dict[str, bytes]):
        def __setitem__(self, key: str, content: bytes) -> None:
            super().__setitem__(key, b"5;chunk-signature=\r\n" + content)

    store.objects = Mangled()
    with pytest.raises(ConfigError, match="does not return what was stored"):
        await check_blobs(settings(url, aws_checksums="when_required"), SystemClock())


async def test_who_may_not_delete_may_start(strict: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url, store = strict
    monkeypatch.setattr(store, "do_DELETE", lambda self: self._answer(403))
    await check_blobs(settings(url, aws_checksums="when_required"), SystemClock())
    assert len(store.objects) == 1


async def test_a_store_that_is_away_is_no_reason_not_to_start(strict: Any) -> None:
    url, store = strict
    store.refuses = (503, "SlowDown")
    with capture_logs() as logs:
        await check_blobs(settings(url), SystemClock())
    assert [line["event"] for line in logs] == ["blobs_not_checked"]


async def test_s3_itself_and_a_folder_pass(tmp_path: Path) -> None:
    with aws_server() as url:
        client(url, "s3").create_bucket(
            Bucket="large", CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        await check_blobs(settings(url), SystemClock())
        assert await kept(settings(url)) == b"[1]"
    await check_blobs(load_settings(blobs=str(tmp_path)), SystemClock())
    assert files(tmp_path) == []


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
