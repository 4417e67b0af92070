"""What ``simulate --suggest`` finds: the smallest burst and rate, proven by runs with one less."""

from __future__ import annotations

from array import array
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiorate
from aiorate import Rate
from aiorate._demo.strategies import NAMES, code, make
from aiorate._simulate.arrivals import Arrivals, arrange
from aiorate._simulate.goals import Goal, parse_goals
from aiorate._simulate.play import Admission, play
from aiorate._simulate.poisson import poisson
from aiorate._simulate.suggest import Search, keeps, smallest

NS = 1_000_000_000


def at(instants: list[int]) -> Arrivals:
    return arrange("here", "test", array("q", instants), None, None, whole=False, skipped=0, seed=0)


def search(arrivals: Arrivals, goals: str, admission: Admission | None = None) -> Search:
    return Search(arrivals, admission or Admission(), parse_goals(goals), lambda done: None)


@pytest.mark.parametrize(
    ("text", "percent", "wait"),
    [
        ("p99=1s", 99, NS),
        ("P50 = 200ms", 50, NS // 5),
        ("p99.9=2", Fraction("99.9"), 2 * NS),
        ("max=1.5min", 100, 90 * NS),
        ("max=0", 100, 0),
        ("refused=1%", 99, None),
        ("refused=0.5%", Fraction("99.5"), None),
    ],
)
def test_a_goal_is_a_percentile_or_a_share(text: str, percent: Fraction, wait: int | None) -> None:
    """Read exactly."""
    (goal,) = parse_goals(text)

    assert (Fraction(goal.percent), goal.wait) == (percent, wait)


@pytest.mark.parametrize(
    "text",
    ["", "p99", "p99=", "p=1s", "p0=1s", "p100=1s", "p99=-1s", "p99=1m", "p99=1s,", "refused=1", "refused=100%", "mean=1s"],
)
def test_a_wrong_goal_says_what_to_write(text: str) -> None:
    """Whatever is wrong with it."""
    with pytest.raises(ValueError, match="Write '"):
        parse_goals(text)


def test_a_percentile_is_that_of_the_nearest_rank() -> None:
    """Of 1000 requests, one may miss p99.9, and ten may miss p99; of 99, none may."""
    goals = parse_goals("p99.9=1s,p99=1s,max=1s")

    assert [goal.allowed(1_000) for goal in goals] == [1, 10, 0]
    assert [goal.allowed(99) for goal in goals] == [0, 0, 0]


def test_a_refused_request_misses_every_goal() -> None:
    """Otherwise a limit that refuses everybody would be the best."""
    waits = array("q", [0, NS, NS + 1, -1])

    assert [goal.missed(waits) for goal in parse_goals("p50=1s,refused=1%")] == [2, 1]
    assert not keeps([waits], parse_goals("p51=1s"), 4)
    assert keeps([waits], parse_goals("p50=1s"), 4)
    assert not keeps([], parse_goals("p50=1s"), 4)


@given(st.integers(1, 50), st.integers(0, 100), st.integers(0, 200))
def test_the_search_finds_the_smallest_number(least: int, more: int, enough: int) -> None:
    """If more never hurts."""
    found = smallest(lambda number: number >= enough, least, least + more)

    assert found == (None if enough > least + more else max(least, enough))


def test_burst_and_rate_by_hand() -> None:
    """Ten requests at once, at 2 per second: with a burst of 6, the last waits for 2 s. One in 2 s is the smallest rate for burst 9."""
    arrivals = at([0] * 10)

    assert search(arrivals, "max=2s").smallest_burst(lambda burst: aiorate.TokenBucket("2/s", burst)) == 6
    assert search(arrivals, "p60=0").smallest_burst(lambda burst: aiorate.TokenBucket("2/s", burst)) == 6
    found = search(arrivals, "max=2s").smallest_rate(lambda rate: aiorate.TokenBucket(rate, 6), NS)
    assert found == Rate(2)
    assert search(arrivals, "max=0").smallest_rate(lambda rate: aiorate.SlidingWindow(rate), 60 * NS) == Rate(10, 60)


def test_a_burst_is_never_smaller_than_a_request() -> None:
    """Such a bucket could never grant it."""
    found = search(at([0]), "max=1min", Admission(permits=7)).smallest_burst(lambda burst: aiorate.TokenBucket("1/s", burst))

    assert found == 7


def test_a_window_is_never_smaller_than_a_request() -> None:
    """As a bucket."""
    found = search(at([0, 0]), "max=1min", Admission(permits=7)).smallest_rate(lambda rate: aiorate.SlidingWindow(rate), NS)

    assert found == Rate(7)


def test_what_no_rate_can_do_is_told() -> None:
    """Two requests at the same instant, and a burst of one."""
    found = search(at([0, 0]), "max=0").smallest_rate(lambda rate: aiorate.TokenBucket(rate, 1), NS)

    assert found is None


@pytest.mark.parametrize("goals", ["p99=300ms", "max=1s", "p50=0,p90=200ms"])
@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "SlidingWindow", "AllOf", "BurstRatio"])
def test_one_less_is_not_enough(name: str, goals: str) -> None:
    """Every number below it is tried, not only the next."""
    arrivals = at(list(poisson(Rate(20), 150, None, 3)))
    asked = parse_goals(goals)

    found = search(arrivals, goals).smallest_rate(lambda rate: make(name, rate), NS)

    assert found is not None
    enough = [
        keeps(play(lambda number=number: make(name, Rate(number)), arrivals, Admission()), asked, 150)  # type: ignore[misc]
        for number in range(1, found.permits + 10)
    ]
    assert enough == [number >= found.permits for number in range(1, found.permits + 10)]


@given(
    gaps=st.lists(st.integers(0, 400_000_000), min_size=1, max_size=40),
    burst=st.integers(1, 8),
    rate=st.integers(1, 30),
    permits=st.integers(1, 2),
)
def test_more_never_hurts_a_bucket_or_a_window(gaps: list[int], burst: int, rate: int, permits: int) -> None:
    """Each request is granted no later, so the search is exact."""
    arrivals = at([sum(gaps[:number]) for number in range(len(gaps))])
    burst, rate = max(burst, permits), max(rate, permits)
    makes = [
        (lambda: aiorate.TokenBucket(rate, burst), lambda: aiorate.TokenBucket(rate, burst + 1)),
        (lambda: aiorate.TokenBucket(rate, burst), lambda: aiorate.TokenBucket(rate + 1, burst)),
        (lambda: aiorate.SlidingWindow(rate), lambda: aiorate.SlidingWindow(rate + 1)),
    ]
    for smaller, larger in makes:
        before, after = ([wait for part in play(each, arrivals, Admission(permits)) for wait in part] for each in (smaller, larger))
        assert all(one >= other for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("rate", ["50/s", "3/250ms", "0.7/s", "600/min"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_printed_makes_the_same_strategy(name: str, rate: str) -> None:
    """It is made to be pasted."""
    if name == "CalendarWindow" and rate in ("3/250ms", "0.7/s"):
        return
    asked = Rate.parse(rate)
    pasted = eval(code(name, asked), {known: getattr(aiorate, known) for known in aiorate.__all__})

    assert repr(pasted) == repr(make(name, asked))
    again = list(play(lambda: make(name, asked), at([0] * 30), Admission()))
    assert list(play(lambda: pasted, at([0] * 30), Admission())) == again or name == "CalendarWindow"


def test_a_wait_of_centuries_is_not_enough() -> None:
    """Neither does it stop the search."""
    arrivals = at([0] * 100)
    slow = Rate(1, 10**9)

    found = search(arrivals, "max=1day").smallest_rate(lambda rate: aiorate.BurstCompensation(rate), slow.period_ns)

    assert found is not None
    assert found.permits == -(-(99 * 10**9) // 86_400)
    with pytest.raises(ValueError, match="wait for more than 200 years"):
        list(play(lambda: aiorate.BurstCompensation(slow), arrivals, Admission()))


def test_a_burst_is_printed_too() -> None:
    """The one that was asked for."""
    assert code("TokenBucket", Rate.parse("50/s"), 120) == 'TokenBucket("50/s", burst=120)'
    assert repr(make("tokenbucket", Rate(5), burst=9)) == "TokenBucket('5/s', burst=9)"


def test_poisson_arrivals_have_the_mean_and_the_seed() -> None:
    """And end in time."""
    made = poisson(Rate(100), 20_000, None, 1)

    assert made[0] == 0
    assert len(made) == 20_000
    assert abs(made[-1] / NS - 200) < 6
    assert list(made) == sorted(made)
    assert poisson(Rate(100), 20_000, None, 1) == made
    assert poisson(Rate(100), 20_000, None, 2) != made
    short = poisson(Rate(100), None, 2 * NS, 1)
    assert short == made[: len(short)]
    assert short[-1] < 2 * NS <= made[len(short)]


def test_goals_show_what_was_asked() -> None:
    """In the output."""
    assert parse_goals("p99 = 1s")[0] == Goal("p99=1s", parse_goals("p99=1s")[0].percent, NS)
