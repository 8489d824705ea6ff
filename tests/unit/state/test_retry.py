"""Retries: waits that grow, stay under their cap, spread out, and honour Retry-After."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.state.declare.retry import (
    RETRY_AFTER_MAX_S,
    Retry,
    delay_ms,
    retry_after_s,
    worth_retrying,
)
from surefoot.state.errors import CallFailed, ConfigError, NotDone, RetryableError, TerminalError

POLICIES = st.builds(
    lambda initial_s, more_s, multiplier, jitter: Retry(
        initial_s=initial_s, max_s=initial_s + more_s, multiplier=multiplier, jitter=jitter
    ),
    st.floats(1e-6, 1e4),
    st.floats(0, 1e6),
    st.floats(1, 1e6) | st.integers(1, 1000),
    st.floats(0, 1),
)
ATTEMPTS = st.integers(0, 20) | st.integers(0, 10**6)
CHANCE = st.floats(0, 1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"attempts": 0}, "attempts must be a whole number from 1 .1 = no second attempt.; got 0"),
        ({"attempts": -1}, "attempts"),
        ({"attempts": 2.0}, "attempts"),
        ({"attempts": True}, "attempts"),
        ({"attempts": "5"}, "attempts"),
        ({"initial_s": 0}, "initial_s must be above 0 seconds; got 0"),
        ({"initial_s": -1.0}, "initial_s"),
        ({"initial_s": math.nan}, "initial_s must be a finite number; got nan"),
        ({"initial_s": "1s"}, "initial_s must be a finite number; got '1s'"),
        ({"max_s": 0.5}, r"max_s must be at least initial_s \(1.0\); got 0.5"),
        ({"max_s": math.inf}, "max_s must be a finite number"),
        ({"multiplier": 0.5}, "multiplier must be 1 or more .1 = equal waits.; got 0.5"),
        ({"multiplier": math.nan}, "multiplier"),
        ({"jitter": -0.1}, "jitter must be from 0 to 1; got -0.1"),
        ({"jitter": 1.5}, "jitter"),
        ({"jitter": False}, "jitter"),
        ({"on": ValueError}, "on must be a tuple of exception classes; got <class 'ValueError'>"),
        ({"on": ("ValueError",)}, "on must be a tuple of exception classes"),
        ({"on": (ValueError(),)}, "on must be a tuple of exception classes"),
        ({"give_up_on": [ValueError]}, "give_up_on must be a tuple of exception classes"),
        ({"give_up_on": (int,)}, "give_up_on must be a tuple of exception classes"),
    ],
)
def test_a_policy_that_cannot_work_says_what_would(wrong: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=f"Retry: {says}"):
        Retry(**wrong)


def test_the_waits_double_up_to_the_cap():
    policy = Retry(initial_s=1, max_s=10, jitter=0)

    assert [delay_ms(policy, attempt, 0.9) for attempt in range(6)] == [
        1000,
        2000,
        4000,
        8000,
        10_000,
        10_000,
    ]


def test_a_multiplier_of_one_waits_equally_long():
    assert delay_ms(Retry(multiplier=1, jitter=0), 10**6, 0.5) == 1000


def test_chance_takes_away_up_to_the_jitter():
    policy = Retry(initial_s=10, jitter=0.5)

    assert [delay_ms(policy, 0, rand) for rand in (0.0, 0.5, 1.0)] == [10_000, 7500, 5000]


@pytest.mark.parametrize("attempt", [1100, 10**6, 10**18])
@pytest.mark.parametrize("multiplier", [2, 2.0, 1.5])
def test_no_attempt_number_is_too_large(attempt: int, multiplier: float):
    assert delay_ms(Retry(multiplier=multiplier, jitter=0), attempt, 0.0) == 300_000


@given(POLICIES, ATTEMPTS, CHANCE)
def test_a_wait_is_positive_and_never_over_the_cap(policy: Retry, attempt: int, rand: float):
    assert 1 <= delay_ms(policy, attempt, rand) <= math.ceil(policy.max_s * 1000)


@given(POLICIES, ATTEMPTS, CHANCE)
def test_a_wait_is_never_shorter_than_the_one_before(policy: Retry, attempt: int, rand: float):
    assert delay_ms(policy, attempt, rand) <= delay_ms(policy, attempt + 1, rand)


@given(POLICIES, ATTEMPTS, CHANCE, st.floats(0.001, RETRY_AFTER_MAX_S))
def test_retry_after_is_never_undercut_and_exceeded_only_by_the_spread(
    policy: Retry, attempt: int, rand: float, asked_s: float
):
    waited_ms = delay_ms(policy, attempt, rand, asked_s)

    assert waited_ms >= asked_s * 1000
    spread_s = policy.jitter * policy.max_s
    assert waited_ms <= math.ceil(max(policy.max_s, asked_s + spread_s) * 1000) + 1


def test_those_told_the_same_do_not_come_back_in_the_same_instant():
    waits = {delay_ms(Retry(), 3, rand / 100, 60) for rand in range(100)}

    assert len(waits) > 90
    assert min(waits) >= 60_000


@given(POLICIES, ATTEMPTS, CHANCE, st.floats())
def test_any_retry_after_is_survived(policy: Retry, attempt: int, rand: float, asked_s: float):
    most_s = RETRY_AFTER_MAX_S + policy.max_s

    assert 1 <= delay_ms(policy, attempt, rand, asked_s) <= math.ceil(most_s * 1000) + 1


@pytest.mark.parametrize("asked_s", [10.0**12, 1e308])
def test_a_retry_after_of_ages_is_cut_to_a_day(asked_s: float):
    assert delay_ms(Retry(jitter=0), 0, 0.5, asked_s) == 24 * 3600 * 1000


@pytest.mark.parametrize("asked_s", [None, math.nan, -5, 0, math.inf, -math.inf])
def test_a_retry_after_without_sense_leaves_the_policys_own_wait(asked_s: float | None):
    policy = Retry(jitter=1)

    assert delay_ms(policy, 2, 0.75, asked_s) == delay_ms(policy, 2, 0.75) == 1000


#: Sun, 06 Nov 1994 08:49:37 GMT
NOW_MS = 784_111_777_000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        ("Sun, 06 Nov 1994 08:49:27 GMT", 0.0),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10.0),
        ("Sun Nov  6 08:49:47 1994", 10.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_MAX_S),
        ("100000000000", RETRY_AFTER_MAX_S),
        ("9" * 400, RETRY_AFTER_MAX_S),
        ("soon", None),
        ("-1", None),
        ("1e9", None),
        ("inf", None),
        ("Infinity", None),
        ("nan", None),
        ("", None),
        ("\u00b2", None),
        ("\u0663", None),
        ("3, 5", None),
        ("Sun, 99 Nov 1994 08:49:47 GMT", None),
        ("01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Sun, 06 Nov 1994 08:49:47 +9999", None),
    ],
)
def test_how_long_the_other_side_asks_to_wait(value: str, seconds: float | None):
    for name in ("Retry-After", "retry-after"):
        assert retry_after_s({name: value}, NOW_MS) == seconds


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"Retry-After-Ms": "20.5"}, 0.0205),
        ({"retry-after-ms": "9" * 400}, RETRY_AFTER_MAX_S),
        ({"retry-after-ms": "inf", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "-5"}, None),
        ({}, None),
    ],
)
def test_milliseconds_are_read_before_seconds(told: dict[str, str], seconds: float | None):
    assert retry_after_s(told, NOW_MS) == seconds


@given(st.text(max_size=40))
def test_any_header_is_survived(value: str):
    seconds = retry_after_s({"retry-after": value, "retry-after-ms": value}, NOW_MS)
    assert seconds is None or 0 <= seconds <= RETRY_AFTER_MAX_S


def test_a_policy_of_400_days_waits_400_days():
    policy = Retry(max_s=400 * 86_400.0, jitter=0)

    assert delay_ms(policy, 1100, 0.5) == 400 * 86_400_000


@pytest.mark.parametrize(
    ("policy", "error", "worth_it"),
    [
        (Retry(), ValueError(), True),
        (Retry(), RetryableError(), True),
        (Retry(), NotDone(), True),
        (Retry(), TerminalError(), False),
        (Retry(), CallFailed("", kind="X"), False),
        (Retry(on=(OSError,)), ConnectionError(), True),
        (Retry(on=(OSError,)), ValueError(), False),
        (Retry(on=(OSError,)), RetryableError(), True),
        (Retry(on=(TerminalError,)), TerminalError(), False),
        (Retry(on=()), ValueError(), False),
        (Retry(on=()), RetryableError(), True),
        (Retry(give_up_on=(OSError,)), ConnectionError(), False),
        (Retry(give_up_on=(OSError,)), ValueError(), True),
        (Retry(on=(OSError,), give_up_on=(ConnectionError,)), ConnectionError(), False),
        (Retry(give_up_on=(RetryableError,)), RetryableError(), False),
    ],
)
def test_which_exceptions_are_worth_another_attempt(
    policy: Retry, error: BaseException, worth_it: bool
):
    assert worth_retrying(policy, error) is worth_it
