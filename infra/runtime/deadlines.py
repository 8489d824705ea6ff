"""How long is waited for what answers in no time when all is well.

Nobody sets these: whoever waits gives an answer to somebody else, who has a deadline of their own.
They come with the settings, so that a test can be patient, or impatient.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """In seconds."""

    #: one question to the log
    read_s: float = 5.0
    #: a question about the range of the log that is replayed, or one page of it
    replay_s: float = 10.0
    #: the log acknowledges what a command line sends, or what a schedule is told
    send_s: float = 10.0
    #: the log acknowledges a start at the gateway; webhook senders give up after 3 to 10 s
    start_s: float = 2.5
    #: the owner of a run answers a command of the gateway
    answer_s: float = 5.0
    #: a transaction of the probe behind /ready commits
    ready_s: float = 3.0
    #: each of its requests is answered; an open transaction of a probe that was killed is over
    ready_request_s: float = 2.0
    ready_transaction_s: float = 5.0
    #: the gateway's topics are looked at, at its start
    verify_s: float = 10.0
    #: requests under way finish when an HTTP server goes down
    drain_s: float = 10.0
    #: a Kafka client connects
    connect_s: float = 10.0
    #: a restore gets further; or else it is begun again
    restore_s: float = 20.0
    #: another process answers for its share of the views
    views_s: float = 5.0
    #: a schema registry answers
    registry_s: float = 10.0
