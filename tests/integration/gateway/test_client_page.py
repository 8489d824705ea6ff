"""The code of docs/how-to/client.md, on a gateway of its own."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from surefoot.infra.runtime.loader import load_agents
from surefoot.infra.runtime.settings import load_settings
from tests.integration.cli.test_cli_end_to_end import ROOT
from tests.support.hostile_dashboard import served_desk


async def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "client.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    agent, program = tmp_path / "shop.py", tmp_path / "program.py"
    agent.write_text(blocks[0])
    program.write_text(blocks[1])
    spec = importlib.util.spec_from_file_location("client_page", program)
    assert spec is not None
    assert spec.loader is not None
    page_code: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page_code)
    settings = load_settings(log=f"sqlite:///{tmp_path}/runs.db", partitions=2, gateway_port=0)
    (shop,) = load_agents([agent])
    async with served_desk(settings, shop) as client:
        url = str(client.base_url)
        wanted = page_code.Receipt(item="tea", bought=True)
        assert await page_code.order_tea(url) == wanted
        assert await page_code.too_late(url) == "too_late"
