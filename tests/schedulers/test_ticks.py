"""TicksAccumulator, BurstCompensation, BurstRatio: three ways to treat unused time."""

from __future__ import annotations

import pytest
from helpers.transcripts import S, grants, waits

from aiorate import BurstCompensation, BurstRatio, Rate, TicksAccumulator


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
    assert pace.spilled == S // 2 + S // 5 + S // 20


def test_strictness_zero_is_the_plain_accumulator() -> None:
    """One revision of the original closed the whole gap instead."""
    asked = "0 3 3 3.05 9 9 9"

    assert waits(BurstCompensation("7/s", strictness=0), asked) == waits(TicksAccumulator("7/s"), asked)


def test_a_burst_ratio_catches_up_and_never_runs_ahead() -> None:
    """A second late at 10/s, ratio 2: 20/s for as long as the delay lasted, then 10/s."""
    pace = BurstRatio("10/s", ratio=2, start=0)

    assert grants(pace, 22, begin=1).split()[:3] == ["1", "1.05", "1.1"]
    assert grants(BurstRatio("10/s", ratio=2, start=0), 24, begin=1).split()[-4:] == ["2", "2.1", "2.2", "2.3"]


def test_ratio_one_never_catches_up_and_says_so() -> None:
    """Rate 1000, 1000 ns late: the original's own test reports lateness 1000, 1000, 1000."""
    pace = BurstRatio("1000/s", ratio=1, start=50_000)
    late = [now - pace.take(1, now) for now in (51_000, 1_051_000, 2_051_000)]

    assert late == [1000, 1000, 1000]
    assert pace.lag(3_051_000) == 1000


@pytest.mark.parametrize("make", [TicksAccumulator, BurstCompensation, BurstRatio])
def test_the_size_of_a_request_delays_only_those_behind_it(make: type[TicksAccumulator]) -> None:
    """They pay later."""
    assert waits(make("10/s"), "0:100 0 0") == "0 10 10.1"


@pytest.mark.parametrize("make", [TicksAccumulator, BurstCompensation, BurstRatio])
def test_only_the_latest_slot_can_be_given_back(make: type[TicksAccumulator]) -> None:
    """A slot in the middle is lost: a request moved into it would come closer than promised."""
    pace = make("10/s")
    waits(pace, "0:2 0.2:3")

    pace.give_back(2, S, taken=0)
    pace.give_back(1, S)
    assert pace.peek(1, 0) == 5 * S // 10
    pace.give_back(1, S, taken=S // 5)
    assert pace.peek(1, 0) == 4 * S // 10
    pace.give_back(5, S, taken=S // 5)
    assert pace.peek(1, 0) == 2 * S // 10
    pace.give_back(2, S, taken=S // 5)
    assert pace.peek(1, 0) == 2 * S // 10


@pytest.mark.parametrize("make", [TicksAccumulator, BurstCompensation, BurstRatio])
def test_slots_taken_at_one_instant_are_interchangeable(make: type[TicksAccumulator]) -> None:
    """Three served by one late wake-up: any of them gives its slot back, and the next in line gets the last of the three."""
    pace = make("10/s")
    for since in (0, 0, 0):
        pace.take(1, S // 5, since)

    pace.give_back(1, S // 5, taken=S // 5)

    assert pace.peek(1, 0) == 2 * S // 10


@pytest.mark.parametrize("make", [TicksAccumulator, BurstCompensation, BurstRatio])
def test_set_rate_keeps_the_next_slot(make: type[TicksAccumulator]) -> None:
    """No debt is forgiven, and no promised slot is lost."""
    pace = make("10/s")
    waits(pace, "0:5")

    pace.set_rate(Rate(100), 0)

    assert waits(pace, "0 0 0") == "0.5 0.51 0.52"


@pytest.mark.parametrize("make", [TicksAccumulator, BurstCompensation, BurstRatio])
def test_restart_forgets_the_backlog_but_keeps_a_debt(make: type[TicksAccumulator]) -> None:
    """Afterwards the schedule runs from now."""
    late, early = make("10/s", start=0), make("10/s", start=0)
    early.take(20, 0)

    late.restart(S)
    early.restart(S)

    assert grants(late, 3, begin=1) == "1 1.1 1.2"
    assert grants(early, 1, begin=1) == "2"


def test_lag_is_how_far_behind_the_schedule_is() -> None:
    """The wait time of a load test. Slots promised ahead do not make it negative."""
    for pace in (TicksAccumulator("10/s", start=0), BurstCompensation("10/s", start=0), BurstRatio("10/s", start=0)):
        assert pace.lag(3 * S) == 3 * S
        pace.take(100, 0)
        assert pace.lag(3 * S) == 0
    assert TicksAccumulator("10/s").lag(5) == BurstRatio("10/s").lag(5) == 0


def test_apply_changes_the_ratio() -> None:
    """From 20/s to 30/s in the middle of catching up."""
    pace = BurstRatio("10/s", ratio=2, start=0)
    assert waits(pace, "9 9") == "0 0.05"

    pace.apply("10/s", 4, 9 * S)

    assert waits(pace, "9 9 9") == "0.1 0.125 0.15"
    assert pace.ratio == 4


def test_stock_counts_the_slots_that_are_due() -> None:
    """They need no new reading of the clock: the last-seen time of the original."""
    pace = TicksAccumulator("10/s", start=0)
    pace.take(1, S)

    assert [pace.stock(now) for now in (0, S // 10 - 1, S // 10, S)] == [0, 0, 1, 10]
    assert pace.ticks == S // 10


@pytest.mark.parametrize(
    ("make", "value", "error", "hint"),
    [
        (BurstCompensation, -0.1, ValueError, "from 0"),
        (BurstCompensation, 1.1, ValueError, "from 0"),
        (BurstCompensation, float("nan"), ValueError, "finite"),
        (BurstCompensation, True, TypeError, "strictness"),
        (BurstRatio, 0.99, ValueError, "1 or more"),
        (BurstRatio, float("inf"), ValueError, "finite"),
        (BurstRatio, "2", TypeError, "ratio"),
    ],
)
def test_wrong_arguments_are_refused(make: type, value: object, error: type[Exception], hint: str) -> None:
    """At construction, with the range that is allowed."""
    with pytest.raises(error, match=hint):
        make("10/s", value)


def test_giving_up_half_of_a_gap_gains_no_fraction() -> None:
    """Half of three nanoseconds is given up as two, so that strictness never makes a permit earlier."""
    scheduler = BurstCompensation("1/3ns", strictness=0.5, start=0)
    assert scheduler.take(1, 0) == 0

    assert scheduler.take(1, 6) == 3

    assert scheduler.peek(1, 6) == 8


@pytest.mark.parametrize("receipt", [True, False])
def test_a_returned_slot_brings_its_gap_back(receipt: bool) -> None:
    """The gap before a slot is given up by the request that takes the slot. Without a receipt, slot and gap are lost."""
    scheduler = BurstCompensation("10/s", start=0)
    scheduler.take(1, 0)
    assert scheduler.take(1, S) == S // 10
    assert scheduler.spilled == 9 * S // 10

    scheduler.give_back(1, S, S if receipt else None)

    assert scheduler.spilled == (0 if receipt else 9 * S // 10)


def test_stock_is_empty_before_the_first_call() -> None:
    """The schedule begins with that call: a limiter made long ago has no burst."""
    pace = TicksAccumulator("10/s")
    assert pace.stock(5 * S) == 0

    assert pace.take(1, 5 * S) == 5 * S
    assert [pace.stock(5 * S + S // 20 * place) for place in range(1, 5)] == [0, 1, 1, 2]


def test_apply_before_the_first_call_starts_no_schedule() -> None:
    """apply() without an instant has none to begin at."""
    pace = BurstRatio("10/s", ratio=2)

    pace.apply("5/s", 3)

    assert pace.ratio == 3
    assert repr(pace) == "BurstRatio('5/s', ratio=3)"
    assert waits(pace, "7 7 7") == "0 0.2 0.4"
