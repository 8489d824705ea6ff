"""Writes docs/rights.md from the table of rights: python -m tests.generate.rights_page"""

from __future__ import annotations

from pathlib import Path

from surefoot.state.inspect.rights import NEEDS, Need

PAGE = Path(__file__).parents[2] / "docs" / "rights.md"

HEAD = """\
# Rights in Kafka

The least rights of each kind of process on a cluster with ACLs. `surefoot acls plan AGENT.py`
prints them for your agents, as `kafka-acls` commands or as Strimzi's `KafkaUser`
([a secured cluster](how-to/secured-kafka.md)).

- `APP` is `SUREFOOT_APP`. `AGENT` stands for each agent, each of its pools (`AGENT.POOL`), and
  `AGENT.schedules` if it has schedules. `TOPIC` is a topic that a trigger reads, `HOOK` a
  subscription.
- A `*` at the end: a prefixed ACL.
- Read and Write imply Describe. Who may write to a topic needs no IdempotentWrite.
- DescribeConfigs on the cluster is for the default replication factor: with
  `SUREFOOT_REPLICATION_FACTOR` set, nobody needs it.
- `topics` is `surefoot topics apply`; `verify` needs less. `tokens` is `surefoot tokens` and
  `surefoot audit`. `doctor` is `surefoot doctor`, which only reads.

Generated from `state/inspect/rights.py` by `python -m tests.generate.rights_page`; a test holds
that it is up to date.

| process | resource | name | operations |
|---|---|---|---|
"""


def page() -> str:
    return HEAD + "".join(_row(role, need) for role, needs in NEEDS.items() for need in needs)


def _row(role: str, need: Need) -> str:
    name = need.name.format(app="APP", agent="AGENT", topic="TOPIC", hook="HOOK")
    return f"| {role} | {need.kind} | `{name}` | {', '.join(need.operations.split())} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
