"""AllOf: all or nothing."""

from __future__ import annotations

import pytest
from helpers.transcripts import S, grants, waits

from aiorate import AllOf, BurstRatio, CalendarWindow, Rate, SlidingWindow, TicksAccumulator, TokenBucket, TokenPool


def test_the_last_member_to_grant_decides() -> None:
    """A burst of three at 10/s, and never more than five in a second."""
    both = AllOf(TokenBucket("10/s", burst=3), SlidingWindow("5/s"))

    assert grants(both, 9) == "0 0 0 0.1 0.2 1 1 1 1.1"


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
    both = AllOf(bucket, pool)

    assert waits(both, "0 0 0") == "0 0.1 0.2"

    assert waits(bucket, "0.2:4 0.2") == "0 0.1"
    assert waits(pool, "0.2") == "0.1"


def test_a_refund_goes_to_every_member() -> None:
    """Each member credits it by its strategy."""
    both = AllOf(TokenBucket("10/s", burst=3), SlidingWindow("3/min"))
    both.take(3, 0)

    both.give_back(1, 0, taken=0)

    assert waits(both, "0 0") == "0 60"


def test_it_is_as_tight_as_its_tightest_member() -> None:
    """Its rate, largest request and guarantee are the least of its members'."""
    both = AllOf(TicksAccumulator("100/s"), TokenBucket("10/s", burst=5), SlidingWindow("3/s"), BurstRatio("50/s", ratio=2))

    assert both.rate == Rate(3)
    assert both.max_permits == 3
    assert [both.bound(window) for window in (1, S, 60 * S)] == [1, 3, 180]
    assert both.lag(0) == 0
    assert AllOf(TicksAccumulator("1/s")).bound(S) is None
    assert AllOf(TokenPool("1/s")).max_permits is None


def test_each_member_makes_its_own_allowance_for_lateness() -> None:
    """The allowance for lateness is made for each member that needs it."""
    both = AllOf(TokenBucket("1/s", 1), SlidingWindow("3/s"))
    assert [both.bound_when_late(S // 2, 1, late) for late in (0, S, 5 * S)] == [1, 2, 3]
    assert AllOf(TokenBucket("1/s", 1), SlidingWindow("1/s")).books_since
    assert not AllOf(SlidingWindow("1/s"), CalendarWindow("1/s", "UTC", origin=0)).books_since


def test_a_calendar_among_the_members_follows_a_pause() -> None:
    """A pause moves the calendar; the other members ignore it."""
    both = AllOf(TokenBucket("1/s", burst=10), CalendarWindow("3/min", "UTC", origin=0))
    waits(both, "10:3")

    both.shift(40 * S)

    assert waits(both, "10") == "10"


def test_restart_restarts_the_members() -> None:
    """A backlog is forgotten, a window is not."""
    both = AllOf(TicksAccumulator("1/s", start=0), SlidingWindow("2/min", start=0))

    both.restart(10 * S)

    assert waits(both, "10 10 10") == "0 1 60"


def test_set_rate_is_refused_and_names_the_members() -> None:
    """The message says where to set one; nothing has changed."""
    both = AllOf(TokenBucket("10/s", burst=3), SlidingWindow("5/s"))

    with pytest.raises(RuntimeError, match="members"):
        both.set_rate(Rate(1), 0)
    assert [member.rate for member in both.members] == [Rate(10), Rate(5)]


def test_wrong_members_are_refused() -> None:
    """No members, other objects than schedulers, or the same scheduler twice."""
    bucket = TokenBucket("10/s", burst=3)

    with pytest.raises(ValueError, match="at least one"):
        AllOf()
    with pytest.raises(ValueError, match="twice"):
        AllOf(bucket, bucket)
    for wrong in ("10/s", 10, None, TokenBucket):
        with pytest.raises(TypeError, match="schedulers such as"):
            AllOf(wrong)  # type: ignore[arg-type]
