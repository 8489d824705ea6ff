"""The deadlines that the product gives to people's requests, as long as a busy machine needs.

A gateway answers 503 or 202 when the log takes longer than a person would wait. Under a test that
is no finding: it says how much else the machine had to do. A test of a deadline sets its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import pytest

from surefoot.infra.runtime.deadlines import Deadlines

LONG_S = 60.0

#: settings of a cluster in which nobody dies: no stall of the machine looks like a death
PATIENT = {
    "producer_request_timeout_ms": 60_000,
    "transaction_timeout_ms": 90_000,
    "session_timeout_ms": 120_000,
    "rebalance_timeout_ms": 180_000,
}
#: the same where a topic is named that there is not: it is looked for as long as a request may take
PATIENT_WITHOUT_A_TOPIC = PATIENT | {"producer_request_timeout_ms": 4_000}


#: all of them
PATIENT_DEADLINES = {field.name: LONG_S for field in fields(Deadlines)} | {"restore_s": 2 * LONG_S}


@contextmanager
def patience() -> Iterator[None]:
    """Of whatever reads its settings in this process while it lasts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deadlines.__init__, "__kwdefaults__", PATIENT_DEADLINES)
        yield
