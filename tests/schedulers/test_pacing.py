"""Unused time and stored permits: the ticks family and the smooth ones; and the k-th grant of each, which is due at exactly its share."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

from helpers.transcripts import S, grants, waits

import aiorate
from aiorate import BurstCompensation, BurstRatio, Rate, SmoothBursty, SmoothWarmingUp, TicksAccumulator
from aiorate.testing import simulate

TICKS = (TicksAccumulator, BurstCompensation, BurstRatio)


def test_the_accumulator_makes_up_for_everything() -> None:
    """It always reaches the mean: ten at once follow a second of silence."""
    assert grants(TicksAccumulator("10/s", start=0), 13, begin=1) == " ".join(["1"] * 11 + ["1.1", "1.2"])


def test_strict_is_strict() -> None:
    """No two closer than the interval, and unused time is gone. The original let two through at one instant."""
    assert grants(BurstCompensation("10/s", start=0), 4, begin=1) == "1 1.1 1.2 1.3"


def test_half_strict_gives_up_half_of_each_gap() -> None:
    """due 0, asked at 1: next = 0 + 0.5 x 1 + 0.1 = 0.6; then 0.6 + 0.2 + 0.1 = 0.9, then 0.9 + 0.05 + 0.1 = 1.05."""
    pace = BurstCompensation("10/s", strictness=0.5, start=0)
    assert waits(pace, "1 1 1 1 1") == "0 0 0 0.05 0.15"
    assert pace._spilled == S // 2 + S // 5 + S // 20


def test_giving_up_half_of_a_gap_gains_no_fraction() -> None:
    """Half of three nanoseconds is given up as two, so that strictness never makes a permit earlier."""
    scheduler = BurstCompensation("1/3ns", strictness=0.5, start=0)
    assert [scheduler.take(1, 0), scheduler.take(1, 6), scheduler.peek(1, 6)] == [0, 3, 8]


def test_a_burst_ratio_catches_up_and_never_runs_ahead() -> None:
    """A second late at 10/s, ratio 2: 20/s for as long as the delay lasted, then 10/s."""
    granted = grants(BurstRatio("10/s", ratio=2, start=0), 24, begin=1).split()
    assert (granted[:3], granted[-4:]) == (["1", "1.05", "1.1"], ["2", "2.1", "2.2", "2.3"])


def test_ratio_one_never_catches_up_and_says_so() -> None:
    """Rate 1000, 1000 ns late: the original's own test reports lateness 1000, 1000, 1000."""
    pace = BurstRatio("1000/s", ratio=1, start=50_000)
    late = [now - pace.take(1, now) for now in (51_000, 1_051_000, 2_051_000)]
    assert late == [1000, 1000, 1000]
    assert pace.lag(3_051_000) == 1000


def test_the_size_of_a_request_delays_only_those_behind_it() -> None:
    for make in TICKS:
        assert waits(make("10/s"), "0:100 0 0") == "0 10 10.1"


def test_only_the_latest_slot_can_be_given_back() -> None:
    """A slot in the middle is lost: a request moved into it would come closer than promised."""
    for make in TICKS:
        pace = make("10/s")
        waits(pace, "0:2 0.2:3")
        for permits, taken, due in [(2, 0, 5), (1, None, 5), (1, S // 5, 4), (5, S // 5, 2), (2, S // 5, 2)]:
            pace.give_back(permits, S, taken)
            assert pace.peek(1, 0) == due * S // 10, (make, permits, taken)


def test_set_rate_keeps_the_next_slot() -> None:
    for make in TICKS:
        pace = make("10/s")
        waits(pace, "0:5")
        pace.set_rate(Rate(100), 0)
        assert waits(pace, "0 0 0") == "0.5 0.51 0.52"


def test_restart_forgets_the_backlog_but_keeps_a_debt() -> None:
    for make in TICKS:
        late, early = make("10/s", start=0), make("10/s", start=0)
        early.take(20, 0)
        for pace in (late, early):
            pace.restart(S)
        assert grants(late, 3, begin=1) == "1 1.1 1.2"
        assert grants(early, 1, begin=1) == "2"


def test_lag_is_how_far_behind_the_schedule_is() -> None:
    """The wait time of a load test. Slots promised ahead do not make it negative."""
    for make in TICKS:
        pace = make("10/s", start=0)
        assert pace.lag(3 * S) == 3 * S
        pace.take(100, 0)
        assert pace.lag(3 * S) == 0
        assert make("10/s").lag(5) == 0


def test_available_counts_the_slots_that_are_due() -> None:
    """One at the first call, which begins the schedule: a limiter made long ago has no burst."""
    pace, idle = TicksAccumulator("10/s", start=0), TicksAccumulator("10/s")
    pace.take(1, S)
    assert [pace.available(now) for now in (0, S // 10 - 1, S // 10, S)] == [0, 0, 1, 10]
    assert pace.ticks == S // 10
    assert (idle.available(5 * S), idle.take(1, 5 * S)) == (1, 5 * S)
    assert [idle.available(5 * S + S // 20 * place) for place in range(1, 5)] == [0, 1, 1, 2]
    for strictness, one_by_one in [(0, 11), (0.25, 5), (0.5, 3), (0.99, 1), (1, 1)]:  # each gives up its part of what is left
        pace = BurstCompensation("10/s", strictness, start=0)
        assert pace.available(S) == one_by_one == [pace.take(1, S) <= S for _ in range(12)].count(True)


def test_a_returned_slot_brings_its_gap_back() -> None:
    """The gap before a slot is given up by the request that takes the slot. Without a receipt, slot and gap are lost."""
    for receipt in (S, None):
        scheduler = BurstCompensation("10/s", start=0)
        scheduler.take(1, 0)
        assert scheduler.take(1, S) == S // 10
        assert scheduler._spilled == 9 * S // 10
        scheduler.give_back(1, S, receipt)
        assert scheduler._spilled == (0 if receipt else 9 * S // 10)


# Stored permits, paid later.


def test_bursty_starts_empty_and_its_first_request_is_free() -> None:
    """The burst must be earned. Then the store and one more pass at once, the last one on credit."""
    assert waits(SmoothBursty("5/s"), "0 0 0.2") == "0 0.2 0.2"
    assert grants(SmoothBursty("5/s", start=0), 8, begin=2) == "2 2 2 2 2 2 2.2 2.4"


def test_the_store_is_capped_in_seconds_or_in_permits() -> None:
    """After a year of idle time, the cap and one on credit."""
    begin = 365 * 86_400
    for parameters, at_once in [({"max_burst": 2}, 11), ({"max_stored": 2.5}, 3), ({"max_burst": 0}, 1), ({"max_stored": 0}, 1)]:
        store = SmoothBursty("5/s", start=0, **parameters)
        assert grants(store, 12, begin=begin).split().count(str(begin)) == at_once, parameters


def test_fractions_of_a_stored_permit_are_kept() -> None:
    """A caller that comes every 1.9 intervals stores 0.9 each time; the article's limiter never stores anything."""
    store = SmoothBursty("1/s", max_stored=5, start=0)
    waits(store, "0 1.9 3.8 5.7")
    assert store.stored == 1.7


def test_warming_up_is_slow_at_first_and_after_idling() -> None:
    """2/s, 4 s of warm-up, cold factor 3: intervals from 1.375 s down to 0.5 s. A whole warm-up time of idleness makes it cold again."""
    warm = SmoothWarmingUp("2/s", warmup=4)
    assert waits(warm, "0 0 1.375 2.5 3.375 4 4.5") == "0 1.375 1.125 0.875 0.625 0.5 0.5"
    assert waits(warm, "100 100 100") == "0 1.375 2.5"


def test_a_change_of_the_rate_shows_from_the_request_after_next() -> None:
    for smooth in (SmoothBursty("10/s", start=0), SmoothWarmingUp("10/s", warmup=1, cold_factor=1, start=0)):
        waits(smooth, "0:10")
        smooth.set_rate(Rate(1), 0)
        assert waits(smooth, "0 0").startswith("1 ")
        assert smooth.rate == Rate(1)


def test_the_store_keeps_its_fraction_when_the_rate_changes() -> None:
    """Half full stays half full, in seconds; a cap in permits keeps its permits."""
    seconds, permits = SmoothBursty("10/s", start=0), SmoothBursty("10/s", max_stored=10, start=0)
    for store in (seconds, permits):
        store.set_rate(Rate(20), S // 2)
    assert (seconds.stored, permits.stored) == (10.0, 5.0)


def test_the_latest_take_is_undone_as_if_it_had_not_been() -> None:
    for make in (lambda: SmoothBursty("10/s", start=0), lambda: SmoothWarmingUp("10/s", warmup=1, start=0)):
        gave, never, part, less = make(), make(), make(), make()
        for smooth in (gave, never, part, less):
            smooth.take(3, 5 * S)
        now = gave.peek(1, 5 * S)
        gave.take(4, now)
        gave.give_back(4, now, taken=now)
        gave.give_back(3, now, taken=5 * S)  # that one is too old
        gave.give_back(1, now)  # and here nobody knows whose it was
        part.take(4, now)
        part.give_back(1, now, taken=now)
        less.take(3, now)
        assert waits(gave, "9:5 9 9") == waits(never, "9:5 9 9")
        assert (part.next_free, part.stored) == (less.next_free, less.stored)


def test_idle_time_lost_at_a_take_comes_back_with_it() -> None:
    """The take found the store full, and lost idle time. By receipt, nothing was taken and nothing lost."""
    for scheduler in (SmoothBursty("10/s", max_burst=0, start=0), SmoothWarmingUp("10/s", warmup=1, start=0)):
        scheduler.take(1, 0)
        before = scheduler._spilled
        scheduler.take(1, 3600 * S)
        assert scheduler._spilled > before
        scheduler.give_back(1, 3600 * S, 3600 * S)
        assert scheduler._spilled == before


# No drift.


RATES = ["1/day", "0.3/s", "7/s", "3/250ms", "12345/s", "80000/s", "83300/s", "10_000_000/s", "3e9/s"]
PACED: dict[str, Callable[[str], aiorate.Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenPool-burst": lambda rate: aiorate.TokenPool(rate, burst_ratio=1.1),
    "TicksAccumulator": aiorate.TicksAccumulator,
    "BurstCompensation": aiorate.BurstCompensation,
    "BurstCompensation-0.3": lambda rate: aiorate.BurstCompensation(rate, strictness=0.3),
    "BurstRatio": lambda rate: aiorate.BurstRatio(rate, ratio=7.3),
    "SmoothBursty": aiorate.SmoothBursty,
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=1),
}


def share(rate: str, k: int | Fraction) -> int:
    """The instant at which the time of k permits has passed, rounded up to whole ns."""
    exact = aiorate.Rate.parse(rate)
    return -(-k * exact.period_ns // exact.permits)


def test_every_grant_under_load_is_due_at_exactly_its_share() -> None:
    """Even if a permit lasts a fraction of a nanosecond more: google/guava#5290 ran 83 300/s for 80 000/s."""
    for strategy, rate in product(PACED, RATES):
        assert simulate(PACED[strategy](rate), [0] * 250) == [share(rate, k) for k in range(250)], (strategy, rate)


def test_the_thousand_millionth_grant_is_due_at_its_share() -> None:
    """Large requests stand for many small ones: the next request is due at their share of the schedule."""
    sizes = [1, 999_999_999, 1, 1, 7, 3_000_000_019, 1, 1]
    for strategy, rate in product(set(PACED) - {"TokenBucket"}, RATES):
        scheduler, due, exact = PACED[strategy](rate), list[int](), list[int]()
        for place, permits in enumerate(sizes):
            due.append(max(scheduler.peek(permits, due[-1] if due else 0), 0))
            scheduler.take(permits, due[-1])
            paid_now = Fraction(0)
            if strategy.startswith("TokenPool"):  # it lets a request larger than itself through when it is full, and owes the rest
                paid_now = min(permits, max(2, Fraction(scheduler.rate.permits, scheduler.rate.period_ns) * 1_000_000)) - Fraction(1)
            exact.append(share(rate, sum(sizes[:place]) + paid_now))
        assert due == exact, (strategy, rate)


def test_a_full_bucket_adds_its_burst_and_nothing_else() -> None:
    """The n-th admission of a bucket of B is at (n - B) / rate."""
    for rate in ("7/s", "1/day", "80000/s", "12345/s"):
        assert simulate(aiorate.TokenBucket(rate, burst=5), [0] * 500) == [share(rate, max(0, k - 4)) for k in range(500)]


def test_a_window_lets_exactly_its_permits_through_per_period() -> None:
    for rate in ("7/s", "100/60s", "3/250ms", "1/day"):
        n, period = aiorate.Rate.parse(rate).permits, aiorate.Rate.parse(rate).period_ns
        assert simulate(aiorate.SlidingWindow(rate), [0] * (n * 20)) == [k // n * period for k in range(n * 20)]


def test_late_timers_do_not_add_up() -> None:
    """dotnet/runtime#74056: timers late by a little made 1.5 s per permit of 1 s. A request in line is booked from its due instant."""
    for strategy in set(PACED) - {"TicksAccumulator"}:
        scheduler, now = PACED[strategy]("7/s"), 0
        for k in range(300):
            due = max(scheduler.peek(1, now), 0)
            assert due == max(now, share("7/s", k)), strategy
            now = due + k * 7_919 % 20_000_000
            scheduler.take(1, now, since=0)
