"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from surefoot.infra.runtime.loader import load_agents

ROOT = Path(__file__).parents[3]


def test_the_agent_of_the_readme_loads_and_is_about_thirty_lines(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = tmp_path / "agent.py"
    path.write_text(code)
    (agent,) = load_agents([path])
    assert agent.name == "triage"
    assert agent.start_step.name == "classify"
    assert len(code.splitlines()) <= 40
