"""`surefoot tokens`: what the command itself decides, on an embedded log."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from surefoot.cli import app as surefoot
from surefoot.commands.accounts import tokens


def no_entry_for_the_user() -> str:
    raise KeyError("getpwuid(): uid not found: 10001")  # Python 3.13 and later: OSError


def test_a_user_without_a_name_may_create_a_token_as_in_a_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tokens, "getuser", no_entry_for_the_user)
    monkeypatch.setenv("SUREFOOT_LOG", f"sqlite:///{tmp_path}/runs.db")
    created = CliRunner().invoke(surefoot, ["tokens", "create", "ann", "--role", "admin"])
    assert created.exit_code == 0, created.output
    told = CliRunner().invoke(surefoot, ["audit", "--json"])
    (entry,) = map(json.loads, told.stdout.splitlines())
    assert entry["who"] == f"user {os.getuid()} (command line)"
