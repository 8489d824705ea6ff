"""AWS through boto3: a few blocking calls at a time, in threads; typed errors.

Whatever the settings leave open is taken from boto3's environment and configuration files:
credentials, region, endpoints, checksums, bucket addressing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from surefoot.consumers.attempts.threads import in_thread
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import ConfigError, SurefootError, Unavailable

#: most concurrent calls to S3
S3_CALLS_MAX = 16
#: longest time to connect, and to wait for an answer, long poll included; in seconds
_CONNECT_S, _READ_S = 5, 30
_NOT_IMPLEMENTED = 501
_BUSY = frozenset(
    {
        "InternalError",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
    }
)


#: what boto3 returns; its shape depends on the operation
AwsAnswer = dict[str, Any]


class AwsRefused(SurefootError):
    """AWS refused the operation. `code` is AWS's own, such as AccessDenied."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Aws:
    """A client of one AWS service, for use on one event loop."""

    def __init__(self, settings: Settings, service: str, *, at_once: int) -> None:
        """Create the client. `at_once` bounds the concurrent calls.

        Raises: ConfigError — boto3 is not installed, or no region is set.
        """
        try:
            import boto3  # noqa: PLC0415
            from botocore.config import Config  # noqa: PLC0415
            from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError("SF1020", "AWS needs boto3: pip install 'surefoot[aws]'") from error
        self._core_error, self._client_error = BotoCoreError, ClientError
        self._free = asyncio.Semaphore(at_once)
        try:
            self._client: Any = boto3.client(
                service,
                endpoint_url=settings.aws_endpoint_url,
                region_name=settings.aws_region,
                config=Config(
                    connect_timeout=_CONNECT_S,
                    read_timeout=_READ_S,
                    max_pool_connections=at_once,
                    retries={"mode": "standard", "total_max_attempts": 3},
                    request_checksum_calculation=settings.aws_checksums,
                    response_checksum_validation=settings.aws_checksums,
                ),
            )
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(
                "SF1021",
                f"cannot use AWS {service}: {error}; check SUREFOOT_AWS_REGION and "
                "SUREFOOT_AWS_ENDPOINT_URL",
            ) from error

    async def call(self, operation: str, **arguments: Any) -> AwsAnswer:
        """Call one operation, by boto3's name for it.

        Raises: Unavailable — no answer, or "not now"; AwsRefused — AWS refused it.
        Under cancellation: it may or may not have been done.
        """
        async with self._free:
            return await in_thread(self._call, operation, arguments)  # type: ignore[no-any-return]

    def _call(self, operation: str, arguments: Mapping[str, Any]) -> AwsAnswer:
        try:
            answer: AwsAnswer = getattr(self._client, operation)(**arguments)
            if "Body" in answer:
                answer["Body"] = answer["Body"].read()
        except self._client_error as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if (status >= 500 and status != _NOT_IMPLEMENTED) or code in _BUSY:  # noqa: PLR2004
                raise Unavailable("SF3013", str(error)) from error
            raise AwsRefused(str(error), code.rpartition(".")[2]) from error
        except (self._core_error, OSError) as error:
            raise Unavailable("SF3013", f"{type(error).__name__}: {error}") from error
        return answer

    def close(self) -> None:
        """Close idle connections; a call in progress ends by itself, its result unused."""
        self._client.close()
