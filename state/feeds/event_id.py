"""Position of a reader of several agents' events: the next offset of every partition, as one text.

    orders_12_0_7.billing_3_4

It is opaque to clients. It says which events a reader has received, in whatever order those of
different partitions arrived, so that the reader can continue without a gap or a repetition. It
needs no escaping in a URL or a header. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from surefoot.state.errors import BadArgument

#: pattern of a position; it does not say how many offsets an agent has
PATTERN = r"^[a-z][a-z0-9-]{0,62}(_[0-9]{1,19})+(\.[a-z][a-z0-9-]{0,62}(_[0-9]{1,19})+)*$"
_PART = re.compile(r"([a-z][a-z0-9-]{0,62})((?:_[0-9]{1,19})+)", re.ASCII)
_OFFSET_MAX = 2**63 - 1
#: longest text that is parsed, in characters; a gateway of 100 agents writes less
_LENGTH_MAX = 65_536
_NOT_ONE = "this is not an event id; leave it out to start over"


def part(agent: str, offsets: Sequence[int]) -> str:
    """Return the part of a position that is about one agent."""
    return f"{agent}_{'_'.join(map(str, offsets))}"


def join(parts: Mapping[str, str]) -> str:
    """Join the parts of all agents into one position."""
    return ".".join(parts.values())


def parse_event_id(text: str) -> dict[str, list[int]]:
    """Return the next offset of each partition, by agent. Raises BadArgument."""
    found: dict[str, list[int]] = {}
    for piece in text.split(".") if len(text) <= _LENGTH_MAX else [""]:
        match = _PART.fullmatch(piece)
        if match is None or match[1] in found:
            raise BadArgument("SF5004", _NOT_ONE)
        offsets = [int(number) for number in match[2][1:].split("_")]
        if max(offsets) > _OFFSET_MAX:
            raise BadArgument("SF5004", _NOT_ONE)
        found[match[1]] = offsets
    return found
