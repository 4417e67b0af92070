"""The whole table of models of servers, over round trips of 5, 50 and 300 ms and starts at a tenth, once and ten times the limit.

`python docs/make_figures.py adaptive` prints such figures. They are the same on any machine.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from helpers.adaptive import kinds, table

pytestmark = pytest.mark.slow


class Bound(NamedTuple):
    """The least share of what was allowed and the most refused (%), as means over the cells and in the worst of them."""

    share: float
    share_worst: float
    refused: float
    refused_worst: float


BOUNDS = {
    "bucket": Bound(0.90, 0.72, 2.2, 5),
    "window1": Bound(0.86, 0.66, 4, 7.5),
    "window10": Bound(0.93, 0.85, 6, 11),
    "sliding": Bound(0.90, 0.78, 2, 5.5),
    "concurrency": Bound(0.78, 0.60, 1.8, 6),
    "varied": Bound(0.62, 0.5, 2.3, 7),
    "neighbour": Bound(0.86, 0.70, 2.8, 6),
    "retry1": Bound(0.77, 0, 1.3, 100),
    "retry30": Bound(0.72, 0, 0.6, 100),
    "retry89": Bound(0.60, 0, 0.6, 100),
    "equal": Bound(0.93, 0, 3.5, 100),
    "late": Bound(0.93, 0, 3.5, 100),
    "apart": Bound(0.93, 0, 3.5, 100),
    "equal1": Bound(0.88, 0.75, 6, 10),
    "equal10": Bound(0.93, 0.85, 5, 10),
    "slow": Bound(0.80, 0, 6, 100),
    "fast": Bound(0.88, 0, 3, 100),
}
FAIR = {"equal": 0.92, "late": 0.88, "apart": 0.65, "equal1": 0.8, "equal10": 0.65}  # Jain's index, as a mean


def found(kind: str) -> table.Summary:
    """The means and worsts of a kind."""
    return table.summary([table.simulate(cell)[0] for cell in table.cells(["AdaptiveRate"], [kind])])


@pytest.mark.parametrize("kind", BOUNDS)
def test_most_of_what_is_allowed_is_used(kind: str) -> None:
    """At the cost of few refusals."""
    bound, seen = BOUNDS[kind], found(kind)

    assert seen.share >= bound.share
    assert seen.share_worst >= bound.share_worst
    assert seen.refused <= bound.refused
    assert seen.refused_worst <= bound.refused_worst
    assert (seen.jain or 1) >= FAIR.get(kind, 0)


def test_changes_are_found_in_time() -> None:
    """0.85 of the new limit: 10 s after a fall, 25 s after a rise, from every start and at every distance."""
    seen = found("bucket")

    assert seen.fall is not None
    assert seen.fall <= 10
    assert seen.rise is not None
    assert seen.rise <= 25


def test_ceiling_is_reached() -> None:
    """Within 20 s from 1 % of it, and nothing is refused."""
    seen = found("unlimited")

    assert seen.reached <= 20
    assert 0 == seen.refused_worst


def test_little_demand_does_not_raise_the_rate() -> None:
    """20/s under a limit of 100/s: no more than 200/s."""
    assert found("demand").top < 200


def test_every_kind_is_looked_at() -> None:
    """A kind that is added gets its bounds."""
    assert {*BOUNDS, "unlimited", "demand"} == set(kinds.KINDS)
