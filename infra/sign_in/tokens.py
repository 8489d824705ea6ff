"""Where the tokens of SASL/OAUTHBEARER come from: a file, or the AWS identity of the process.

`infra.kafka_client` registers both as token providers of aiokafka, which asks for a token at each
new connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from surefoot.state.errors import ConfigError


class NoToken(OSError):
    """There is no token; the text says why, and which setting to look at."""


class TokenFile:
    """A bearer token that is read for each sign-in: whoever issues it replaces the file."""

    #: what a broker refuses that refuses the token, and what to look at then
    refused = "the token of SUREFOOT_SASL_TOKEN_FILE; see whether it has expired"

    def __init__(self, path: Path) -> None:
        self.path = path

    async def token(self) -> str:
        """Return the token. Raises: NoToken — the file is empty, or cannot be read."""
        try:
            token = (await asyncio.to_thread(self.path.read_text, encoding="ascii")).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NoToken(
                f"the token of SUREFOOT_SASL_TOKEN_FILE cannot be read: {error}"
            ) from None
        if not token:
            raise NoToken(f"SUREFOOT_SASL_TOKEN_FILE names an empty file: {self.path}")
        return token


class AwsIamToken:
    """A token of Amazon MSK's IAM access control: a request to connect that the process's AWS
    identity has signed, valid for 15 minutes. AWS's own library signs it, without asking anybody.

    Args:    region: of the cluster; None: that of AWS_REGION or AWS_DEFAULT_REGION
    Raises:  ConfigError — the library is not installed
    """

    refused = "the AWS identity of this process; see whether it may kafka-cluster:Connect there"

    def __init__(self, region: str | None) -> None:
        self._region = region
        self._sign = _signer()

    async def token(self) -> str:
        """Return the token.

        Raises: NoToken — there are no credentials, or no region.
        """
        region = (
            self._region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        )
        if region is None:
            raise NoToken("the cluster's region is not known: set SUREFOOT_AWS_REGION")
        try:
            # in a thread: where the machine has a role, its credentials are asked for
            token, _ = await asyncio.to_thread(self._sign, region)
        except Exception as error:  # noqa: BLE001  (whatever keeps boto3 from finding credentials)
            raise NoToken(f"there are no AWS credentials to sign in with: {error!r}") from None
        return token


def _signer() -> Callable[[str], tuple[str, int]]:
    try:
        from aws_msk_iam_sasl_signer.MSKAuthTokenProvider import (  # noqa: PLC0415  (an extra)
            generate_auth_token,
        )
    except ImportError as error:
        raise ConfigError(
            "SF1020",
            "SUREFOOT_SASL_MECHANISM=AWS_MSK_IAM needs a library: pip install 'surefoot[msk]'",
        ) from error
    sign: Callable[[str], tuple[str, int]] = generate_auth_token
    return sign
