"""An independent judge of what the engine did.

It knows the records as they stand in the log, and what was seen outside of it; it imports nothing
of the engine and nothing of the engine's Kafka client, and is written from the wire format and from
what is promised. `check` tells what was broken, by the names of the invariants:

| name | what must hold | where |
|---|---|---|
| I1 | a command that was acknowledged is in the log once | outside.py |
| I2 | one result for each step of a run, none left out | runs.py |
| I3 | one answer for each input, none passed over | inputs.py |
| I4 | of each decision all records or none, and all in one transaction | log.py |
| I5 | what a commit told its owner is so | log.py |
| I6 | nothing follows from what was not committed | log.py |
| I7 | offsets of groups never fall, and never pass the last stable offset | log.py |
| I8 | the final result is the one that can be told from the program alone | runs.py |
| I9 | a run's records stand in the order of its steps | runs.py |
| I10 | an older producer epoch never writes after a newer one | log.py |
| I11 | each committed effect is acted upon once, with the committed request | outside.py |
| I12 | nothing else is requested | outside.py |
| I13 | nothing that waits for its time happens early | runs.py |
| I15 | at rest, whatever was asked for is over, and no input is left | inputs.py, runs.py |
| I16 | the state topic says what the history says, compacted or not | state.py |
| I19 | what cannot be used is among the dead letters once, with its place | inputs.py |
| once | what happens once has happened once | outside.py |
| call | a call that was recorded is not made again | outside.py |
| wire | every record that the engine wrote can be read | log.py |
"""

from tests.checker.history import (
    Act,
    Asked,
    Commit,
    History,
    Marker,
    Promise,
    Record,
    Request,
    Sample,
    Violation,
)
from tests.checker.verdict import check

__all__ = [
    "Act",
    "Asked",
    "Commit",
    "History",
    "Marker",
    "Promise",
    "Record",
    "Request",
    "Sample",
    "Violation",
    "check",
]
