"""Rates: every notation is exact, and everything else has a clear error."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiorate import Rate
from aiorate.rate import seconds_to_ns

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "permits", "period_ns"),
    [
        ("100/s", 100, SECOND),
        ("100/sec", 100, SECOND),
        ("100 / second", 100, SECOND),
        ("100 per seconds", 100, SECOND),
        ("20", 20, SECOND),
        ("500/min", 500, 60 * SECOND),
        ("500/minute", 500, 60 * SECOND),
        ("5000/h", 5000, 3600 * SECOND),
        ("5000/hr", 5000, 3600 * SECOND),
        ("200_000 per hour", 200_000, 3600 * SECOND),
        ("10000/day", 10000, 86400 * SECOND),
        ("1/d", 1, 86400 * SECOND),
        ("1/2days", 1, 2 * 86400 * SECOND),
        ("7/week", 7, 7 * 86400 * SECOND),
        ("3/250ms", 3, 250_000_000),
        ("3/250 ms", 3, 250_000_000),
        ("5/10us", 5, 10_000),
        ("5/10µs", 5, 10_000),
        ("1/3ns", 1, 3),
        ("0.5/s", 1, 2 * SECOND),
        ("1.5/0.5s", 3, SECOND),
        ("1e3/s", 1000, SECOND),
        ("1E-3/s", 1, 1000 * SECOND),
        ("  100/s\n", 100, SECOND),
        ("100/S", 100, SECOND),
        ("100 PER Min", 100, 60 * SECOND),
    ],
)
def test_every_notation_is_read_exactly(text: str, permits: int, period_ns: int) -> None:
    """Two whole numbers, with nothing rounded in between."""
    rate = Rate.parse(text)

    assert (permits, period_ns) == (rate.permits, rate.period_ns)


@pytest.mark.parametrize(
    ("permits", "per", "expected"),
    [
        (100, 1.0, (100, SECOND)),
        (0.3, 1.0, (3, 10 * SECOND)),
        (Decimal("0.1"), 1, (1, 10 * SECOND)),
        (Fraction(1, 3), 1, (1, 3 * SECOND)),
        (7, Fraction(1, 3), (21, SECOND)),
        (5, timedelta(minutes=1), (5, 60 * SECOND)),
        (5, timedelta(microseconds=1), (5, 1000)),
        (5, timedelta(days=400_000, microseconds=1), (5, (400_000 * 86_400 * 10**6 + 1) * 1000)),
        (5, 1e-9, (5, 1)),
        (5, 1e-10, (50, 1)),
        (1e300, 1, (10**300, SECOND)),
        (2.5, 0.1, (5, SECOND // 5)),
    ],
)
def test_numbers_are_read_as_they_are_written(permits: Any, per: Any, expected: tuple[int, int]) -> None:
    """0.3 is three tenths and not 0.299999999999999988897769753748."""
    rate = Rate(permits, per)

    assert expected == (rate.permits, rate.period_ns)


def test_a_rate_keeps_what_it_was_given() -> None:
    """Windows count by it: 100 in any minute is more than 5 in any three seconds."""
    assert Rate(100, 60) != Rate(5, 3)
    assert Rate(100, 60).per_second == Rate(5, 3).per_second
    assert not Rate(100, 60).slower_than(Rate(5, 3))
    assert Rate(99, 60).slower_than(Rate(5, 3))


@pytest.mark.parametrize("text", ["100/s", "500/min", "3/250ms", "1/3ns", "7/2week", "1/day", "0.3/s", "10000000/s", "7/11us", "5/90s"])
def test_a_rate_survives_text_copies_and_pickles(text: str) -> None:
    """It travels between processes and through configuration files."""
    rate = Rate.parse(text)

    for twin in (Rate.parse(str(rate)), copy.copy(rate), copy.deepcopy(rate), pickle.loads(pickle.dumps(rate)), eval(repr(rate))):
        assert twin == rate
        assert hash(twin) == hash(rate)


@given(st.integers(1, 10**30), st.integers(1, 10**30))
def test_text_of_any_rate_is_read_back(permits: int, period_ns: int) -> None:
    """str() is exact for any period."""
    rate = Rate(permits, Fraction(period_ns, SECOND))

    assert Rate.parse(str(rate)) == rate


def test_a_rate_is_frozen() -> None:
    """It is a dictionary key and shared between limiters."""
    rate = Rate(5)

    with pytest.raises(AttributeError, match="make a new one"):
        rate.permits = 6
    with pytest.raises(AttributeError):
        del rate.permits
    with pytest.raises(AttributeError):
        rate.other = 1  # type: ignore[attr-defined]
    assert rate == Rate(5)
    assert rate != "5/s"
    assert {rate: 1}[Rate(5)] == 1


def test_of_takes_rates_texts_and_numbers() -> None:
    """Text and numbers per second are accepted wherever a rate is."""
    rate = Rate(5)

    assert Rate.of(rate) is rate
    assert Rate.of("5/s") == Rate.of(5) == Rate.of(5.0) == rate


def test_conversions_round_down() -> None:
    """Allowances are rounded down, waits up."""
    rate = Rate.parse("3/s")

    assert rate.interval_ns == 333_333_333
    assert [rate.permits_in(ns) for ns in (333_333_333, 333_333_334, 10**27)] == [0, 1, 3 * 10**18]
    assert rate.per_second == 3.0


@pytest.mark.parametrize(
    ("permits", "per", "hint"),
    [
        (0, 1, "greater than 0"),
        (-1, 1, "greater than 0"),
        (5, 0, "greater than 0"),
        (5, -2.5, "greater than 0"),
        (5, timedelta(0), "greater than 0"),
        (float("nan"), 1, "finite"),
        (float("inf"), 1, "finite"),
        (5, float("-inf"), "finite"),
        (Decimal("sNaN"), 1, "finite"),
        (Decimal("1e999999"), 1, "1e400"),
        (Decimal("1e-999999"), 1, "1e400"),
        (10**500, 1, "1e400"),
    ],
)
def test_wrong_numbers_are_refused(permits: Any, per: Any, hint: str) -> None:
    """At construction, by an error that says what is allowed."""
    with pytest.raises(ValueError, match=hint):
        Rate(permits, per)


@pytest.mark.parametrize(("permits", "per"), [(True, 1), (1, True), ("5", 1), (5, "1"), (None, 1), (5, None), (1j, 1), ([5], 1)])
def test_other_kinds_are_refused(permits: Any, per: Any) -> None:
    """A bool is a flag in the wrong place."""
    with pytest.raises(TypeError, match="must be an int, float, Decimal or Fraction"):
        Rate(permits, per)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "/s",
        "5/",
        "0/s",
        "5/0s",
        "-5/s",
        "+5/s",
        "nan/s",
        "inf",
        "5 s",
        "5/fortnight",
        "1,000/s",
        "5//s",
        "5/s/s",
        "٣/s",
        "0x10/s",
        "5/-1s",
        "_5/s",
    ],
)
def test_wrong_text_is_refused(text: str) -> None:
    """The message shows how rates are written, or what is wrong with the number."""
    with pytest.raises(ValueError, match=r"Write '(100/s|5/s|1000/s)'|greater than 0"):
        Rate.parse(text)


def test_minutes_and_months_are_not_mixed_up() -> None:
    """Other libraries read 5/m as per month or as per minute."""
    with pytest.raises(ValueError, match="write 'min'"):
        Rate.parse("5/m")


@pytest.mark.parametrize("text", ["1" * 2000, "1e9999/s", "1e-9999/s", "1/1e9999s"])
def test_monstrous_numbers_are_refused_at_once(text: str) -> None:
    """Text may come from outside, and must not cost minutes of arithmetic."""
    with pytest.raises(ValueError, match=r"too long|1e400"):
        Rate.parse(text)


@pytest.mark.parametrize("value", [None, 5, b"5/s", True])
def test_parse_takes_text_only(value: Any) -> None:
    """Numbers go to Rate() or Rate.of()."""
    with pytest.raises(TypeError, match="takes text"):
        Rate.parse(value)


@pytest.mark.parametrize(
    ("seconds", "ns"), [(2 / 3, 666_666_667), (1 / 3, 333_333_333), (5e-10, 1), (4e-10, 0), (Fraction(7, 4), 1_750_000_000)]
)
def test_seconds_are_taken_to_the_nearest_nanosecond(seconds: float, ns: int) -> None:
    """By less than a nanosecond of difference."""
    assert seconds_to_ns(seconds, "pause()") == ns


@given(st.one_of(st.floats(0, 10**7), st.integers(0, 10**9).map(lambda n: n / 10**9), st.integers(0, 10**10).map(lambda n: n / 1000)))
@example(999_999.9999999994)
def test_the_short_way_to_nanoseconds_is_exact(seconds: float) -> None:
    """A float is read as it is written, to the nearest nanosecond, whichever way computes it."""
    exact = Fraction(repr(seconds)) * 10**9

    assert abs(seconds_to_ns(seconds, "pause()") - exact) <= Fraction(1, 2)
