"""SmoothBursty and SmoothWarmingUp: stored permits, paid later."""

from __future__ import annotations

import pytest
from helpers.transcripts import S, grants, waits

from aiorate import Rate, SmoothBursty, SmoothWarmingUp


def test_bursty_starts_empty_and_its_first_request_is_free() -> None:
    """The burst must be earned."""
    assert waits(SmoothBursty("5/s"), "0 0 0.2") == "0 0.2 0.2"


def test_bursty_passes_its_store_and_one_more_at_once() -> None:
    """The last one on credit."""
    assert grants(SmoothBursty("5/s", start=0), 8, begin=2) == "2 2 2 2 2 2 2.2 2.4"


@pytest.mark.parametrize(
    ("parameters", "at_once"), [({"max_burst": 2}, 11), ({"max_stored": 2.5}, 3), ({"max_burst": 0}, 1), ({"max_stored": 0}, 1)]
)
def test_the_store_is_capped_in_seconds_or_in_permits(parameters: dict[str, float], at_once: int) -> None:
    """After a year of idle time, the cap and one on credit."""
    store = SmoothBursty("5/s", start=0, **parameters)
    begin = 365 * 86_400

    assert grants(store, 12, begin=begin).split().count(str(begin)) == at_once


def test_fractions_of_a_stored_permit_are_kept() -> None:
    """A caller that comes every 1.9 intervals stores 0.9 each time; the article's limiter never stores anything."""
    store = SmoothBursty("1/s", max_stored=5, start=0)
    waits(store, "0 1.9 3.8 5.7")

    assert store.stored == 1.7


def test_warming_up_is_slow_at_first() -> None:
    """2/s, 4 s of warm-up, cold factor 3: intervals from 1.375 s down to 0.5 s."""
    assert waits(SmoothWarmingUp("2/s", warmup=4), "0 0 1.375 2.5 3.375 4 4.5") == "0 1.375 1.125 0.875 0.625 0.5 0.5"


def test_warming_up_cools_down_while_idle() -> None:
    """A whole warm-up time of idleness makes it cold again."""
    warm = SmoothWarmingUp("2/s", warmup=4)
    assert grants(warm, 12).split()[-3:] == ["6.5", "7", "7.5"]

    assert waits(warm, "100 100 100") == "0 1.375 2.5"


def test_from_cold_to_warm_takes_the_warm_up_time() -> None:
    """From full to the threshold, in one request or in many."""
    for cold_factor, permits in ((1, 8), (3, 4), (7, 2)):
        one, many = (SmoothWarmingUp("2/s", warmup=4, cold_factor=cold_factor, start=0) for _ in range(2))
        assert one.stored == 4 + permits

        one.take(permits, 0)
        waits(many, " ".join(["0"] * permits))

        assert one.next_free == many.next_free == 4 * S


@pytest.mark.parametrize("make", [lambda: SmoothBursty("10/s", start=0), lambda: SmoothWarmingUp("10/s", warmup=1, cold_factor=1, start=0)])
def test_a_change_of_the_rate_shows_from_the_request_after_next(make: type) -> None:
    """Debt already incurred keeps its duration."""
    smooth = make()
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


@pytest.mark.parametrize("make", [lambda: SmoothBursty("10/s", start=0), lambda: SmoothWarmingUp("10/s", warmup=1, start=0)])
def test_the_latest_take_is_undone_as_if_it_had_not_been(make: type) -> None:
    """Wholly or in part; earlier takes have delayed others already."""
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


@pytest.mark.parametrize(
    ("make", "arguments", "error", "hint"),
    [
        (SmoothBursty, {"max_burst": -1}, ValueError, "0 or more"),
        (SmoothBursty, {"max_stored": -1}, ValueError, "0 or more"),
        (SmoothBursty, {"max_burst": 1, "max_stored": 1}, ValueError, "not both"),
        (SmoothBursty, {"max_burst": float("inf")}, ValueError, "finite"),
        (SmoothBursty, {"max_burst": True}, TypeError, "max_burst"),
        (SmoothWarmingUp, {"warmup": 0}, ValueError, "more than 0"),
        (SmoothWarmingUp, {"warmup": float("nan")}, ValueError, "finite"),
        (SmoothWarmingUp, {"warmup": 1, "cold_factor": 0.5}, ValueError, "1 or more"),
        (SmoothWarmingUp, {"warmup": "1"}, TypeError, "warmup"),
    ],
)
def test_wrong_arguments_are_refused(make: type, arguments: dict[str, object], error: type[Exception], hint: str) -> None:
    """A warm-up of zero stopped throttling altogether in the original."""
    with pytest.raises(error, match=hint):
        make("10/s", **arguments)


@pytest.mark.parametrize("scheduler", [SmoothBursty("10/s", max_burst=0, start=0), SmoothWarmingUp("10/s", warmup=1, start=0)])
def test_idle_time_lost_at_a_take_comes_back_with_it(scheduler: SmoothBursty | SmoothWarmingUp) -> None:
    """The take found the store full, and lost idle time. By receipt, nothing was taken and nothing lost."""
    scheduler.take(1, 0)
    before = scheduler.spilled
    scheduler.take(1, 3600 * S)
    assert scheduler.spilled > before

    scheduler.give_back(1, 3600 * S, 3600 * S)

    assert scheduler.spilled == before
