"""Edges of the strategies that a change of the code could shift without any other test noticing."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from helpers.transcripts import S

from aiorate import AllOf, BurstCompensation, CalendarWindow, Rate, SmoothBursty, TicksAccumulator, TokenBucket, TokenPool
from aiorate.schedulers.dimensions import Amounts, Dimensions
from aiorate.schedulers.next_free import NextFree
from aiorate.schedulers.peaks import Peaks
from aiorate.schedulers.slot_run import SlotRun
from aiorate.waiting.timeline import Timeline


def test_bound_counts_the_day_on_which_clocks_go_forward() -> None:
    """In Berlin 30 permits passed in 23.25 h. Without the missing hours, the bound would say 20."""
    begin = round(datetime(2025, 3, 29, 23, 50, tzinfo=ZoneInfo("Europe/Berlin")).timestamp())
    window = CalendarWindow("10/day", "Europe/Berlin", origin=begin * S)

    instants = []
    for _ in range(3):
        instants.append(window.peek(10, instants[-1] if instants else 0))
        window.take(10, instants[-1])

    assert instants == [0, 600 * S, 600 * S + 23 * 3_600 * S]
    assert window.bound(23 * 3_600 * S + 900 * S) == 30


def test_the_record_of_peaks_does_not_grow() -> None:
    """Levels that fall with every take are all peaks; the record keeps 64 of them."""
    peaks = Peaks()

    for step in range(10_000):
        peaks.note(step, -step)

    assert len({peaks.since(step) for step in range(-1, 10_000)} - {None}) <= 64


def test_budget_is_scheduled_for_its_latest_dimension() -> None:
    """The slowest dimension says how late a request starts."""
    dimensions = Dimensions([TicksAccumulator("1/s", start=0), TicksAccumulator("2/s", start=0)])
    amounts = Amounts((1, 1))

    assert [dimensions.take(amounts, 10 * S) for _ in range(3)] == [0, S, 2 * S]
    assert [dimensions.take(1, 10 * S) for _ in range(2)] == [3 * S, 4 * S]


def test_a_long_record_of_peaks_stays_close_to_the_truth() -> None:
    """Neighbours that hardly differ are merged; others are kept."""
    peaks = Peaks()
    for step in range(1_000):
        peaks.note(step, 1_000 - step)

    for taken in range(0, 999, 7):
        assert 999 - taken <= (peaks.since(taken) or 0) <= 999 - taken + 2 * 1_000 // 32


def test_groups_of_two_strategies_do_not_mix() -> None:
    """Each strategy keeps its own takes of an instant."""
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
    """Permits taken at one instant stay taken when all of the next instant come back."""
    pace = BurstCompensation("7/s", strictness=0.3, start=0)
    for instant in (3 * S, 3 * S, 3 * S, 4 * S):
        pace.take(1, instant)
    before = pace.ticks

    pace.give_back(1, 4 * S, taken=4 * S)
    restored = pace.ticks
    pace.give_back(3, 4 * S, taken=3 * S)

    assert before != restored == pace.ticks


def test_all_of_tells_its_members_whether_to_keep_receipts() -> None:
    """A member that keeps records in vain takes half as long again."""
    members = TokenBucket("10/s", burst=5), TokenBucket("10/min", burst=5)
    both = AllOf(*members)

    both.receipts = False
    assert [member.receipts for member in members] == [False, False]
    both.receipts = True
    assert [member.receipts for member in members] == [True, True]


def test_a_budget_that_is_free_waits_for_no_dimension() -> None:
    """A dimension is named only if the request waits for it."""
    dimensions = Dimensions([TokenBucket("1/s", burst=1, start=0), TokenBucket("2/s", burst=1, start=0)])

    assert dimensions.last(1, 0) is None
    dimensions.take(1, 0)
    assert dimensions.last(1, 0) == 0


def test_a_herd_of_one_instant_is_one_record() -> None:
    """A record for each of 100 000 takes at one instant would use megabytes."""
    bucket, pool = TokenBucket("10/s", burst=1000, start=0), TokenPool("10/s", pool=100 * S, start=0)
    for scheduler in (bucket, pool, BurstCompensation("10/s", start=0), SmoothBursty("10/s", max_stored=1000, start=0)):
        assert sum(scheduler.take(1, 200 * S) <= 200 * S for _ in range(900)) >= 1
        assert not scheduler.older_takes


def test_refund_does_not_overfill_a_bucket() -> None:
    """Permits returned without a receipt fit into the bucket, or are lost."""
    bucket = TokenBucket("10/s", burst=3, start=0)
    bucket.take(1, 5 * S)

    bucket.give_back(3, 5 * S)

    assert sum(bucket.take(1, 5 * S) <= 5 * S for _ in range(9)) == 3


def test_time_goes_on_from_a_start_and_the_end_of_a_pause() -> None:
    """The time between a start, or the end of a pause, and the next reading was lost."""
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


def test_permit_returns_to_a_pool_at_the_price_it_was_taken_at() -> None:
    """Taken at 1000/s it cost 1 ms of schedule; returned at 10/s it must not bring 100 ms."""
    pool = TokenPool("1000/s", start=0)
    pool.take(1, S)
    pool.set_rate(Rate(10), S + 1)
    before = pool.active

    pool.give_back(1, S + 1, taken=S)

    assert pool.active - before == S // 1000


def test_permit_returns_to_a_pool_after_other_takes() -> None:
    """By receipt after another take, and without a receipt, it brings one interval of schedule."""
    pool = TokenPool("10/s", pool=10 * S, start=0)
    pool.take(2, S)
    pool.take(2, S + 1)
    before = pool.active

    pool.give_back(2, S + 1, taken=S)
    assert pool.active - before == S // 5
    pool.give_back(1, S + 1)
    assert pool.active - before == 3 * S // 10


def test_the_peaks_of_a_pool_follow_its_rate() -> None:
    """The pool was full after the first take, so that permit would have spilled, whatever the rate is now."""
    pool = TokenPool("10/s", pool=S, start=0)
    pool.take(1, S)
    pool.take(1, 3 * S)
    pool.set_rate(Rate(1000), 3 * S)
    before = pool.active

    pool.give_back(1, 3 * S, taken=S)

    assert pool.active == before


def test_a_pool_that_was_never_asked_has_nothing_ready() -> None:
    """Its schedule has not begun, or the clock went back."""
    pool = TokenPool("10/s")

    assert pool.stock(S) == 0
    pool.peek(1, S)
    assert (pool.stock(S), pool.stock(S - 1)) == (1, 0)


def test_a_smooth_store_holds_a_second_by_default() -> None:
    """As in the original; one more passes on credit."""
    smooth = SmoothBursty("10/s", start=0)

    assert sum(smooth.take(1, 60 * S) <= 60 * S for _ in range(30)) == 11


def test_run_of_slots_joins_only_the_next_run() -> None:
    """Returned slots join those right after them; otherwise they would be due at instants that the store never assigned."""
    run = SlotRun(10, 3, 2, 6, -100, 5)
    first = run.part(run.next, 2)
    run.skip(2)

    assert first.adjoins(run)
    assert not run.adjoins(first)
    assert not SlotRun(10, 3, 2, 3, -100, 5).adjoins(run)
    assert not SlotRun(10, 3, 2, 2, -99, 5).adjoins(run)
    assert not SlotRun(13, 3, 2, 1, -100, 5).adjoins(SlotRun(16, 4, 2, 1, -100, 5))


def test_the_next_free_slots_move_with_a_pause() -> None:
    """At any rate they move by the length of the pause."""
    free = NextFree([Rate(10), Rate(7)], [1, 1])
    free.spend(1, 60 * S)
    due = free.at(1, 0)

    free.shift(50 * S)

    assert free.at(1, 0) == due - 50 * S
