"""`python -m tests.simulation`; see docs/reliability.md."""

from __future__ import annotations

import gc
import os
import sys
import time

from tests.simulation.world import Life, told_of

if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    gc.disable()
    began = time.monotonic()
    simulated = 0.0
    for seed in range(first, first + count):
        life = Life(seed)
        wrong = life.live()
        simulated += life.simulated_s
        if wrong:
            print(told_of(life))
            print("\n  ".join(["", *wrong[:6]]))
    took = time.monotonic() - began
    print(f"{count} seeds, {took:.1f} s, {simulated / 3600:.2f} simulated hours")
    sys.stdout.flush()
    os._exit(0)
