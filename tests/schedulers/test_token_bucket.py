"""TokenBucket: pay now."""

from __future__ import annotations

import pytest
from helpers.transcripts import S, grants, waits

from aiorate import Rate, TokenBucket


def test_it_starts_full_or_with_initial_permits() -> None:
    """Full, or with `initial` permits."""
    assert grants(TokenBucket("10/s", burst=3), 5) == "0 0 0 0.1 0.2"
    assert grants(TokenBucket("10/s", burst=3, initial=1), 4) == "0 0.1 0.2 0.3"
    assert grants(TokenBucket("10/s", burst=3, initial=0), 3) == "0.1 0.2 0.3"


def test_a_request_waits_for_its_own_cost() -> None:
    """Not for more: mjpieters/aiolimiter#217 slept for the whole amount, not for the part that was missing."""
    assert waits(TokenBucket("10/s", burst=5), "0:5 0:3 0.3 1:5") == "0 0.3 0.1 0"


def test_after_idling_exactly_one_burst_passes() -> None:
    """After any idle time."""
    assert grants(TokenBucket("10/s", burst=2, start=0), 4, begin=365 * 86400) == "31536000 31536000 31536000.1 31536000.2"


def test_more_than_the_bucket_holds_is_refused_at_once() -> None:
    """The message says what is allowed."""
    bucket = TokenBucket("10/s", burst=3)

    for call in (bucket.take, bucket.peek):
        with pytest.raises(ValueError, match="3 is the most"):
            call(4, 0)
    assert bucket.max_permits == 3


def test_a_refund_fills_the_bucket_at_most() -> None:
    """Without a receipt, permits of any request fill it."""
    bucket = TokenBucket("10/s", burst=3)
    waits(bucket, "0:3 0.1")

    bucket.give_back(2, S // 10)
    assert waits(bucket, "0.1:2 0.1") == "0 0.1"
    bucket.give_back(3, 100 * S)
    assert waits(bucket, "100:3 100") == "0 0.1"


def test_set_rate_keeps_the_level_and_the_debt_in_permits() -> None:
    """Two permits are missing: 0.2 s at 10/s, 2 s at 1/s."""
    bucket = TokenBucket("10/s", burst=3)
    waits(bucket, "0:2")

    bucket.set_rate(Rate(1), 0)

    assert waits(bucket, "0 0 0") == "0 1 2"


def test_it_has_no_lag_and_counts_what_overflowed() -> None:
    """An idle bucket is not late. Overflow counts while a request stands in line."""
    bucket = TokenBucket("10/s", burst=3)
    waits(bucket, "0:3")
    bucket.take(1, 10 * S + 5, since=10 * S)

    assert bucket.lag(20 * S) == 0
    assert bucket.spilled == 97 * S // 10


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        ({"burst": 0}, ValueError, "1 or more"),
        ({"burst": 1.5}, TypeError, "int of 1 or more"),
        ({"burst": True}, TypeError, "int of 1 or more"),
        ({"burst": 3, "initial": 4}, ValueError, "from 0 to 3"),
        ({"burst": 3, "initial": -1}, ValueError, "from 0 to 3"),
        ({"burst": 3, "initial": False}, TypeError, "initial"),
        ({"burst": 3, "start": "now"}, TypeError, "start"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], error: type[Exception], hint: str) -> None:
    """At construction: a burst of 0 means never to one peer and unlimited to another (DataDog/draino#15)."""
    with pytest.raises(error, match=hint):
        TokenBucket("10/s", **arguments)  # type: ignore[arg-type]


def test_a_new_rate_gives_no_fraction_of_a_nanosecond() -> None:
    """Two thirds of a permit are missing, which are 1.33 ns at the new rate: due after two, not after one."""
    bucket = TokenBucket("1/3ns", burst=1, start=0)
    assert bucket.take(1, 0) == 0

    bucket.set_rate(Rate.parse("1/2ns"), 1)

    assert bucket.peek(1, 1) == 3
