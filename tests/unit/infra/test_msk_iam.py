"""Amazon MSK's IAM access control: the token that aiokafka is given, and when there is none.

The token is what AWS documents: a presigned request to kafka-cluster:Connect, in base64url. Its
signature is computed again here, by AWS's description of Signature Version 4, so that it is not
only the signer's word. Nothing is asked for over a network.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import sys
from base64 import urlsafe_b64decode
from typing import Any, NoReturn
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from aiokafka.abc import AbstractTokenProvider

import surefoot.infra.kafka_client  # noqa: F401  (registers the providers)
from surefoot import ConfigError
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.sign_in.tokens import AwsIamToken, NoToken

KEY_ID, SECRET, SESSION = "AKIDEXAMPLE", "made-up/secret+key", "made-up//session=="


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that nobody has, and no network to look for others."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("something was asked for over a network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def on_msk(**more: Any) -> Settings:
    return load_settings(
        bootstrap_servers="b-1.shop.kafka.eu-west-1.amazonaws.com:9098",
        security_protocol="SASL_SSL",
        sasl_mechanism="AWS_MSK_IAM",
        aws_region="eu-west-1",
        **more,
    )


async def test_a_client_signs_in_with_a_request_that_the_identity_has_signed() -> None:
    kafka = on_msk().kafka()
    provider = kafka["sasl_oauth_token_provider"]
    assert (kafka["sasl_mechanism"], kafka["security_protocol"]) == ("OAUTHBEARER", "SASL_SSL")
    assert isinstance(provider, AbstractTokenProvider)
    token = await provider.token()
    assert "=" not in token
    url = urlsplit(urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    assert (url.scheme, url.netloc, url.path) == ("https", "kafka.eu-west-1.amazonaws.com", "/")
    fields = dict(parse_qsl(url.query, strict_parsing=True))
    at = fields["X-Amz-Date"]
    assert fields == {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{KEY_ID}/{at[:8]}/eu-west-1/kafka-cluster/aws4_request",
        "X-Amz-Date": at,
        "X-Amz-Expires": "900",
        "X-Amz-SignedHeaders": "host",
        "X-Amz-Security-Token": SESSION,
        "X-Amz-Signature": signature(url.netloc, fields),
        "User-Agent": fields["User-Agent"],
    }
    assert SECRET not in token


def signature(host: str, fields: dict[str, str]) -> str:
    """The signature of such a request. Source: AWS, "Create a signed AWS API request"."""
    left_out = ("X-Amz-Signature", "User-Agent")
    query = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}"
        for name, value in sorted(fields.items())
        if name not in left_out
    )
    nothing = hashlib.sha256(b"").hexdigest()
    request = "\n".join(("GET", "/", query, f"host:{host}", "", "host", nothing))
    _, scope = fields["X-Amz-Credential"].split("/", 1)
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{SECRET}".encode()
    told = "\n".join(("AWS4-HMAC-SHA256", fields["X-Amz-Date"], scope, digest))
    for part in (*scope.split("/"), told):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


async def test_each_sign_in_has_the_credentials_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = on_msk().kafka()["sasl_oauth_token_provider"]
    first = await provider.token()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDROTATED")
    second = await provider.token()
    assert b"AKIDROTATED" in urlsafe_b64decode(second + "==")
    assert b"AKIDROTATED" not in urlsafe_b64decode(first + "==")


async def test_the_region_is_surefoots_or_that_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = AwsIamToken(None)
    with pytest.raises(NoToken, match="SUREFOOT_AWS_REGION"):
        await provider.token()
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):  # the latter comes first
        monkeypatch.setenv(name, name.lower().replace("_", "-"))
        told = urlsafe_b64decode(await provider.token() + "==").decode()
        assert f"//kafka.{name.lower().replace('_', '-')}.amazonaws.com/" in told


async def test_without_credentials_there_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    with pytest.raises(NoToken, match="no AWS credentials"):
        await AwsIamToken("eu-west-1").token()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"security_protocol": "SASL_PLAINTEXT"}, "SECURITY_PROTOCOL=SASL_SSL"),
        ({"security_protocol": "PLAINTEXT"}, "SECURITY_PROTOCOL=SASL_SSL"),
        ({"security_protocol": "SASL_SSL", "sasl_token_file": "/token"}, "SASL_TOKEN_FILE"),
        (
            {"security_protocol": "SASL_SSL", "sasl_username": "a", "sasl_password": "b"},
            "AWS_MSK_IAM",
        ),
    ],
)
def test_settings_that_contradict_it_are_refused(more: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_settings(sasl_mechanism="AWS_MSK_IAM", **more)


def test_without_its_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer.MSKAuthTokenProvider", None)
    with pytest.raises(ConfigError, match=r"SF1020.*surefoot\[msk\]"):
        on_msk().kafka()
    assert on_msk().principal == "the AWS identity of this process"
