"""The documents name what there is."""

from __future__ import annotations

import re
from pathlib import Path

from surefoot.infra.runtime.settings import Settings
from surefoot.state.steps.effects import EFFECT_KINDS

ROOT = Path(__file__).parents[3]


def test_every_setting_is_told_with_its_default() -> None:
    table = (ROOT / "docs" / "operations.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("| `SUREFOOT_")]
    for name, field in Settings.model_fields.items():
        variable = f"SUREFOOT_{name.upper()}"
        row = next((line for line in rows if f"`{variable}`" in line), None)
        assert row is not None, f"{variable} is not in docs/operations.md"
        default = field.default
        if isinstance(default, int | str) and default != "":
            assert f"`{default}`" in row, f"{variable}: the default is {default}"


def test_links_between_the_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_glossary_has_each_word_once_and_in_order() -> None:
    rows = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    words = [row.split("|")[1].strip() for row in rows if row.startswith("| ")][1:]
    assert "outbox" in words
    assert words == sorted(set(words))


def test_each_kind_of_effect_is_told_with_its_attempts() -> None:
    page = (ROOT / "docs" / "how-to" / "effects.md").read_text()
    for kind in EFFECT_KINDS:
        assert f"| `{kind.step}` | {kind.retry.attempts} |" in page
