"""StoreDimension: a dimension of a budget in a store, as its process knows it. It says what the store allows, and grants what it booked."""

from __future__ import annotations

import pytest

from aiorate.rate import Rate
from aiorate.schedulers.booked_dimensions import BookedDimensions, StoreDimension

SECOND = 10**9
SLACK = SECOND // 100


def test_a_burst_and_the_rate_bound_a_window() -> None:
    """The burst at once, then the rate, for the window and the slack of its slots."""
    dimension = StoreDimension(Rate.parse("100/s"), 20, SLACK)

    assert [dimension.bound(seconds * SECOND) for seconds in (1, 2, 10)] == [121, 221, 1021]
    assert dimension.max_permits == dimension.available(0) == 20
    assert repr(dimension) == "100/s burst 20"


def test_a_rate_without_a_burst_takes_any_amount() -> None:
    """Those after a large one wait."""
    dimension = StoreDimension(Rate.parse("100/s"), None, SLACK)

    assert dimension.max_permits is None
    assert dimension.bound(SECOND, largest=50) == 50 + 125
    assert dimension.available(0) == 0
    assert repr(dimension) == "100/s"


def test_what_the_store_booked_is_granted() -> None:
    """The store counts, so the dimension counts nothing: whatever is charged or given back, it is at rest."""
    dimension = StoreDimension(Rate.parse("100/s"), 20, SLACK)

    dimension.charge(7, 5)
    dimension.give_back(3, 5)

    assert dimension.take(20, 5) == dimension.peek(20, 5) == 5
    assert dimension.lag(5) == 0
    assert dimension.rested(5)


def test_a_process_alone_changes_no_rate_in_the_store() -> None:
    """Others go by it too; and the store remembers what was granted."""
    dimension = StoreDimension(Rate.parse("100/s"), 20, SLACK)

    with pytest.raises(RuntimeError, match="a rate for each dimension"):
        dimension.set_rate(Rate.parse("50/s"), 0)
    for scheduler in (dimension, BookedDimensions([Rate.parse("100/s")], [20], SLACK)):
        with pytest.raises(RuntimeError, match=r"reset\(\)"):
            scheduler.reset(0)
