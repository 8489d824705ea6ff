"""What stands in the way of a whole installation on one machine."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from surefoot.infra.local.stack import require_free
from surefoot.state.errors import ConfigError


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who listens")
def test_a_port_that_is_taken_is_told_with_whoever_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} .*: process {os.getpid()}, .*python"):
            require_free("127.0.0.1", port)
    require_free("127.0.0.1", port)
