"""The runbooks: each diagnosis and each alert has one, and each command in them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from surefoot.cli import app
from surefoot.state.diagnosis.findings import RUNBOOKS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "runbooks.md").read_text()
ALERTS = ROOT / "infra" / "prometheus" / "alerts.yml"


def sections() -> dict[str, str]:
    """Text by anchor."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)[1:]
    return {
        title.lower().replace(" ", "-"): text
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def commands() -> list[list[str]]:
    """The surefoot commands of the page, word by word."""
    return [line.split() for line in re.findall(r"^ *\$ surefoot (.+)$", PAGE, re.MULTILINE)]


@pytest.mark.parametrize("code", RUNBOOKS)
def test_a_diagnosis_is_told_in_its_runbook(code: str) -> None:
    assert f"`{code}`" in sections()[RUNBOOKS[code]]  # type: ignore[index]


def test_there_are_ten_and_each_says_what_one_sees_and_types_and_how_one_knows() -> None:
    incidents = {anchor: text for anchor, text in sections().items() if "From an alert" not in text}
    incidents.pop("from-an-alert-to-its-runbook")
    assert len(incidents) == 10
    for anchor, text in incidents.items():
        for part in ("- **You see** ", "- **Type**", "- **It helped** "):
            assert text.count(part) == 1, (anchor, part)


def test_every_alert_leads_to_a_runbook_and_no_other_is_named() -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    named = re.findall(r"`(Surefoot\w+)`", PAGE)
    table = sections()["from-an-alert-to-its-runbook"]
    assert {rule["alert"] for rule in rules} == set(named)
    assert set(re.findall(r"`(Surefoot\w+)`", table)) == set(named)
    for anchor in re.findall(r"\]\(#([^)]+)\)", PAGE):
        assert anchor in sections()


def test_every_command_exists() -> None:
    assert len(commands()) > 15
    for words in commands():
        command = get_command(app)
        while words and (children := getattr(command, "commands", None)):
            name = words.pop(0)
            assert name in children, f"surefoot has no {name}"
            command = children[name]
        options = {option for each in command.params for option in each.opts}
        assert {word for word in words if word.startswith("--")} <= options
