"""AdaptiveRate against models of servers, in virtual time: a few of every kind, with thresholds that leave room.

`python docs/make_figures.py adaptive` compares it with other ways.
"""

from __future__ import annotations

import pytest
from helpers.adaptive import figures, table

pytestmark = pytest.mark.slow

ROUND_TRIP = 0.05


def found(kind: str, start: float = 1.0, round_trip: float = ROUND_TRIP, **options: object) -> figures.Figures:
    """The figures of one simulation."""
    return table.simulate(table.cells(["AdaptiveRate"], [kind], [round_trip], [start], **options)[0])[0].figures  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [0.1, 1.0, 10.0])
def test_limit_is_found_from_any_start(start: float) -> None:
    """Most of what a token bucket allows is used, and few requests are refused."""
    seen = found("bucket", start)

    assert seen.share > 0.5
    assert seen.refused < 5
    assert seen.fall is not None
    assert seen.fall < 30


@pytest.mark.parametrize("kind", ["window1", "window10", "sliding", "neighbour"])
def test_limit_is_found_whatever_its_kind(kind: str) -> None:
    """Windows and neighbours too."""
    seen = found(kind)

    assert seen.share > 0.7
    assert seen.refused < 10


def test_long_sliding_window_is_found_from_below() -> None:
    """It refuses seconds after a climb was too high, and then gives as slowly as the climb began: the next climbs are slower."""
    seen = found("sliding", 0.1, changed={"period": 5, "limit": 60, "seconds": 400})

    assert seen.share > 0.6
    assert seen.refused < 8


@pytest.mark.parametrize("refused", [0.5, 0.9])
def test_a_large_share_of_refusals_lowers_no_rate(refused: float) -> None:
    """It pays for climbs; the rate stays close to what the server gives."""
    assert found("slow", refused=refused, changed={"limit": 20, "seconds": 120}).share > 0.85


def test_limit_of_concurrency_is_followed() -> None:
    """A rate cannot hold a concurrency, but it can stay near."""
    seen = found("concurrency")

    assert seen.share > 0.45
    assert seen.refused < 8


@pytest.mark.parametrize("kind", ["retry1", "retry30"])
def test_pauses_are_rare(kind: str) -> None:
    """Each costs everybody the time that it takes."""
    seen = found(kind, 10)

    assert seen.share > 0.5
    assert seen.refused < 3


def test_rate_climbs_to_the_ceiling_where_nothing_is_refused() -> None:
    """From a hundredth of it."""
    seen = found("unlimited", 0.01)

    assert 0 == seen.refused
    assert seen.reached is not None
    assert seen.reached < 25


def test_rate_does_not_run_away_from_little_demand() -> None:
    """Nothing is learnt about a rate that nobody uses: demand of 20/s does not show what 1000/s would do."""
    seen = found("demand", 0.1)

    assert seen.share > 0.99
    assert seen.top < 200


def test_no_client_of_three_starves() -> None:
    """Each has a share, and together they use most of the limit."""
    seen = found("equal")

    assert seen.jain is not None
    assert seen.jain > 0.5
    assert seen.share > 0.75


def test_rate_is_found_without_being_told_how_long_answers_took() -> None:
    """With less to go by."""
    seen = found("bucket", took=False)

    assert seen.share > 0.3
    assert seen.refused < 15


@pytest.mark.parametrize(("strategy", "kind"), [("strict", "bucket"), ("bucket20", "bucket"), ("window", "window1")])
def test_limit_is_found_with_any_strategy(strategy: str, kind: str) -> None:
    """The limiter need not be a pool."""
    seen = found(kind, strategy=strategy)

    assert seen.share > 0.6
    assert seen.refused < 8
