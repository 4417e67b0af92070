"""TokenPool: what it starts with, its bursts, its backlog and its debts."""

from __future__ import annotations

import pytest
from helpers.transcripts import S, grants, waits

from aiorate import Rate, TokenPool


def test_it_starts_with_one_permit() -> None:
    """The first caller does not wait, the others come at the rate."""
    assert grants(TokenPool("10/s"), 5) == "0 0.1 0.2 0.3 0.4"


def test_after_idling_two_permits_pass_at_once() -> None:
    """The pool holds two permits. Further idle time waits, and with ratio 1 never returns."""
    pool = TokenPool("10/s", start=0)

    assert grants(pool, 5, begin=60) == "60 60 60.1 60.2 60.3"
    assert pool.lag(60 * S) > 59 * S


def test_a_fast_pool_holds_a_millisecond() -> None:
    """At 10 000/s that is ten permits: a filler that runs once a millisecond loses nothing."""
    pool = TokenPool("10000/s", start=0)

    assert grants(pool, 12, begin=1) == " ".join(["1"] * 10 + ["1.0001", "1.0002"])


def test_with_a_burst_ratio_a_backlog_is_caught_up_at_that_ratio() -> None:
    """After a second of idleness at 10/s and ratio 2: four at once, then 20/s until the backlog is gone."""
    granted = grants(TokenPool("10/s", burst_ratio=2, start=0), 26, begin=1).split()

    assert granted[:6] == ["1", "1", "1", "1", "1.05", "1.1"]
    assert granted[14:22] == ["1.55", "1.6", "1.65", "1.7", "1.8", "1.9", "2", "2.1"]


def test_a_request_larger_than_the_pool_owes_the_rest() -> None:
    """Limiter("100/s") takes acquire(500): later requests pay for it."""
    pool = TokenPool("10/s", start=0)

    assert waits(pool, "0:5 0 0") == "0.1 0.5 0.6"


def test_give_back_fills_up_to_the_size_of_the_pool() -> None:
    """Permits that do not fit are gone: the credit is a burst at most."""
    pool = TokenPool("10/s", start=0)
    waits(pool, "0 0.1 0.2")

    pool.give_back(3, 2 * S // 10)

    assert waits(pool, "0.2 0.2 0.2") == "0 0 0.1"


def test_give_back_never_takes_anything_away() -> None:
    """Not even if a shrunk pool holds more than its size."""
    pool = TokenPool("1/s", start=0)
    pool.take(1, 0)
    pool.set_rate(Rate(1000), 10 * S)
    before = pool.active

    pool.give_back(1, 10 * S)

    assert pool.active == before


def test_set_rate_keeps_nanoseconds_and_debts() -> None:
    """A debt of half a second stays one of half a second."""
    pool = TokenPool("10/s", start=0)
    waits(pool, "0:7")

    pool.set_rate(Rate(100), S // 10)

    assert waits(pool, "0.1 0.1") == "0.51 0.52"


def test_a_faster_rate_gives_no_free_burst() -> None:
    """Two seconds in the pool are two permits at 1/s, and would be two thousand at 1000/s."""
    pool = TokenPool("1/s", start=0)
    pool.set_rate(Rate(1000), 100 * S)

    assert grants(pool, 4, begin=100) == "100 100 100.001 100.002"


def test_a_late_filler_loses_no_rate() -> None:
    """Requests served 1.7 ms late are booked from when they joined the line, so the schedule stands."""
    pool = TokenPool("1000/s", start=0)
    due = []
    for _ in range(100):
        at = pool.peek(1, due[-1] if due else 0)
        due.append(at)
        pool.take(1, at + 1_700_000, since=0)

    assert due == [k * 1_000_000 for k in range(100)]


def test_the_pools_by_hand() -> None:
    """The worked example: pool 1000, ratio 1.25, both pools drained but 4750 waiting."""
    pool = TokenPool("1/s", burst_ratio=1.25, pool=1000)
    pool.restart()
    pool.refill(6000)
    pool.take_up_to(1250)
    assert (pool.active, pool.waiting) == (0, 4750)

    seen = []
    for _ in range(3):
        pool.refill(500)
        seen.append((pool.active, pool.waiting))

    assert seen == [(625, 4625), (1125, 4625), (1250, 5000)]


def test_restart_empties_both_pools_and_keeps_a_debt() -> None:
    """It reports the tokens that it empties, and forgives no debt."""
    pool = TokenPool("1/s", burst_ratio=1.5, pool=1000)
    pool.restart()
    pool.refill(5000)

    assert pool.restart() == 5000
    assert (pool.active, pool.waiting) == (0, 0)

    owing = TokenPool("10/s", start=0)
    owing.take(2, S // 10)
    owing.restart(S // 10)
    assert waits(owing, "0.1") == "0.1"


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        ({"burst_ratio": 0.9}, ValueError, "1 or more"),
        ({"burst_ratio": float("inf")}, ValueError, "finite"),
        ({"burst_ratio": True}, TypeError, "burst_ratio"),
        ({"pool": 0}, ValueError, "1 ns or more"),
        ({"pool": 1.5}, TypeError, "whole ns"),
        ({"pool": True}, TypeError, "whole ns"),
        ({"start": 0.5}, TypeError, "whole ns"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], error: type[Exception], hint: str) -> None:
    """At construction."""
    with pytest.raises(error, match=hint):
        TokenPool("10/s", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["refill", "take_up_to"])
def test_tokens_are_whole_and_never_negative(call: str) -> None:
    """A negative refill would take, a negative take would mint."""
    pool = TokenPool("10/s")

    for wrong, error in ((-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error):
            getattr(pool, call)(wrong)
    assert pool.active == S // 10


def test_a_burst_too_large_for_a_float_is_exact() -> None:
    """A ratio without a practical bound: the pool is as large as the product of both, and it grants."""
    pool = TokenPool("1/1000s", burst_ratio=1e308)

    assert pool.max_active == 2_000 * S
    assert pool.max_over_active == 2_000 * S * 10**308
    assert grants(pool, 2) == "0 1000"
