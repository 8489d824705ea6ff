"""A secured broker for the modules here that want one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.secured_broker import Secured, secured_broker


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker
