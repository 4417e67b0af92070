"""Dimensions, the scheduler of a Budget, and Places, that of max_concurrency, by themselves."""

from __future__ import annotations

import os

import pytest

from aiorate import Rate, SlidingWindow, TokenBucket
from aiorate.schedulers.dimensions import Amounts, Dimensions
from aiorate.schedulers.places import Places

SECOND = 1_000_000_000


def test_dimensions_grant_when_all_of_them_do() -> None:
    """Each by its own amount; until then, none is taken from."""
    dimensions = Dimensions((TokenBucket("1/s", burst=2), TokenBucket("10/s", burst=10)))

    assert dimensions.take(Amounts((1, 10)), 0) <= 0
    assert dimensions.take(Amounts((1, 5)), 0) == SECOND // 2
    assert dimensions.take(Amounts((1, 5)), SECOND // 2) <= SECOND // 2
    assert dimensions.peek(Amounts((1, 1)), SECOND // 2) == SECOND


def test_dimensions_are_charged_rest_and_lag_as_their_parts() -> None:
    """A debt in one of them delays all."""
    dimensions = Dimensions((TokenBucket("1/s", burst=1), SlidingWindow("10/s")))
    assert dimensions.rested(0)
    assert dimensions.books_since

    dimensions.charge(Amounts((2, 1)), 0)

    assert dimensions.peek(Amounts((1, 1)), 0) == 2 * SECOND
    assert not dimensions.rested(SECOND)
    assert dimensions.rested(2 * SECOND)
    assert dimensions.lag(0) == 0
    assert dimensions.bound(SECOND) is None
    assert repr(dimensions).startswith("Dimensions(TokenBucket(")
    with pytest.raises(RuntimeError, match="a rate for each dimension"):
        dimensions.set_rate(Rate(1), 0)


def test_all_places_are_free_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fork, the holders of places are in the parent."""
    places = Places(1)
    assert places.take(1, 0) == 0
    assert places.peek(1, 0) > 0

    monkeypatch.setattr(os, "getpid", lambda: -1)

    assert [places.take(1, 0) <= 0 for _ in range(2)] == [True, False]


def test_places_have_a_number_and_no_rate() -> None:
    """Time changes nothing: a place is free once its holder leaves."""
    places = Places(2)
    assert [places.take(1, 0) <= 0 for _ in range(3)] == [True, True, False]
    assert places.peek(1, 10 * SECOND) > 20 * SECOND

    places.give_back(1, 0)

    assert places.take(1, 0) == 0
    assert (places.lag(0), places.bound(SECOND)) == (0, None)
    assert repr(places) == "2 of 2 places taken"
    with pytest.raises(RuntimeError, match="no rate"):
        places.set_rate(Rate(1), 0)
