"""All settings, from the environment (`SUREFOOT_...`).

No secret appears in a repr, an error or a log line. Contradictory settings raise a ConfigError at
start-up that names the variable to change.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from surefoot.infra.runtime.deadlines import Deadlines
from surefoot.infra.sign_in.certificates import client_context
from surefoot.infra.sign_in.tokens import AwsIamToken, TokenFile
from surefoot.schemas.text import refuse_halves
from surefoot.state.access.proxied import parse_networks, parse_roles
from surefoot.state.access.withheld import parse_payload_roles
from surefoot.state.egress.hosts import Hosts, parse_hosts
from surefoot.state.egress.policy import parse_allowed
from surefoot.state.errors import ConfigError

_PREFIX = "SUREFOOT_"
_WEBHOOK_SECRET = re.compile(r"SUREFOOT_WEBHOOK_([A-Z0-9_]+)_SECRET")
_HOOK_SECRET = re.compile(r"SUREFOOT_HOOK_([A-Z0-9_]+)_SECRET")
#: SQLite reads `:memory:` as no file at all
_SQLITE = re.compile(r"sqlite:///(?!:memory:$)(.*[^/])")
_BLOBS = re.compile(r"s3://[^/]+(/.*)?|(?!.*://).+")
_ARCHIVE = re.compile(r"s3://[^/]+(/.*)?|file:///.+")
#: http for a provider on this machine alone
_ISSUER = re.compile(r"https://[^\s?#@]+|http://(localhost|127\.0\.0\.1)(:\d+)?(/[^\s?#]*)?")
#: Source: RFC 9110, 5.6.2
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
#: what Kubernetes sets for a service in every container of its namespace: for one named
#: surefoot-gateway, SUREFOOT_GATEWAY_PORT=tcp://10.0.0.1:8787
_SERVICE_LINK = re.compile(r"(?:tcp|udp|sctp)://.*")
_APP = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,62}")

Port = Annotated[int, Field(ge=0, le=65_535)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """One process's settings. Create them with `load_settings()`."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        # the offending value may be a secret
        hide_input_in_errors=True,
    )

    #: prefix of every topic, group and transactional id
    app: str = "surefoot"
    #: where the records are kept: `kafka`, or `sqlite:///runs.db` for the embedded log (a relative
    #: path; an absolute one has four slashes). None: Kafka
    log: str | None = None
    #: `host:port`, comma-separated; None: only `surefoot dev` and the demo work, which start a
    #: broker
    bootstrap_servers: str | None = None
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    #: AWS_MSK_IAM: OAUTHBEARER with a token that the process's AWS identity signs
    sasl_mechanism: Literal[
        "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"
    ] = "PLAIN"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    #: file with the bearer token of OAUTHBEARER, read for each connection
    sasl_token_file: Path | None = None
    #: PEM of the certificate authority; None: the system's authorities
    ssl_cafile: Path | None = None
    #: PEM of the client's certificate and key, for brokers that require one
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    #: for an encrypted key file
    ssl_key_password: SecretStr | None = None

    #: partitions of every topic of every agent; must never change once topics exist
    partitions: Count = 6
    #: -1 = the broker's default
    replication_factor: Annotated[int, Field(ge=-1)] = -1
    #: name of this machine or pod, the same after a restart
    instance: str = Field(default_factory=socket.gethostname, min_length=1, max_length=200)
    #: most steps that one worker process runs at a time
    in_flight: Count = 64

    #: how batches of records are compressed before they are sent
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"

    producer_request_timeout_ms: Count = 5_000
    transaction_timeout_ms: Count = 10_000
    session_timeout_ms: Count = 15_000
    rebalance_timeout_ms: Count = 30_000
    heartbeat_interval_ms: Count = 1_000
    #: how long running steps may take to finish after SIGTERM
    drain_timeout_s: Annotated[float, Field(gt=0)] = 20.0
    #: half of a surrogate pair in a text: "replace" by U+FFFD, or "strict": refuse
    lone_surrogates: Literal["replace", "strict"] = "replace"
    #: largest record, batch overhead included
    record_max_bytes: Annotated[int, Field(ge=10_000)] = 1_000_000
    #: how long a finished run answers a repeated start
    dedup_window_s: Annotated[float, Field(gt=0)] = 14 * 86_400.0

    #: how long a file of a watched folder has to stay unchanged before it is taken
    file_settle_s: Annotated[float, Field(gt=0)] = 2.0

    #: None: boto3's default (AWS_REGION, a profile)
    aws_region: str | None = None
    #: URL of a service compatible with AWS; None: AWS itself
    aws_endpoint_url: str | None = None
    #: checksums of S3 requests: `when_required` for stores that refuse those that boto3 adds. None:
    #: boto3's default (AWS_REQUEST_CHECKSUM_CALCULATION, AWS_RESPONSE_CHECKSUM_VALIDATION)
    aws_checksums: Literal["when_supported", "when_required"] | None = None

    #: where payloads too large for a record are kept: `s3://bucket/prefix`, or a folder that every
    #: process sees; None: nowhere
    blobs: str | None = None
    #: payloads larger than this are kept there
    blob_over_bytes: Annotated[int, Field(ge=1_024)] = 262_144
    #: most bytes that a step is given from there
    blob_step_max_bytes: Annotated[int, Field(ge=1_024)] = 268_435_456

    #: file with the keys that encrypt payloads (`surefoot keys`); None: they are not encrypted
    encryption: Path | None = None

    #: where finished runs and events are archived: `s3://bucket/prefix` or `file:///folder`; None:
    #: nowhere
    archive: str | None = None
    #: size of an archive file before compression
    archive_file_bytes: Annotated[int, Field(ge=1_024)] = 8_388_608
    #: and longest wait of its first event before the file is written
    archive_age_s: Annotated[float, Field(gt=0)] = 300.0

    #: what the relay may reach besides public addresses: names, `*.suffix`, addresses and networks,
    #: with `:port` or for every port, comma-separated (state.egress.policy)
    out_allow: str = ""

    #: how the gateway learns who sends a request: `tokens` (`surefoot tokens create`); `oidc`: also
    #: tokens of an identity provider; `proxy`: also headers of a proxy in front of it; `off`: it
    #: does not, and listens on loopback only
    auth: Literal["off", "tokens", "oidc", "proxy"] = "off"
    #: the identity provider's URL, as its tokens spell it, and who they have to be for
    oidc_issuer: str | None = None
    oidc_audience: str | None = None
    #: the claims with an account's name, its role, and its agents (None: it sees all)
    oidc_name_claim: str = "sub"
    oidc_role_claim: str = "surefoot_role"
    oidc_agents_claim: str | None = None
    #: addresses and networks of that proxy, comma-separated
    proxy_networks: str = ""
    #: its headers with an account's name, its groups, and its agents (None: it sees all)
    proxy_name_header: str = "X-Forwarded-User"
    proxy_groups_header: str = "X-Forwarded-Groups"
    proxy_agents_header: str | None = None
    #: GROUP=ROLE, comma-separated
    proxy_roles: str = ""
    #: roles whose accounts see payloads, comma-separated; an admin does in any case
    payload_roles: str = "viewer,approver,operator"
    #: listen elsewhere, too, without knowing who sends a request
    insecure: bool = False

    gateway_host: str = "127.0.0.1"
    #: 0 = any free port
    gateway_port: Port = 8787
    #: accepted Host headers of gateway, views and metrics besides loopback and the address listened
    #: on: names, `*.suffix`, addresses, comma-separated; `*`: any (state.egress.hosts)
    gateway_hosts: str = ""
    #: largest request body that the gateway reads
    gateway_body_max_bytes: Count = 1_048_576
    #: accept webhooks with a gzip body; the same limit applies to it unpacked
    gateway_gzip: bool = False
    #: time limit of a webhook delivery's mappings, and how many of a source run at a time
    gateway_mapping_s: Annotated[float, Field(gt=0)] = 5.0
    gateway_mapping_threads: Count = 16

    #: where Prometheus finds this process's metrics; None: nowhere; 0 = any free port. A process
    #: that starts others gives each a port of its own, counting up from this one
    metrics_port: Port | None = None
    metrics_host: str = "127.0.0.1"
    #: export runs and steps to OpenTelemetry, which the OTEL_... variables configure
    traces: bool = False

    views_host: str = "127.0.0.1"
    #: 0 = any free port
    views_port: Port = 8788
    #: the address at which other instances of `surefoot views` reach this one; None: its host and
    #: port
    views_address: str | None = None
    #: the gateway's URL of the views; None: it serves none
    views_url: str | None = None
    #: this machine's folder for views; can be deleted while none runs
    views_dir: Path = Path("surefoot-views")

    #: URL of a Confluent-compatible schema registry, with the path of its API; None: none is used
    registry_url: str | None = None
    registry_username: str | None = None
    registry_password: SecretStr | None = None
    #: a bearer token, instead of username and password
    registry_token: SecretStr | None = None
    #: how long events wait for a schema that the registry lacks before they become dead letters
    schema_wait_s: Annotated[float, Field(ge=0)] = 600.0

    _deadlines: Deadlines = PrivateAttr(default_factory=Deadlines)

    @model_validator(mode="before")
    @classmethod
    def _without_service_links(cls, given: Any) -> Any:
        return {
            name: value
            for name, value in given.items()
            if not (name.endswith("_port") and _SERVICE_LINK.fullmatch(str(value)))
        }

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not _APP.fullmatch(self.app):
            raise ValueError(f"{_PREFIX}APP must be 1 to 63 of A-Z a-z 0-9 _ -; got {self.app!r}")
        _embedded_path(self.log)
        if self.blobs is not None and not _BLOBS.fullmatch(self.blobs):
            raise ValueError(
                f"{_PREFIX}BLOBS must be s3://bucket, s3://bucket/prefix or a folder; "
                f"got {self.blobs!r}"
            )
        if self.archive is not None and not _ARCHIVE.fullmatch(self.archive):
            raise ValueError(
                f"{_PREFIX}ARCHIVE must be s3://bucket, s3://bucket/prefix or file:///folder; "
                f"got {self.archive!r}"
            )
        if self.blobs is not None and self.blob_over_bytes >= self.record_max_bytes:
            raise ValueError(
                f"{_PREFIX}BLOB_OVER_BYTES ({self.blob_over_bytes}) must be less than "
                f"{_PREFIX}RECORD_MAX_BYTES ({self.record_max_bytes})"
            )
        try:
            parse_allowed(self.out_allow)
        except ValueError as error:
            raise ValueError(f"{_PREFIX}OUT_ALLOW: {error}") from None
        try:
            parse_hosts(self.gateway_hosts)
        except ValueError as error:
            raise ValueError(f"{_PREFIX}GATEWAY_HOSTS: {error}") from None
        self._proxy_agrees()
        try:
            parse_payload_roles(self.payload_roles)
        except ValueError as error:
            raise ValueError(f"{_PREFIX}PAYLOAD_ROLES: {error}") from None
        if self.auth == "oidc" and not (self.oidc_issuer and self.oidc_audience):
            raise ValueError(
                f"{_PREFIX}AUTH=oidc needs {_PREFIX}OIDC_ISSUER and {_PREFIX}OIDC_AUDIENCE"
            )
        if self.oidc_issuer and not _ISSUER.fullmatch(self.oidc_issuer):
            raise ValueError(
                f"{_PREFIX}OIDC_ISSUER must be an https:// URL, as the provider's tokens spell it; "
                f"got {self.oidc_issuer!r}"
            )
        order = (
            "heartbeat_interval_ms",
            "producer_request_timeout_ms",
            "transaction_timeout_ms",
            "session_timeout_ms",
            "rebalance_timeout_ms",
        )
        for shorter, longer in pairwise(order):
            if getattr(self, shorter) >= getattr(self, longer):
                raise ValueError(
                    f"{_PREFIX}{shorter.upper()} ({getattr(self, shorter)}) must be less than "
                    f"{_PREFIX}{longer.upper()} ({getattr(self, longer)})"
                )
        self._sign_in_agrees()
        ssl_files = (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)
        if any(ssl_files) and not self.security_protocol.endswith("SSL"):
            raise ValueError(
                f"{_PREFIX}SSL_... is set but {_PREFIX}SECURITY_PROTOCOL is "
                f"{self.security_protocol}; set it to SSL or SASL_SSL"
            )
        if bool(self.ssl_certfile) != bool(self.ssl_keyfile):
            raise ValueError(f"set both {_PREFIX}SSL_CERTFILE and {_PREFIX}SSL_KEYFILE, or neither")
        return self

    def _proxy_agrees(self) -> None:
        for name, parse in (("networks", parse_networks), ("roles", parse_roles)):
            try:
                given = parse(getattr(self, f"proxy_{name}"))
            except ValueError as error:
                raise ValueError(f"{_PREFIX}PROXY_{name.upper()}: {error}") from None
            if self.auth == "proxy" and not given:
                raise ValueError(f"{_PREFIX}AUTH=proxy needs {_PREFIX}PROXY_{name.upper()}")
        headers = (self.proxy_name_header, self.proxy_groups_header, self.proxy_agents_header)
        told = [header.lower() for header in headers if header is not None]
        if len({*told}) < len(told) or not all(map(_HEADER.fullmatch, told)):
            raise ValueError(
                f"{_PREFIX}PROXY_NAME_HEADER, {_PREFIX}PROXY_GROUPS_HEADER and "
                f"{_PREFIX}PROXY_AGENTS_HEADER must be names of different headers"
            )

    def _sign_in_agrees(self) -> None:
        signs_in = self.security_protocol.startswith("SASL")
        with_token = self.sasl_mechanism == "OAUTHBEARER"
        if signs_in and with_token and self.sasl_token_file is None:
            raise ValueError(f"{_PREFIX}SASL_MECHANISM=OAUTHBEARER needs {_PREFIX}SASL_TOKEN_FILE")
        if self._with_aws and self.security_protocol != "SASL_SSL":
            raise ValueError(
                f"{_PREFIX}SASL_MECHANISM=AWS_MSK_IAM needs {_PREFIX}SECURITY_PROTOCOL=SASL_SSL"
            )
        password = self.sasl_password.get_secret_value() if self.sasl_password else ""
        by_name = signs_in and not with_token and not self._with_aws
        if by_name and not (self.sasl_username and password):
            raise ValueError(
                f"{_PREFIX}SECURITY_PROTOCOL={self.security_protocol} needs "
                f"{_PREFIX}SASL_USERNAME and {_PREFIX}SASL_PASSWORD"
            )
        if self._with_aws and (self.sasl_username or password):
            raise ValueError(
                f"{_PREFIX}SASL_MECHANISM=AWS_MSK_IAM signs in with AWS credentials, not with "
                f"{_PREFIX}SASL_USERNAME and {_PREFIX}SASL_PASSWORD"
            )
        if self.sasl_password and not signs_in:
            raise ValueError(
                f"{_PREFIX}SASL_PASSWORD is set but {_PREFIX}SECURITY_PROTOCOL is "
                f"{self.security_protocol}; set it to SASL_SSL"
            )
        if self.sasl_token_file and not (signs_in and with_token):
            raise ValueError(
                f"{_PREFIX}SASL_TOKEN_FILE is set; it needs {_PREFIX}SECURITY_PROTOCOL=SASL_SSL "
                f"and {_PREFIX}SASL_MECHANISM=OAUTHBEARER"
            )

    @property
    def deadlines(self) -> Deadlines:
        """Time limits, which the environment does not set."""
        return self._deadlines

    def within(self, **deadlines: float) -> Self:
        """Return the same settings with these deadlines."""
        made = self.model_copy()
        made._deadlines = replace(self._deadlines, **deadlines)  # noqa: SLF001  (of its own class)
        return made

    @property
    def _with_aws(self) -> bool:
        return self.sasl_mechanism == "AWS_MSK_IAM"

    @property
    def principal(self) -> str:
        """Return the principal that brokers see in ACLs, as far as the settings tell."""
        if self.sasl_token_file:
            return f"the subject of {self.sasl_token_file}"
        if self._with_aws:
            return "the AWS identity of this process"
        if self.security_protocol.startswith("SASL"):
            return f"User:{self.sasl_username}"
        if self.ssl_certfile:
            return f"the subject of {self.ssl_certfile}"
        return "User:ANONYMOUS"

    @property
    def embedded_path(self) -> Path | None:
        """The file of the embedded log; None: the log is Kafka."""
        return _embedded_path(self.log)

    def hosts(self, *bound: str | None) -> Hosts:
        """Return the hosts accepted by a server of this process that listens at `bound`."""
        return parse_hosts(self.gateway_hosts).also(*bound)

    def kafka(self) -> dict[str, Any]:
        """Return keyword arguments for every aiokafka client.

        Raises: ConfigError — no broker is set, a certificate cannot be read, or a library is not
        installed.
        """
        if not self.bootstrap_servers:
            raise ConfigError(
                "SF1002",
                f"no Kafka to connect to; set {_PREFIX}BOOTSTRAP_SERVERS=host:port, or "
                f"{_PREFIX}LOG=sqlite:///runs.db for the embedded log, or use `surefoot dev`, "
                "which starts a broker",
            )
        common: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": f"{self.app}-{self.instance}",
            "security_protocol": self.security_protocol,
        }
        if self.security_protocol.endswith("SSL"):
            common["ssl_context"] = self._ssl_context()
        if self.security_protocol.startswith("SASL"):
            common["sasl_mechanism"] = "OAUTHBEARER" if self._with_aws else self.sasl_mechanism
        if self._with_aws:
            common["sasl_oauth_token_provider"] = AwsIamToken(self.aws_region)
        elif self.sasl_token_file:
            common["sasl_oauth_token_provider"] = TokenFile(self.sasl_token_file)
        elif self.sasl_password:
            common["sasl_plain_username"] = self.sasl_username
            common["sasl_plain_password"] = self.sasl_password.get_secret_value()
        return common

    @property
    def compression_type(self) -> str | None:
        """Return `compression` as aiokafka's producers take it."""
        return None if self.compression == "none" else self.compression

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            return client_context(
                self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile, self._key_password
            )
        except OSError as error:  # includes ssl.SSLError
            raise ConfigError(
                "SF1003",
                f"cannot use the certificates of {_PREFIX}SSL_CAFILE, {_PREFIX}SSL_CERTFILE and "
                f"{_PREFIX}SSL_KEYFILE: {error}",
            ) from error

    def _key_password(self) -> str:
        """Return the key's password; OpenSSL would otherwise prompt for it at the terminal."""
        if self.ssl_key_password is None:
            raise ConfigError(
                "SF1003",
                f"{_PREFIX}SSL_KEYFILE is encrypted; set {_PREFIX}SSL_KEY_PASSWORD",
            )
        return self.ssl_key_password.get_secret_value()

    def webhook_secrets(self) -> dict[str, list[str]]:
        """Return secrets by webhook source, from SUREFOOT_WEBHOOK_<SOURCE>_SECRET.

        Commas separate secrets that are valid at the same time, during a rotation. An empty entry
        is kept, so that the gateway can refuse it.
        """
        return _secrets(_WEBHOOK_SECRET, os.environ)

    def hook_secrets(self) -> dict[str, list[str]]:
        """Return secrets by subscription, from SUREFOOT_HOOK_<NAME>_SECRET, also comma-separated.

        An empty variable counts as unset."""
        found = _secrets(_HOOK_SECRET, os.environ)
        return {hook: given for hook, given in found.items() if given != [""]}


def _embedded_path(log: str | None) -> Path | None:
    if log is None or log == "kafka":
        return None
    match = _SQLITE.fullmatch(log)
    if match is None:
        raise ValueError(
            f"{_PREFIX}LOG must be `kafka` or a file: sqlite:///runs.db (relative to the working "
            f"directory) or sqlite:////var/lib/runs.db; got {log!r}"
        )
    return Path(match[1])


def _secrets(variable: re.Pattern[str], environ: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in environ.items():
        if match := variable.fullmatch(name):
            source = match[1].lower().replace("_", "-")
            found[source] = [secret.strip() for secret in value.split(",")]
    return found


def load_settings(**overrides: Any) -> Settings:
    """Load the settings of the environment; `overrides` (the command line's options) win.

    Sets how the whole process treats lone surrogates in texts from then on.

    Raises: ConfigError — names the variable that is wrong, never its value.
    """
    try:
        made = Settings(**overrides)
    except ValidationError as error:
        raise ConfigError("SF1001", "; ".join(_told(item) for item in error.errors())) from None
    refuse_halves(made.lone_surrogates == "strict")
    return made


def _told(item: Any) -> str:
    names = "_".join(str(part) for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"{_PREFIX}{names.upper()}: {message}" if names else message
