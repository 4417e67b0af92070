"""The arithmetic by which the demo decides whether a guarantee was kept: exact, on instants by hand."""

from __future__ import annotations

import itertools
import random

import pytest

import aiorate
from aiorate._demo import report as _demo_report
from aiorate._demo.verdict import Verdict, WindowCount, jitter, judge, percentile, worst_window


@pytest.mark.parametrize(
    ("instants", "window", "expected"),
    [
        ([], 10, 0),
        ([5], 1, 1),
        ([0, 10], 10, 1),  # half-open: an instant a whole window later is outside
        ([0, 10], 11, 2),
        ([0, 0, 0, 1], 1, 3),
        ([0, 4, 8, 9, 10, 30], 5, 3),
        ([0, 100, 101, 102, 200, 201], 1_000, 6),
    ],
)
def test_the_worst_window_holds_the_most_instants(instants: list[int], window: int, expected: int) -> None:
    """An error by one would hide a broken guarantee, or call a kept one broken."""
    assert expected == worst_window(instants, window)


def test_the_worst_window_agrees_with_trying_every_window() -> None:
    """The two pointers skip windows, none of which may hold more."""
    chance = random.Random(1)
    for _ in range(200):
        instants = sorted(chance.randrange(60) for _ in range(chance.randrange(25)))
        window = chance.randrange(1, 40)
        expected = max(sum(start <= instant < start + window for instant in instants) for start in range(-window, 61))

        assert expected == worst_window(instants, window)


def test_jitter_is_the_spread_of_transit_times() -> None:
    """The shortest transit is 3, the longest 8; requests that never arrived do not count."""
    assert jitter([0, 10, 20, 30], [3, 18, 25]) == 5
    assert jitter([0], [1_000]) == 0
    assert jitter([], []) == 0


def test_arrivals_never_break_a_kept_guarantee() -> None:
    """On any network, even where requests overtake each other: the allowance for jitter is a theorem."""
    chance = random.Random(2)
    bound = aiorate.BurstCompensation(aiorate.Rate(1, 1e-8)).bound  # one permit per 10 ns
    for _ in range(200):
        grants = list(itertools.accumulate(chance.choice((10, 10, 13, 40)) for _ in range(30)))
        arrivals = [grant + chance.randrange(1, 60) for grant in grants]

        assert judge(bound, grants, arrivals, range(1, 200, 7)).kept


def test_one_grant_too_many_in_a_window_is_found() -> None:
    """It gives exit code 1: two grants in 10 ns where one is allowed, in a long run that is otherwise right."""
    grants = [*range(0, 1_000, 10), 1_005, *range(1_010, 2_000, 10)]

    verdict = judge(lambda window: -(-window // 10), grants, [], [10])

    assert not verdict.kept
    assert verdict.windows[0].granted == 2
    assert verdict.windows[0].granted_at_most == 1


def test_a_request_that_was_never_granted_breaks_the_guarantee() -> None:
    """The server sees one more request than the limiter granted: a client did not use it."""
    verdict = judge(lambda window: None, [0, 10], [1, 5, 11], [10])

    assert verdict.unpaid == 1
    assert not verdict.kept
    assert "1 requests more" in str(_demo_report.verdict_text(verdict))


def test_too_many_arrivals_break_a_guarantee() -> None:
    """Even if the grants kept it: the server's count is checked by itself."""
    count = WindowCount(window=10, granted=1, granted_at_most=1, arrived=3, arrived_at_most=2)

    assert not count.kept
    assert not Verdict((count,), jitter=10, unpaid=0).kept


def test_percentiles_are_by_nearest_rank() -> None:
    """The 99th of a hundred values is the 99th, not the largest."""
    values = [float(n) for n in range(100, 0, -1)]

    assert [percentile(values, percent) for percent in (0, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([], 50) == 0.0
