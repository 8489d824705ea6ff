"""Exit statuses, as docs/operations.md and `surefoot --help` list them."""

from __future__ import annotations

EXIT_CLEAN = 0
#: the demo's audit found a fault
EXIT_FAULT = 1
#: wrong usage, settings, topics or agents
EXIT_CONFIG = 2
#: work was given up at the drain deadline; it is run again
EXIT_GAVE_UP = 3
#: Kafka, or what else is needed, cannot be reached
EXIT_UNAVAILABLE = 69
#: the process was stuck, or did not end in time
EXIT_STUCK = 70
#: Kafka denied a right until the retries ran out
EXIT_DENIED = 77
EXIT_INTERRUPTED = 130
