"""TokenPool and TokenBucket: pay now."""

from __future__ import annotations

from random import Random

import pytest
from helpers.transcripts import S, grants, waits

from aiorate import Rate, Scheduler, TokenBucket, TokenPool


def test_a_pool_starts_with_one_permit_and_holds_two() -> None:
    """The first caller does not wait, the others come at the rate. Further idle time waits, and with ratio 1 never returns.

    A fast pool holds a millisecond: a filler that runs once a millisecond loses nothing.
    """
    pool = TokenPool("10/s", start=0)
    assert grants(TokenPool("10/s"), 5) == "0 0.1 0.2 0.3 0.4"
    assert grants(pool, 5, begin=60) == "60 60 60.1 60.2 60.3"
    assert pool.lag(60 * S) > 59 * S
    assert grants(TokenPool("10000/s", start=0), 12, begin=1) == " ".join(["1"] * 10 + ["1.0001", "1.0002"])


def test_with_a_burst_ratio_a_backlog_is_caught_up_at_that_ratio() -> None:
    """After a second of idleness at 10/s and ratio 2: four at once, then 20/s until the backlog is gone."""
    granted = grants(TokenPool("10/s", burst_ratio=2, start=0), 26, begin=1).split()
    assert granted[:6] == ["1", "1", "1", "1", "1.05", "1.1"]
    assert granted[14:22] == ["1.55", "1.6", "1.65", "1.7", "1.8", "1.9", "2", "2.1"]


def test_a_request_larger_than_the_pool_owes_the_rest() -> None:
    assert waits(TokenPool("10/s", start=0), "0:5 0 0") == "0.1 0.5 0.6"


def test_give_back_fills_up_to_the_size_of_the_pool() -> None:
    """Permits that do not fit are gone. Nothing is taken away, even if a shrunk pool holds more than its size."""
    pool, shrunk = TokenPool("10/s", start=0), TokenPool("1/s", start=0)
    waits(pool, "0 0.1 0.2")
    pool.give_back(3, 2 * S // 10)
    assert waits(pool, "0.2 0.2 0.2") == "0 0 0.1"
    shrunk.take(1, 0)
    shrunk.set_rate(Rate(1000), 10 * S)
    before = shrunk.active
    shrunk.give_back(1, 10 * S)
    assert shrunk.active == before


def test_the_last_of_a_backlog_returns_to_its_last_tick() -> None:
    """Since a return by receipt, a third of a nanosecond waits: the instant is the same for all who ask, however long they have waited."""
    pool = TokenPool("3/10s", burst_ratio=7.3, start=0)
    for instant in (0, 3333333334, 6666666667):
        assert pool.take(1, instant) == instant
    pool.give_back(1, 6666666668, taken=3333333334)
    due = pool.peek(7, 6666666668)
    assert pool.take(7, due, since=6666666667) == due == 10 * S


def test_set_rate_of_a_pool_keeps_nanoseconds_and_debts() -> None:
    """A debt of half a second stays one of half a second, and two permits at 1/s do not become two thousand at 1000/s."""
    owing, full = TokenPool("10/s", start=0), TokenPool("1/s", start=0)
    waits(owing, "0:7")
    owing.set_rate(Rate(100), S // 10)
    full.set_rate(Rate(1000), 100 * S)
    assert waits(owing, "0.1 0.1") == "0.51 0.52"
    assert grants(full, 4, begin=100) == "100 100 100.001 100.002"


def test_a_late_filler_loses_no_rate() -> None:
    """Requests served 1.7 ms late are booked from when they joined the line, so the schedule stands."""
    pool = TokenPool("1000/s", start=0)
    due = []
    for _ in range(100):
        due.append(pool.peek(1, due[-1] if due else 0))
        pool.take(1, due[-1] + 1_700_000, since=0)
    assert due == [k * 1_000_000 for k in range(100)]


def test_restart_empties_both_pools_and_keeps_a_debt() -> None:
    pool = TokenPool("1/s", burst_ratio=1.5, pool=1000)
    pool.restart()
    pool.refill(5000)
    assert pool.restart() == 5000
    assert (pool.active, pool.waiting) == (0, 0)
    owing = TokenPool("10/s", start=0)
    owing.take(2, S // 10)
    owing.restart(S // 10)
    assert waits(owing, "0.1") == "0.1"


def test_tokens_are_whole_and_never_negative() -> None:
    """A negative refill would take, a negative take would mint."""
    pool = TokenPool("10/s")
    for call in (pool.refill, pool.take_up_to):
        for wrong, error in ((-1, ValueError), (1.5, TypeError), (True, TypeError)):
            with pytest.raises(error):
                call(wrong)  # type: ignore[arg-type]
    assert pool.active == S // 10


def test_a_bucket_starts_full_or_with_initial_permits() -> None:
    assert grants(TokenBucket("10/s", burst=3), 5) == "0 0 0 0.1 0.2"
    assert grants(TokenBucket("10/s", burst=3, initial=1), 4) == "0 0.1 0.2 0.3"
    assert grants(TokenBucket("10/s", burst=3, initial=0), 3) == "0.1 0.2 0.3"


def test_a_request_waits_for_its_own_cost() -> None:
    """Not for more: mjpieters/aiolimiter#217 slept for the whole amount, not for the part that was missing."""
    assert waits(TokenBucket("10/s", burst=5), "0:5 0:3 0.3 1:5") == "0 0.3 0.1 0"


def test_after_idling_exactly_one_burst_passes() -> None:
    assert grants(TokenBucket("10/s", burst=2, start=0), 4, begin=365 * 86400) == "31536000 31536000 31536000.1 31536000.2"


def test_a_refund_fills_the_bucket_at_most() -> None:
    """Without a receipt, permits of any request fill it."""
    bucket = TokenBucket("10/s", burst=3)
    waits(bucket, "0:3 0.1")
    bucket.give_back(2, S // 10)
    assert waits(bucket, "0.1:2 0.1") == "0 0.1"
    bucket.give_back(3, 100 * S)
    assert waits(bucket, "100:3 100") == "0 0.1"


def test_set_rate_of_a_bucket_keeps_the_level_in_permits() -> None:
    """Two permits are missing: 0.2 s at 10/s, 2 s at 1/s. Two thirds of one are 1.33 ns at 1/2ns: due after two, not after one."""
    bucket, fraction = TokenBucket("10/s", burst=3), TokenBucket("1/3ns", burst=1, start=0)
    waits(bucket, "0:2")
    fraction.take(1, 0)
    bucket.set_rate(Rate(1), 0)
    fraction.set_rate(Rate.parse("1/2ns"), 1)
    assert waits(bucket, "0 0 0") == "0 1 2"
    assert fraction.peek(1, 1) == 3


def test_a_bucket_has_no_lag_and_counts_what_overflowed() -> None:
    """An idle bucket is not late. Overflow counts while a request stands in line."""
    bucket = TokenBucket("10/s", burst=3)
    waits(bucket, "0:3")
    bucket.take(1, 10 * S + 5, since=10 * S)
    assert bucket.lag(20 * S) == 0
    assert bucket._spilled == 97 * S // 10


def test_schedulers_of_one_rate_share_what_follows_from_it() -> None:
    """And nothing else. A change of the rate is that scheduler's alone."""
    rate = Rate(10)
    for burst in range(1, 20):
        one, other = TokenBucket(rate, burst), TokenBucket(rate, burst)
        assert [one.take(burst, 0), one.take(1, 0), other.take(burst, 0)] == [0, S // 10, 0]
    wide, narrow, caught_up = TokenPool(rate), TokenPool(rate, pool=S // 10), TokenPool(rate, 2)
    assert [pool.max_over_active for pool in (wide, narrow, caught_up)] == [S // 5, S // 10, 2 * S // 5]
    one.set_rate(Rate(20), 0)
    assert [one.peek(1, 0), other.peek(1, 0)] == [S // 20, S // 10]


def test_how_a_bucket_stands_is_read_in_one_step() -> None:
    """The same as by asking it, after grants, debts and what came back."""
    for seed in range(100):
        dice, now = Random(seed), 0
        bucket = TokenBucket(dice.choice(["7/s", "3/7s", "1000000/s", "100/min"]), burst=dice.choice([1, 2, 10, 1000]))
        for _ in range(20):
            now += dice.choice([0, 1, dice.randrange(S), dice.randrange(100 * S)])
            permits = dice.randint(1, bucket.burst)
            dice.choice([bucket.take, bucket.charge, bucket.give_back])(permits, now)
            assert bucket._standings(now) == Scheduler._standings(bucket, now), seed
