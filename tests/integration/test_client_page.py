"""The code of docs/how-to/client.md, on a gateway of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from pathlib import Path
from typing import Any

from tests.integration.test_cli_end_to_end import ROOT, Cli
from tests.integration.test_embedded_cli import cli, port, serve

__all__ = ["cli", "port"]


def test_the_page_does_what_it_says(cli: Cli, port: int, tmp_path: Path) -> None:
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
    service = serve(cli, "shop.py")
    url = f"http://127.0.0.1:{port}"
    wanted = page_code.Receipt(item="tea", bought=True)
    assert asyncio.run(page_code.order_tea(url)) == wanted
    assert asyncio.run(page_code.too_late(url)) == "too_late"
    assert service.stop() == 0
