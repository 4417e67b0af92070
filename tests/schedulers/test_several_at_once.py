"""AllOf, the dimensions of a Budget, and the places of max_concurrency: all or nothing."""

from __future__ import annotations

import os

import pytest
from helpers.transcripts import S, grants, waits

from aiorate import AllOf, BurstRatio, CalendarWindow, Rate, SlidingWindow, TicksAccumulator, TokenBucket, TokenPool
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.dimensions import Dimensions
from aiorate._schedulers.places import Places, Visit


def test_the_last_member_to_grant_decides() -> None:
    assert grants(AllOf(TokenBucket("10/s", burst=3), SlidingWindow("5/s")), 9) == "0 0 0 0.1 0.2 1 1 1 1.1"


def test_a_refused_request_is_taken_from_no_member() -> None:
    """milvus-io/milvus#25597 and grafana/dskit#1007: the first limit was used up although the second refused."""
    bucket, window = TokenBucket("10/s", burst=3), SlidingWindow("1/min")
    both = AllOf(bucket, window)
    both.take(1, 0)
    for _ in range(100):
        assert both.take(1, S) == 60 * S
    assert bucket.take(3, S) == S


def test_each_member_is_charged_exactly_once() -> None:
    """dotnet/runtime#113314: chained limiters counted twice when the inner one queued."""
    bucket, pool = TokenBucket("10/s", burst=5), TokenPool("10/s")
    assert waits(AllOf(bucket, pool), "0 0 0") == "0 0.1 0.2"
    assert waits(bucket, "0.2:4 0.2") == "0 0.1"
    assert waits(pool, "0.2") == "0.1"


def test_it_is_as_tight_as_its_tightest_member() -> None:
    """Its rate, largest request and guarantee are the least of its members', and so are its allowances for lateness."""
    both = AllOf(TicksAccumulator("100/s"), TokenBucket("10/s", burst=5), SlidingWindow("3/s"), BurstRatio("50/s", ratio=2))
    assert (both.rate, both.max_permits, both.lag(0)) == (Rate(3), 3, 0)
    assert [both.bound(window) for window in (1, S, 60 * S)] == [1, 3, 180]
    assert AllOf(TicksAccumulator("1/s")).bound(S) is None
    assert AllOf(TokenPool("1/s")).max_permits is None
    late = AllOf(TokenBucket("1/s", 1), SlidingWindow("3/s"))
    assert [late._bound_when_late(S // 2, 1, late_by) for late_by in (0, S, 5 * S)] == [1, 2, 3]
    assert AllOf(TokenBucket("1/s", 1), SlidingWindow("1/s")).books_since
    assert not AllOf(SlidingWindow("1/s"), CalendarWindow("1/s", "UTC", origin=0)).books_since


def test_members_follow_a_pause_and_a_restart() -> None:
    """A pause moves the calendar; the other members ignore it. A backlog is forgotten, a window is not."""
    paused = AllOf(TokenBucket("1/s", burst=10), CalendarWindow("3/min", "UTC", origin=0))
    begun = AllOf(TicksAccumulator("1/s", start=0), SlidingWindow("2/min", start=0))
    waits(paused, "10:3")
    paused._shift(40 * S)
    begun.restart(10 * S)
    assert waits(paused, "10") == "10"
    assert waits(begun, "10 10 10") == "0 1 60"


def test_quotas_of_all_members_are_told_in_order() -> None:
    both = AllOf(TokenBucket("10/s", burst=5), SlidingWindow("100/min"))
    both.take(3, 0)
    assert [(5, Rate(10), 2, S // 10), (100, Rate(100, 60), 97, 60 * S)] == both._standings(0)


def test_wrong_uses_are_refused() -> None:
    """No members, other objects, a scheduler of another; and a rate for all members, which changes nothing."""
    bucket = TokenBucket("10/s", burst=3)
    both = AllOf(bucket, SlidingWindow("5/s"))
    with pytest.raises(RuntimeError, match="members"):
        both.set_rate(Rate(1), 0)
    assert [member.rate for member in both.members] == [Rate(10), Rate(5)]
    with pytest.raises(ValueError, match="at least one"):
        AllOf()
    with pytest.raises(ValueError, match="belongs to an AllOf already"):
        AllOf(bucket)
    for wrong in ("10/s", 10, None, TokenBucket):
        with pytest.raises(TypeError, match="schedulers such as"):
            AllOf(wrong)  # type: ignore[arg-type]


def test_dimensions_grant_when_all_of_them_do() -> None:
    dimensions = Dimensions({"a": TokenBucket("1/s", burst=2), "b": TokenBucket("10/s", burst=10)})
    assert dimensions.take(Amounts(("a", "b"), (1, 10)), 0) <= 0
    assert dimensions.take(Amounts(("a", "b"), (1, 5)), 0) == S // 2
    assert dimensions.take(Amounts(("a", "b"), (1, 5)), S // 2) <= S // 2
    assert dimensions.peek(Amounts(("a", "b"), (1, 1)), S // 2) == S


def test_amounts_are_no_number() -> None:
    """An int with attributes was compared, counted and rounded as if it were one permit."""
    one, two = Amounts(("a", "b"), (1, 10)), Amounts(("a", "b"), (2, 5))

    assert [((3, 15), 2), ((-1, 5), 0)] == [(each.of, each.requests) for each in (one + two, one - two)]
    assert (True, False, one) == (bool(Amounts(("a", "b"), (0, 0))), bool(one - one), sum([one]))
    assert one.part(("b",)) is one.part(("b",))
    for wrong in (lambda: one > 0, lambda: one + 1, lambda: int(one), lambda: one * 2):  # type: ignore[operator, call-overload]
        with pytest.raises(TypeError):
            wrong()


def test_dimensions_are_charged_rest_and_lag_as_their_parts() -> None:
    dimensions = Dimensions({"a": TokenBucket("1/s", burst=1), "b": SlidingWindow("10/s")})
    assert (True, True) == (dimensions._rested(0), dimensions.books_since)
    dimensions.correct(Amounts(("a", "b"), (2, 1)), 0, 0)
    assert dimensions.peek(Amounts(("a", "b"), (1, 1)), 0) == 2 * S
    assert [dimensions._rested(S), dimensions._rested(2 * S)] == [False, True]
    assert dimensions.lag(0) == 0


def test_places_have_a_number_and_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time changes nothing: a place is free once its holder leaves, or in a forked process, since the holders are in the parent."""
    places = Places(2)
    assert [places.take(Visit(1), 0) <= 0 for _ in range(3)] == [True, True, False]
    assert places.peek(Visit(1), 10 * S) > 20 * S
    places.give_back(1, 0)  # of a request that took no place
    assert (places.take(1, 0), places.used) == (0, 2)
    places.give_back(Visit(1), 0)
    assert places.take(Visit(1), 0) == 0
    assert (places.lag(0), places.bound(S)) == (0, None)
    with pytest.raises(RuntimeError, match="no rate"):
        places.set_rate(Rate(1), 0)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert [places.take(Visit(1), 0) <= 0 for _ in range(3)] == [True, True, False]


def test_of_what_its_members_lost_the_most_counts() -> None:
    bucket, pool = TokenBucket("10/s", burst=1000, initial=1), TokenPool("10/s")
    both = AllOf(bucket, pool)
    for now in (0, 10 * S):
        assert both.take(1, now) <= now

    assert both._spilled == pool._spilled > 9 * S > bucket._spilled
