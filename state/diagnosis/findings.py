"""A diagnosis, its runbook, and what an examination comes to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

DiagnosisCode = Literal[
    "broker_missing",
    "no_leader",
    "under_min_isr",
    "disk_full",
    "disk_failed",
    "transaction_hangs",
    "topics_wrong",
    "nobody_works",
    "nobody_listens",
    "commands_wait",
    "steps_wait",
    "offsets_lost",
    "inputs_dead",
    "runs_fail",
    "runs_parked",
    "runs_held",
    "effects_failed",
    "effects_retried",
    "strangers",
]

#: the section of docs/how-to/runbooks.md
RUNBOOKS: dict[DiagnosisCode, str] = {
    "broker_missing": "a-broker-is-lost",
    "no_leader": "too-few-replicas-are-in-sync",
    "under_min_isr": "too-few-replicas-are-in-sync",
    "disk_full": "a-disk-is-full",
    "disk_failed": "a-disk-is-full",
    "transaction_hangs": "a-transaction-hangs",
    "topics_wrong": "a-bad-deploy",
    "nobody_works": "a-worker-crashes-again-and-again",
    "nobody_listens": "a-worker-crashes-again-and-again",
    "commands_wait": "a-worker-crashes-again-and-again",
    "steps_wait": "a-worker-crashes-again-and-again",
    "offsets_lost": "group-offsets-are-lost",
    "inputs_dead": "a-storm-of-poison",
    "runs_fail": "a-bad-deploy",
    "runs_parked": "a-bad-deploy",
    "runs_held": "a-bad-deploy",
    "effects_failed": "the-target-of-effects-is-down",
    "effects_retried": "the-target-of-effects-is-down",
    "strangers": "a-token-has-leaked",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    code: DiagnosisCode
    #: one sentence
    what: str
    #: commands to type, in order
    do: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What the checks came to. A check that could not look says why, and costs no other."""

    #: names of the checks that looked
    looked: Sequence[str] = ()
    findings: Sequence[Diagnosis] = ()
    #: (check, why it could not look)
    blind: Sequence[tuple[str, str]] = field(default=())

    @property
    def status(self) -> Literal[0, 1, 2]:
        """0: every check looked, and found nothing; 1: there are findings; 2: there are none, and
        not every check could look."""
        if self.findings:
            return 1
        return 2 if self.blind else 0


class DiagnosisJson(TypedDict):
    code: DiagnosisCode
    what: str
    do: list[str]
    runbook: str


class BlindJson(TypedDict):
    check: str
    why: str


class ExaminationJson(TypedDict):
    healthy: bool
    looked: list[str]
    findings: list[DiagnosisJson]
    blind: list[BlindJson]


def examination_json(examination: Examination) -> ExaminationJson:
    return {
        "healthy": examination.status == 0,
        "looked": list(examination.looked),
        "findings": [
            {
                "code": each.code,
                "what": each.what,
                "do": list(each.do),
                "runbook": RUNBOOKS[each.code],
            }
            for each in examination.findings
        ],
        "blind": [{"check": check, "why": why} for check, why in examination.blind],
    }
