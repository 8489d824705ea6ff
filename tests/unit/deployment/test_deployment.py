"""What deploys Surefoot fits what it deploys: commands, settings, versions, deadlines, files."""

from __future__ import annotations

import json
import re
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from surefoot import __version__
from surefoot.cli import app
from surefoot.infra.broker.docker import default_image
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.infra.runtime.supervisor import DRAIN_GRACE_S

INFRA = Path(__file__).parents[3] / "infra"
DOCKER, HELM = INFRA / "docker", INFRA / "helm" / "surefoot"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
OURS = {
    name: service
    for name, service in COMPOSE["services"].items()
    if service["image"] == "surefoot:local" and "command" in service
}
UNITS = sorted((INFRA / "systemd").glob("*.service"))
#: secrets have a variable for each name
NAMED = re.compile(r"SUREFOOT_(WEBHOOK|HOOK)_<[A-Z]+>_SECRET")


def commands() -> set[str]:
    group: Any = get_command(app)
    return set(group.commands)


def settings_of(text: str) -> set[str]:
    return set(re.findall(r"SUREFOOT_[A-Z_]+\b", NAMED.sub("", text)))


def unit(path: Path) -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = lambda name: name  # type: ignore[method-assign,assignment]
    parser.read(path)
    return parser


def test_every_variable_is_a_setting() -> None:
    known = {f"SUREFOOT_{name.upper()}" for name in Settings.model_fields}
    files = [*DOCKER.rglob("*"), *HELM.rglob("*"), *UNITS]
    texts = {str(path): path.read_text() for path in files if path.is_file()}
    unknown = {path: settings_of(text) - known for path, text in texts.items()}
    assert not {path: names for path, names in unknown.items() if names}


def test_every_process_is_a_command_of_ours() -> None:
    composed = {service["command"][0] for service in OURS.values()}
    by_systemd = {unit(path)["Service"]["ExecStart"].split()[1] for path in UNITS}
    charted = set(re.findall(r'"args" \(list "(\w+)"', "".join(map(Path.read_text, templates()))))
    processes = {"gateway", "worker", "relay", "trigger", "views", "archive"}
    assert by_systemd == processes
    assert composed == charted == processes | {"topics"}
    assert processes <= commands()


def templates() -> list[Path]:
    return sorted((HELM / "templates").glob("*"))


def test_nothing_is_killed_while_it_drains() -> None:
    drain_s = load_settings().drain_timeout_s
    for name, service in OURS.items():
        if "environment" in service:
            told_s = float(service["environment"].get("SUREFOOT_DRAIN_TIMEOUT_S", drain_s))
            assert float(service["stop_grace_period"].removesuffix("s")) > told_s + DRAIN_GRACE_S, (
                name
            )
    for path in UNITS:
        assert float(unit(path)["Service"]["TimeoutStopSec"]) > drain_s + DRAIN_GRACE_S, path
    pod = (HELM / "templates" / "_helpers.tpl").read_text()
    (added,) = re.findall(
        r"terminationGracePeriodSeconds: \{\{ add .root.Values.drainSeconds (\d+)", pod
    )
    (before_s,) = re.findall(r'preStop: \{exec: \{command: \[sleep, "(\d+)"\]', pod)
    assert int(added) > DRAIN_GRACE_S + int(before_s)


def test_the_chart_knows_every_value_and_refuses_others() -> None:
    schema = json.loads((HELM / "values.schema.json").read_text())
    values = yaml.safe_load((HELM / "values.yaml").read_text())

    def differences(of: dict[str, Any], given: Any, at: str) -> list[str]:
        if "$ref" in of:
            of = schema["definitions"][of["$ref"].rpartition("/")[2]]
        if of.get("additionalProperties") is not False:
            return []
        known = of["properties"]
        return [f"{at}.{name}" for name in given.keys() - known.keys()] + [
            fault
            for name, value in given.items()
            if name in known
            for fault in differences(known[name], value, f"{at}.{name}")
        ]

    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() - {"global"} == values.keys()
    assert differences(schema, values, "") == []


def test_versions_agree() -> None:
    assert COMPOSE["services"]["kafka-1"]["image"] == default_image()
    chart = yaml.safe_load((HELM / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_no_registry_is_named() -> None:
    images = [service["image"] for service in COMPOSE["services"].values()]
    images += re.findall(r"^ARG BASE=(.*)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    images.append(yaml.safe_load((HELM / "values.yaml").read_text())["image"]["repository"])
    for image in images:
        assert not re.search(r"[.:]", image.partition("/")[0]) or "/" not in image, image


def test_every_mounted_file_is_there() -> None:
    mounted = [
        volume.split(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith(".")
    ]
    assert len(mounted) == 5
    assert [path for path in mounted if not (DOCKER / path).resolve().is_file()] == []


def test_a_gateway_that_others_reach_asks_for_accounts() -> None:
    assert OURS["gateway"]["environment"]["SUREFOOT_AUTH"] == "tokens"
    assert OURS["topics"]["environment"]["SUREFOOT_AUTH"] == "tokens"  # it makes their topics
    values = yaml.safe_load((HELM / "values.yaml").read_text())
    assert values["settings"]["SUREFOOT_AUTH"] == "tokens"


def test_every_process_is_scraped() -> None:
    scraped = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert set(job["dns_sd_configs"][0]["names"]) == OURS.keys() - {"topics"}


def test_the_processes_have_no_more_rights_than_they_need() -> None:
    for service in OURS.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert re.search(r"^USER 10001:10001$", dockerfile, re.MULTILINE)
    assert 'ENTRYPOINT ["surefoot"]' in dockerfile  # no shell between it and SIGTERM
    assert "--require-hashes" in dockerfile
    pod = (HELM / "templates" / "_helpers.tpl").read_text()
    for wanted in (
        "enableServiceLinks: false",
        "readOnlyRootFilesystem: true",
        "runAsNonRoot: true",
    ):
        assert wanted in pod


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_leaves_what_no_restart_helps(path: Path) -> None:
    service = unit(path)["Service"]
    assert service["RestartPreventExitStatus"].split() == ["2", "77"]
    assert service["KillMode"] == "mixed"


def test_what_is_installed_is_locked_and_the_same_as_is_tested() -> None:
    def pinned(path: Path) -> set[str]:
        return set(re.findall(r"^[a-z0-9._-]+==[^ ]+", path.read_text(), re.MULTILINE))

    tested = pinned(INFRA.parent / "requirements-dev.lock")
    installed = pinned(DOCKER / "requirements.lock")
    assert installed
    assert installed <= tested
