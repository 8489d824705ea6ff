"""What an import does not do."""

from __future__ import annotations

import subprocess
import sys

#: imports every module, with an audit hook that ends the process at the first use of a network
CODE = """
import importlib, os, pkgutil, sys

def hook(event, args):
    if event.startswith("socket.") and event not in ("socket.__new__", "socket.gethostname"):
        print(event, file=sys.stderr, flush=True)
        os._exit(1)

sys.addaudithook(hook)
import surefoot
found = ["surefoot"]
for each in pkgutil.walk_packages(surefoot.__path__, "surefoot."):
    if each.name != "surefoot.__main__":
        importlib.import_module(each.name)
        found.append(each.name)
print(len(found))
"""


def test_no_module_uses_a_network_when_it_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300
