import asyncio
import os
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from surefoot.infra.runtime.deadlines import Deadlines
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.errors import ConfigError
from tests.support.long_deadlines import LONG_S, patience

PASSWORD = "hunter2-hunter2-hunter2"


@pytest.fixture(autouse=True)
def only_our_environment(monkeypatch):
    for name in os.environ:
        if name.startswith("SUREFOOT_"):
            monkeypatch.delenv(name)


def test_the_environment_is_read(monkeypatch):
    monkeypatch.setenv("SUREFOOT_BOOTSTRAP_SERVERS", "kafka:9092")
    monkeypatch.setenv("SUREFOOT_PARTITIONS", "12")
    settings = load_settings()
    assert settings.kafka()["bootstrap_servers"] == "kafka:9092"
    assert settings.partitions == 12


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("SUREFOOT_PARTITIONS", "")
    assert load_settings().partitions == 6


def test_the_command_line_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("SUREFOOT_GATEWAY_PORT", "1111")
    assert load_settings(gateway_port=2222).gateway_port == 2222


def test_the_gateway_listens_on_loopback_unless_told_otherwise():
    assert load_settings().gateway_host == "127.0.0.1"


@pytest.mark.parametrize(
    ("log", "path"),
    [
        (None, None),
        ("kafka", None),
        ("sqlite:///runs.db", Path("runs.db")),
        ("sqlite:////var/lib/runs.db", Path("/var/lib/runs.db")),
    ],
)
def test_the_log_is_kafkas_or_a_file(monkeypatch, log, path):
    monkeypatch.setenv("SUREFOOT_LOG", log or "")
    assert load_settings().embedded_path == path


def test_the_log_that_is_named_holds_where_kafka_is_named_too(monkeypatch):
    monkeypatch.setenv("SUREFOOT_LOG", "sqlite:///runs.db")
    monkeypatch.setenv("SUREFOOT_BOOTSTRAP_SERVERS", "kafka:9092")
    assert load_settings().embedded_path == Path("runs.db")


@pytest.mark.parametrize(
    "log",
    [
        "postgres://db",
        "runs.db",
        "sqlite://runs.db",
        "sqlite:///",
        "sqlite:///folder/",
        "KAFKA",
        "sqlite:///:memory:",
    ],
)
def test_a_log_that_is_neither_is_refused_with_what_to_write(monkeypatch, log):
    monkeypatch.setenv("SUREFOOT_LOG", log)
    with pytest.raises(ConfigError, match=r"SUREFOOT_LOG must be `kafka` or .*sqlite:///runs\.db"):
        load_settings()


def test_without_a_broker_the_error_names_the_variable():
    with pytest.raises(ConfigError, match="SUREFOOT_BOOTSTRAP_SERVERS"):
        load_settings().kafka()


def test_a_wrong_value_is_named_by_its_variable(monkeypatch):
    monkeypatch.setenv("SUREFOOT_PARTITIONS", "0")
    with pytest.raises(ConfigError, match="SUREFOOT_PARTITIONS"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer_request_timeout_ms", 10_000),
        ("transaction_timeout_ms", 15_000),
        ("session_timeout_ms", 30_000),
        ("heartbeat_interval_ms", 5_000),
    ],
)
def test_timeouts_that_must_nest_are_refused_when_they_do_not(name, value):
    with pytest.raises(ConfigError, match=f"SUREFOOT_{name.upper()}.*must be less than"):
        load_settings(**{name: value})


def test_a_name_that_cannot_be_part_of_a_topic_is_refused():
    with pytest.raises(ConfigError, match="SUREFOOT_APP"):
        load_settings(app="a.b/c")


def sasl(**more: object) -> Settings:
    return load_settings(
        bootstrap_servers="kafka:9093",
        sasl_username="surefoot",
        sasl_password=PASSWORD,
        **{"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", **more},
    )


def test_sasl_over_tls_reaches_the_client():
    kafka = sasl().kafka()
    assert kafka["security_protocol"] == "SASL_SSL"
    assert kafka["sasl_mechanism"] == "SCRAM-SHA-512"
    assert kafka["sasl_plain_username"] == "surefoot"
    assert kafka["sasl_plain_password"] == PASSWORD
    assert kafka["ssl_context"].check_hostname


def test_no_secret_shows_in_what_is_printed_or_dumped():
    settings = sasl()
    assert PASSWORD not in f"{settings!r} {settings!s} {settings.model_dump()}"
    assert PASSWORD not in settings.model_dump_json()


def test_no_secret_shows_in_an_error():
    with pytest.raises(ConfigError) as caught:
        load_settings(sasl_password=PASSWORD)
    assert PASSWORD not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert "SUREFOOT_SECURITY_PROTOCOL" in str(caught.value)


def test_no_secret_shows_in_the_library_s_own_error():
    with pytest.raises(ValidationError) as caught:
        Settings(sasl_password=SecretStr(PASSWORD), partitions=0)
    with pytest.raises(ValidationError) as of_the_whole:
        Settings.model_validate({"sasl_password": PASSWORD})
    assert PASSWORD not in f"{caught.value} {of_the_whole.value}"


def test_sasl_without_a_password_is_refused():
    with pytest.raises(ConfigError, match="SUREFOOT_SASL_PASSWORD"):
        load_settings(security_protocol="SASL_SSL", sasl_username="surefoot")


def test_a_password_is_never_sent_without_sasl():
    with pytest.raises(ConfigError, match="SUREFOOT_SECURITY_PROTOCOL"):
        sasl(security_protocol="PLAINTEXT")


def test_a_token_is_read_for_each_sign_in(tmp_path):
    file = tmp_path / "token"
    kafka = sasl(sasl_mechanism="OAUTHBEARER", sasl_token_file=file).kafka()
    provider = kafka["sasl_oauth_token_provider"]
    with pytest.raises(OSError, match="SUREFOOT_SASL_TOKEN_FILE cannot be read"):
        asyncio.run(provider.token())
    for token in ("first", "second"):
        file.write_text(f"{token}\n")
        assert asyncio.run(provider.token()) == token
    file.write_text("\n")
    with pytest.raises(OSError, match="an empty file"):
        asyncio.run(provider.token())


def test_a_token_and_its_mechanism_need_each_other():
    with pytest.raises(ConfigError, match="needs SUREFOOT_SASL_TOKEN_FILE"):
        sasl(sasl_mechanism="OAUTHBEARER")
    with pytest.raises(ConfigError, match="SUREFOOT_SASL_MECHANISM=OAUTHBEARER"):
        sasl(sasl_token_file="/token")
    with pytest.raises(ConfigError, match="SUREFOOT_SECURITY_PROTOCOL=SASL_SSL"):
        load_settings(sasl_mechanism="OAUTHBEARER", sasl_token_file="/token")


def test_certificates_without_tls_are_refused():
    with pytest.raises(ConfigError, match="SUREFOOT_SECURITY_PROTOCOL"):
        load_settings(ssl_cafile="/ca.pem")


def test_a_client_certificate_needs_its_key():
    with pytest.raises(ConfigError, match="SUREFOOT_SSL_KEYFILE"):
        load_settings(security_protocol="SSL", ssl_certfile="/client.pem")


def test_a_certificate_that_cannot_be_read_is_a_start_up_error(tmp_path):
    settings = load_settings(
        bootstrap_servers="kafka:9093", security_protocol="SSL", ssl_cafile=tmp_path / "no.pem"
    )
    with pytest.raises(ConfigError, match="SUREFOOT_SSL_CAFILE"):
        settings.kafka()


def test_webhook_secrets_are_listed_by_source_and_an_empty_one_is_kept(monkeypatch):
    monkeypatch.setenv("SUREFOOT_WEBHOOK_GITHUB_SECRET", "new-secret , ,old-secret")
    monkeypatch.setenv("SUREFOOT_WEBHOOK_MY_SHOP_SECRET", "")
    assert load_settings().webhook_secrets() == {
        "github": ["new-secret", "", "old-secret"],
        "my-shop": [""],
    }


def service_links(service: str, port: int) -> dict[str, str]:
    """What Kubernetes puts into every container of the service's namespace."""
    name, url = service.upper().replace("-", "_"), f"tcp://10.0.0.1:{port}"
    link = f"{name}_PORT_{port}_TCP"
    return {
        f"{name}_SERVICE_HOST": "10.0.0.1",
        f"{name}_SERVICE_PORT": str(port),
        f"{name}_SERVICE_PORT_HTTP": str(port),
        f"{name}_PORT": url,
        link: url,
        f"{link}_PROTO": "tcp",
        f"{link}_PORT": str(port),
        f"{link}_ADDR": "10.0.0.1",
    }


def names_of_services() -> set[str]:
    """Those whose variables begin as a setting does, and those of our processes."""
    words = [field.split("_") for field in Settings.model_fields]
    parts = {"-".join(each[:length]) for each in words for length in range(len(each) + 1)}
    return {f"surefoot-{part}".rstrip("-") for part in parts | {"worker", "relay", "serve"}}


def test_services_of_kubernetes_set_nothing(monkeypatch):
    before = load_settings()
    services = names_of_services()
    assert {"surefoot", "surefoot-gateway", "surefoot-worker", "surefoot-metrics"} <= services
    for service in services:
        for variable, value in service_links(service, 8787).items():
            monkeypatch.setenv(variable, value)
    assert load_settings() == before
    assert load_settings(gateway_port=9000).gateway_port == 9000
    assert (before.webhook_secrets(), before.hook_secrets()) == ({}, {})


@pytest.mark.parametrize("value", ["tcp:", "http://10.0.0.1:8787", "8787/tcp"])
def test_a_port_that_is_none_is_refused_all_the_same(monkeypatch, value):
    monkeypatch.setenv("SUREFOOT_GATEWAY_PORT", value)
    with pytest.raises(ConfigError, match="SUREFOOT_GATEWAY_PORT"):
        load_settings()


def test_what_the_relay_may_reach_is_checked_at_the_start(monkeypatch):
    assert load_settings().out_allow == ""
    monkeypatch.setenv("SUREFOOT_OUT_ALLOW", "billing.internal,10.0.0.0/33")
    with pytest.raises(ConfigError, match=r"SUREFOOT_OUT_ALLOW: '10\.0\.0\.0/33' must be a name"):
        load_settings()


def test_a_deadline_comes_with_the_settings_and_not_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUREFOOT_DEADLINES", '{"read_s": 1.0}')
    made = load_settings(app="shop")
    hasty = made.within(read_s=0.5)
    assert made.deadlines == Deadlines()
    assert hasty.deadlines == Deadlines(read_s=0.5)
    assert hasty.app == "shop"
    with patience():
        assert load_settings().deadlines.read_s == LONG_S
    assert load_settings().deadlines == Deadlines()
