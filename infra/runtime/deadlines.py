"""Time limits of operations that normally complete at once.

Users cannot set these: each waiting caller has a deadline of its own to meet. They are part of the
settings so that tests can change them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Time limits in seconds."""

    #: one request to the log
    read_s: float = 5.0
    #: a request about the range to replay, or one page of it
    replay_s: float = 10.0
    #: one check of `surefoot doctor`, which may read all of an agent's state
    check_s: float = 30.0
    #: the log's acknowledgement of a record from the command line or a schedule's declaration
    send_s: float = 10.0
    #: the log's acknowledgement of a start at the gateway; webhook senders give up after 3 to 10 s
    start_s: float = 2.5
    #: the owner's answer to a command of the gateway
    answer_s: float = 5.0
    #: the commit of the probe behind /ready
    ready_s: float = 3.0
    #: each of the probe's requests, and the transaction timeout that ends a killed probe's
    #: transaction
    ready_request_s: float = 2.0
    ready_transaction_s: float = 5.0
    #: the gateway's check of its topics at start
    verify_s: float = 10.0
    #: requests in progress when an HTTP server shuts down
    drain_s: float = 10.0
    #: a Kafka client's connect
    connect_s: float = 10.0
    #: a restore without progress; it is then restarted
    restore_s: float = 20.0
    #: another process's answer for its share of the views
    views_s: float = 5.0
    #: a schema registry's answer
    registry_s: float = 10.0
