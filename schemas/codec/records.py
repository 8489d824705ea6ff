"""The records of avro/ as the codec returns them: one TypedDict per schema, the same fields.

The codec has checked a decoded record against its schema, so these types hold at run time. A `str`
whose values the schema only describes, such as the kind of an entry, may be any text.
"""

from __future__ import annotations

from typing import Literal, TypedDict

AvroStatus = Literal[
    "pending", "running", "waiting", "paused", "attention", "completed", "failed", "cancelled"
]


class AvroFailure(TypedDict):
    code: str
    message: str
    kind: str
    step: str | None
    attempt: int
    frames: list[str]


class AvroAmount(TypedDict):
    what: str
    amount: int


class AvroBranch(TypedDict):
    agent: str
    step: str | None
    payload: bytes


class AvroWait(TypedDict):
    kind: str
    since_ms: int
    then: str | None
    on_timeout: str | None
    names: list[str]
    mode: str
    need: int
    question: str | None
    by: list[str]
    fork: int
    limit: int
    branches: list[AvroBranch]


class AvroPlanItem(TypedDict):
    id: str
    text: str
    state: str


class AvroDecided(TypedDict):
    question: str
    approved: int
    by: str | None
    at_ms: int


class AvroMemory(TypedDict):
    plan: list[AvroPlanItem]
    thread: int
    spent: list[AvroAmount]
    granted: list[AvroAmount]
    decided: list[AvroDecided]


class AvroParent(TypedDict):
    agent: str
    run_id: str
    fork: int
    branch: int


class AvroAction(TypedDict):
    run_id: str
    step: str
    call: str
    digest: bytes


class AvroHeader(TypedDict):
    name: str
    value: str


class AvroRunName(TypedDict):
    agent: str
    run_id: str


class AvroTask(TypedDict):
    run_id: str
    seq: int
    step: str


class AvroApplied(TypedDict):
    commands: int | None
    tasks: int | None
    answered: list[int]
    answered_tasks: list[int]


class AvroEntry(TypedDict):
    run_id: str
    slot: str
    kind: str
    seq: int
    epoch: int
    digest: bytes | None
    value: bytes | None
    failure: AvroFailure | None
    id: str | None
    name: str | None
    by: str | None
    cost: list[AvroAmount]
    at_ms: int


class AvroCheckpoint(TypedDict):
    run_id: str
    agent: str
    version: int
    status: AvroStatus
    seq: int
    step: str
    attempt: int
    payload: bytes
    due_ms: int | None
    result: bytes | None
    failure: AvroFailure | None
    created_ms: int
    updated_ms: int
    input_digest: bytes
    records: int
    traceparent: str | None
    tracestate: str | None
    baggage: str | None
    epoch: int
    emit: int
    forks: int
    wait: AvroWait | None
    carry: bytes | None
    parent: AvroParent | None
    memory: AvroMemory | None
    ending: AvroStatus | None
    reason: AvroFailure | None
    commands: list[str]


class AvroCommand(TypedDict):
    run_id: str
    kind: str
    step: str | None
    payload: bytes
    sent_ms: int
    traceparent: str | None
    tracestate: str | None
    baggage: str | None
    id: str | None
    name: str | None
    by: str | None
    parent: AvroParent | None
    carry: bytes | None
    memory: AvroMemory | None
    messages: list[bytes]
    failure: AvroFailure | None
    seq: int | None
    epoch: int | None
    emit: int
    wait: AvroWait | None
    due_ms: int | None
    created_ms: int | None
    input_digest: bytes | None
    repeat: list[str]
    actions: list[AvroAction]


class AvroEvent(TypedDict):
    run_id: str
    agent: str
    version: int
    type: str
    status: AvroStatus
    seq: int
    step: str | None
    next_step: str | None
    attempt: int
    at_ms: int
    started_ms: int | None
    due_ms: int | None
    effects: list[str]
    result: bytes | None
    failure: AvroFailure | None
    epoch: int
    id: str | None
    name: str | None
    by: str | None
    payload: bytes | None
    carry: bytes | None
    memory: AvroMemory | None
    wait: AvroWait | None
    children: int


class AvroStream(TypedDict):
    run_id: str
    name: str
    seq: int
    attempt: int
    kind: str
    offset: int
    text: str
    at_ms: int


class AvroAccessToken(TypedDict):
    name: str
    role: str
    agents: list[str]
    digest: bytes
    created_ms: int
    expires_ms: int | None


class AvroAudit(TypedDict):
    id: str
    at_ms: int
    who: str | None
    action: str
    status: int
    agent: str | None
    run_id: str | None
    origin: str | None
    note: str | None
    unrecorded: int


class AvroDelivery(TypedDict):
    id: str
    source: str
    at_ms: int
    outcome: str
    status: int
    reason: str | None
    verified: int
    delivery: str | None
    event: str | None
    headers: list[AvroHeader]
    body: bytes | None
    body_bytes: int
    runs: list[AvroRunName]
    errors: list[str]
    unrecorded: int


class AvroSealed(TypedDict):
    key: str
    nonce: bytes
    shown: bytes
    sealed: bytes
