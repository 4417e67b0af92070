"""Defects found by the second attack: number 39, changes of the code that no test noticed."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from time import monotonic_ns
from zoneinfo import ZoneInfo

import pytest
from helpers.transcripts import S

from aiorate import (
    AllOf,
    BurstCompensation,
    CalendarWindow,
    Limiter,
    Rate,
    SmoothBursty,
    TicksAccumulator,
    TokenBucket,
    TokenPool,
    WaitTooLong,
)
from aiorate.http import Feedback, Quota, read_feedback
from aiorate.schedulers.dimensions import Amounts, Dimensions
from aiorate.schedulers.next_free import NextFree
from aiorate.schedulers.peaks import Peaks
from aiorate.schedulers.slot_run import SlotRun
from aiorate.testing import ManualClock
from aiorate.waiting.timeline import Timeline


def test_the_bound_knows_the_day_on_which_clocks_go_forward() -> None:
    """Number 39: in Berlin 30 permits passed in 23.25 h, of which the bound would have said 20 without the hours of the change."""
    begin = round(datetime(2025, 3, 29, 23, 50, tzinfo=ZoneInfo("Europe/Berlin")).timestamp())
    window = CalendarWindow("10/day", "Europe/Berlin", origin=begin * S)

    instants = []
    for _ in range(3):
        instants.append(window.peek(10, instants[-1] if instants else 0))
        window.take(10, instants[-1])

    assert instants == [0, 600 * S, 600 * S + 23 * 3_600 * S]
    assert window.bound(23 * 3_600 * S + 900 * S) == 30


def test_a_pause_outlives_its_loop_by_its_own_length() -> None:
    """Number 39: on the clock of the next loop, 3600 s ahead, a pause of 5 s would have been over, or have lasted 3605 s."""
    for ahead in (3_600 * S, -3_600 * S):
        timeline, readings = Timeline(None), [100 * S]
        timeline.follow(lambda readings=readings: readings[0])  # type: ignore[misc]
        timeline.pause(5 * S, lambda length: None)
        instant = timeline.now()

        timeline.follow(lambda readings=readings, ahead=ahead: readings[0] + ahead)  # type: ignore[misc]

        readings[0] += 4 * S
        assert timeline.paused
        assert timeline.now() == instant
        readings[0] += 2 * S
        assert not timeline.paused
        assert timeline.now() == instant + S


def test_the_record_of_peaks_does_not_grow() -> None:
    """Number 39: levels that fall with every take are all peaks; the record keeps 64 of them."""
    peaks = Peaks()

    for step in range(10_000):
        peaks.note(step, -step)

    assert len({peaks.since(step) for step in range(-1, 10_000)} - {None}) <= 64


def test_a_budget_is_scheduled_for_the_latest_of_its_dimensions() -> None:
    """Number 39: how late a request starts is what its slowest dimension says."""
    dimensions = Dimensions([TicksAccumulator("1/s", start=0), TicksAccumulator("2/s", start=0)])
    amounts = Amounts((1, 1))

    assert [dimensions.take(amounts, 10 * S) for _ in range(3)] == [0, S, 2 * S]
    assert [dimensions.take(1, 10 * S) for _ in range(2)] == [3 * S, 4 * S]


class Skipping:
    """The monotonic clock, which can be moved forward."""

    def __init__(self) -> None:
        self.ahead = 0

    def now(self) -> int:
        """The reading."""
        return monotonic_ns() + self.ahead


@pytest.mark.asyncio
async def test_the_loop_turns_after_a_long_pause_too() -> None:
    """Number 39: the next look at the loop was due an hour later, after a pause of an hour."""
    clock, turned = Skipping(), []
    limiter = Limiter(TokenBucket(10**9, burst=10**9), clock=clock)
    await limiter.acquire()
    limiter.pause(3_600)
    clock.ahead += 3_500 * S
    with pytest.raises(WaitTooLong):
        await limiter.acquire(max_wait=0)
    clock.ahead += 100 * S

    asyncio.get_running_loop().call_soon(turned.append, True)
    asked = 0
    while not turned and asked < 1_000_000:
        await limiter.acquire()
        asked += 1

    assert turned


def test_a_long_record_of_peaks_stays_close_to_the_truth() -> None:
    """Number 39: neighbours that hardly differ are merged, and not all of them."""
    peaks = Peaks()
    for step in range(1_000):
        peaks.note(step, 1_000 - step)

    for taken in range(0, 999, 7):
        assert 999 - taken <= (peaks.since(taken) or 0) <= 999 - taken + 2 * 1_000 // 32


def test_groups_of_two_strategies_do_not_mix() -> None:
    """Number 39: the takes of an instant are kept by each strategy for itself."""
    pair = [BurstCompensation("7/s", strictness=0.3, start=0) for _ in range(2)]
    for _ in range(3):
        for scheduler in pair:
            scheduler.take(1, 3 * S)

    for _ in range(3):
        pair[0].give_back(1, 3 * S, taken=3 * S)

    assert pair[0].spilled == 0
    pair[1].give_back(3, 3 * S, taken=3 * S)
    assert pair[1].spilled == 0
    assert [scheduler.ticks for scheduler in pair] == [0, 0]


def test_an_older_instant_is_not_undone_after_a_later_one() -> None:
    """Number 39: what was taken at one instant stays taken when all of the next instant comes back."""
    pace = BurstCompensation("7/s", strictness=0.3, start=0)
    for instant in (3 * S, 3 * S, 3 * S, 4 * S):
        pace.take(1, instant)
    before = pace.ticks

    pace.give_back(1, 4 * S, taken=4 * S)
    restored = pace.ticks
    pace.give_back(3, 4 * S, taken=3 * S)

    assert before != restored == pace.ticks


def test_whether_receipts_are_kept_is_told_to_all_members() -> None:
    """Number 39: a member that keeps records for nobody takes half as long again."""
    members = TokenBucket("10/s", burst=5), TokenBucket("10/min", burst=5)
    both = AllOf(*members)

    both.receipts = False
    assert [member.receipts for member in members] == [False, False]
    both.receipts = True
    assert [member.receipts for member in members] == [True, True]


def test_a_budget_that_is_free_waits_for_no_dimension() -> None:
    """Number 39: the one that was waited for is named only where one is waited for."""
    dimensions = Dimensions([TokenBucket("1/s", burst=1, start=0), TokenBucket("2/s", burst=1, start=0)])

    assert dimensions.last(1, 0) is None
    dimensions.take(1, 0)
    assert dimensions.last(1, 0) == 0


def test_a_computed_period_is_read_to_the_nanosecond() -> None:
    """Number 39: a third of a second is no fraction of 17 digits, and a timedelta is read exactly."""
    assert Rate(1, per=1 / 3) == Rate.exactly(1, 333_333_333)
    assert Rate(1, per=0.123456789) == Rate.exactly(1, 123_456_789)
    assert Rate(3, per=timedelta(days=1, microseconds=1)) == Rate.exactly(3, 86_400 * S + 1_000)
    assert Rate.exactly(6, S, 4) == Rate.parse("3/2s")


def test_a_number_of_800_digits_is_read_and_one_more_is_not() -> None:
    """Number 39: the limit is the one that the error names."""
    assert Rate.parse(f"0.{'1' * 798}/s").permits > 0
    with pytest.raises(ValueError, match="801 digits is too long; 800"):
        Rate.parse(f"0.{'1' * 799}/s")


def test_a_herd_of_one_instant_is_one_record() -> None:
    """Number 39: a record for each of 100 000 takes at one instant would be megabytes."""
    bucket, pool = TokenBucket("10/s", burst=1000, start=0), TokenPool("10/s", pool=100 * S, start=0)
    for scheduler in (bucket, pool, BurstCompensation("10/s", start=0), SmoothBursty("10/s", max_stored=1000, start=0)):
        assert sum(scheduler.take(1, 200 * S) <= 200 * S for _ in range(900)) >= 1
        assert not scheduler.older_takes


def test_a_refund_fills_a_bucket_no_more_than_full() -> None:
    """Number 39: permits that come back without a receipt find room, or are gone."""
    bucket = TokenBucket("10/s", burst=3, start=0)
    bucket.take(1, 5 * S)

    bucket.give_back(3, 5 * S)

    assert sum(bucket.take(1, 5 * S) <= 5 * S for _ in range(9)) == 3


def test_time_goes_on_from_the_start_and_from_the_end_of_a_pause() -> None:
    """Number 39: what passed between a start, or the end of a pause, and the next look at the time was lost."""
    readings = [0]
    timeline = Timeline(None)
    timeline.follow(lambda: readings[0])
    timeline.stop(lambda length: None)
    readings[0] = 10 * S
    timeline.start()
    readings[0] = 12 * S

    assert timeline.now() == 2 * S
    timeline.pause(5 * S, lambda length: None)
    readings[0] = 20 * S  # three seconds after its end
    timeline.resume()
    assert timeline.now() == 5 * S


def test_a_shorter_retry_after_wins_over_the_reset_of_an_empty_window() -> None:
    """Number 39: draft-ietf-httpapi-ratelimit-headers-11, section 7. Nothing is left for 30 s, and the server says: in 5 s."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("10/s", burst=10), clock=clock)

    limiter.observe(read_feedback(429, {"Retry-After": "5", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}))

    assert limiter.delay() == 5
    clock.advance(5)
    assert limiter.delay(10) == 0


@pytest.mark.parametrize("quota", [Quota(reset=30), Quota(remaining=0), Quota(limit=10, remaining=5), Quota(remaining=0, reset=0)])
def test_a_quota_that_tells_half_holds_nobody(quota: Quota) -> None:
    """Number 39: what is left without until when, or until when without what is left, says nothing."""
    limiter = Limiter(TokenBucket("10/s", burst=10), clock=ManualClock())

    limiter.observe(Feedback(200, quotas=(quota,)))

    assert limiter.delay(10) == 0


def test_a_permit_comes_back_to_a_pool_at_the_price_at_which_it_was_taken() -> None:
    """Number 39: taken at 1000/s and given back at 10/s, it was a ms of schedule and would have been 100."""
    pool = TokenPool("1000/s", start=0)
    pool.take(1, S)
    pool.set_rate(Rate(10), S + 1)
    before = pool.active

    pool.give_back(1, S + 1, taken=S)

    assert pool.active - before == S // 1000


def test_a_permit_comes_back_to_a_pool_with_others_in_between() -> None:
    """Number 39: by receipt after another take, and without a receipt, it is an interval of schedule."""
    pool = TokenPool("10/s", pool=10 * S, start=0)
    pool.take(2, S)
    pool.take(2, S + 1)
    before = pool.active

    pool.give_back(2, S + 1, taken=S)
    assert pool.active - before == S // 5
    pool.give_back(1, S + 1)
    assert pool.active - before == 3 * S // 10


def test_the_peaks_of_a_pool_follow_its_rate() -> None:
    """Number 39: the pool was full after the first take, so that permit would have spilled, whatever the rate is since."""
    pool = TokenPool("10/s", pool=S, start=0)
    pool.take(1, S)
    pool.take(1, 3 * S)
    pool.set_rate(Rate(1000), 3 * S)
    before = pool.active

    pool.give_back(1, 3 * S, taken=S)

    assert pool.active == before


def test_a_pool_that_was_never_asked_has_nothing_ready() -> None:
    """Number 39: its schedule has not begun, or the clock went back."""
    pool = TokenPool("10/s")

    assert pool.stock(S) == 0
    pool.peek(1, S)
    assert (pool.stock(S), pool.stock(S - 1)) == (1, 0)


def test_a_smooth_store_holds_a_second_by_default() -> None:
    """Number 39: as in the original, and one more passes on credit."""
    smooth = SmoothBursty("10/s", start=0)

    assert sum(smooth.take(1, 60 * S) <= 60 * S for _ in range(30)) == 11


def test_a_run_of_slots_joins_only_the_one_that_follows() -> None:
    """Number 39: slots that come back join those after them, or they would be due at instants that nobody assigned."""
    run = SlotRun(10, 3, 2, 6, -100, 5)
    first = run.split(2)

    assert first.adjoins(run)
    assert not run.adjoins(first)
    assert not SlotRun(10, 3, 2, 3, -100, 5).adjoins(run)
    assert not SlotRun(10, 3, 2, 2, -99, 5).adjoins(run)
    assert not SlotRun(13, 3, 2, 1, -100, 5).adjoins(SlotRun(16, 4, 2, 1, -100, 5))


def test_the_next_free_slots_move_with_a_pause() -> None:
    """Number 39: at any rate, by as much as the pause was long."""
    free = NextFree([Rate(10), Rate(7)], [1, 1])
    free.spend(1, 60 * S)
    due = free.at(1, 0)

    free.shift(50 * S)

    assert free.at(1, 0) == due - 50 * S
