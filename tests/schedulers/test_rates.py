"""Rates and specs of rates: every notation is exact, and everything else has a clear error."""

from __future__ import annotations

import copy
import pickle
import random
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from aiorate import CalendarWindow, Rate, RateSpec
from aiorate._rate import duration_to_ns

SECOND = 1_000_000_000
DAY = 86_400 * SECOND


def test_every_notation_is_read_exactly() -> None:
    second, minute, hour = SECOND, 60 * SECOND, 3600 * SECOND
    for permits, period_ns, texts in [
        (100, second, ["100/s", "100/sec", "100 / second", "100 per seconds", "  100/s\n", "100/S", "100"]),
        (500, minute, ["500/min", "500/minute", "500 PER Min"]),
        (5000, hour, ["5000/h", "5000/hr", "5_000 per hour"]),
        (1, DAY, ["1/day", "1/d"]),
        (1, 2 * DAY, ["1/2days"]),
        (7, 7 * DAY, ["7/week"]),
        (3, 250_000_000, ["3/250ms", "3/250 ms"]),
        (5, 10_000, ["5/10us", "5/10µs"]),
        (1, 3, ["1/3ns"]),
        (1, 2 * second, ["0.5/s"]),
        (3, second, ["1.5/0.5s"]),
        (1000, second, ["1e3/s"]),
        (1, 1000 * second, ["1E-3/s"]),
    ]:
        for text in texts:
            rate = Rate.parse(text)
            assert (permits, period_ns) == (rate.permits, rate.period_ns), text


def test_numbers_are_read_as_they_are_written() -> None:
    """0.3 is three tenths and not 0.299999999999999988897769753748."""
    values: list[tuple[Any, Any, int, int]] = [
        (100, 1.0, 100, SECOND),
        (0.3, 1.0, 3, 10 * SECOND),
        (Decimal("0.1"), 1, 1, 10 * SECOND),
        (Fraction(1, 3), 1, 1, 3 * SECOND),
        (7, Fraction(1, 3), 21, SECOND),
        (5, timedelta(minutes=1), 5, 60 * SECOND),
        (5, timedelta(microseconds=1), 5, 1000),
        (5, timedelta(days=400_000, microseconds=1), 5, 400_000 * DAY + 1000),
        (5, 1e-9, 5, 1),
        (5, 1e-10, 50, 1),
        (1e300, 1, 10**300, SECOND),
        (2.5, 0.1, 5, SECOND // 5),
    ]
    for permits, per, expected, period_ns in values:
        rate = Rate(permits, per)
        assert (expected, period_ns) == (rate.permits, rate.period_ns), (permits, per)


def test_a_rate_keeps_what_it_was_given() -> None:
    """Windows count by it: 100 in any minute is more than 5 in any three seconds."""
    assert Rate(100, 60) != Rate(5, 3)
    assert Rate(100, 60).per_second == Rate(5, 3).per_second
    assert not Rate(100, 60)._slower_than(Rate(5, 3))
    assert Rate(99, 60)._slower_than(Rate(5, 3))


def test_a_rate_is_shown_as_people_write_it() -> None:
    for text in ("34.2/s", "1.5/min", "2.125/h", "1/2s", "3/250ms", "342/10s", "10/3s", "2050/min"):
        assert text == str(Rate.parse(text))
    assert Rate(34.2) == Rate.parse(str(Rate(34.2)))


def test_rates_and_specs_are_values() -> None:
    """They travel between processes and through configuration files, and are dictionary keys."""
    texts = ["100/s", "500/min", "3/250ms", "1/3ns", "7/2week", "1/day", "0.3/s", "10000000/s", "7/11us", "5/90s"]
    dice = random.Random(1)
    odd = [Rate(dice.randrange(1, 10**30), Fraction(dice.randrange(1, 10 ** dice.randrange(1, 30)), SECOND)) for _ in range(200)]
    for value in [RateSpec.parse("12000,1.3,restart"), CalendarWindow("10/month", "UTC").rate, *map(Rate.parse, texts), *odd]:
        twins = [copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))]
        twins += [eval(repr(value))] if "month" not in str(value) else []
        for twin in twins + ([Rate.parse(str(value))] if type(value) is Rate and "month" not in str(value) else []):
            assert (twin, hash(twin)) == (value, hash(value))
        assert {getattr(twin, "_is_whole", None) for twin in twins[:3]} == {getattr(value, "_is_whole", None)}
        with pytest.raises(AttributeError, match=r"make a new one|cannot assign"):
            value.permits = value.verb = 6  # type: ignore[misc, union-attr]
        with pytest.raises(AttributeError):
            del value.rate  # type: ignore[union-attr]
    assert Rate(5) != "5/s"
    assert RateSpec.parse("12000,1.3,restart") not in ("12000", RateSpec.parse("12000,1.3,start"))


def test_of_takes_rates_texts_and_numbers() -> None:
    rate = Rate(5)
    assert Rate.of(rate) is rate
    assert Rate.of("5/s") == Rate.of(5) == Rate.of(5.0) == rate


def test_conversions_round_down() -> None:
    rate = Rate.parse("3/s")
    assert rate.interval_ns == 333_333_333
    assert [rate._permits_in(ns) for ns in (333_333_333, 333_333_334, 10**27)] == [0, 1, 3 * 10**18]
    assert rate.per_second == 3.0


def test_wrong_numbers_are_refused() -> None:
    """At construction, by an error that says what is allowed. A bool is a flag in the wrong place."""
    nan, inf = float("nan"), float("inf")
    for hint, pairs in {
        "greater than 0": [(0, 1), (-1, 1), (5, 0), (5, -2.5), (5, timedelta(0))],
        "finite": [(nan, 1), (inf, 1), (5, -inf), (Decimal("sNaN"), 1)],
        "1e400": [(Decimal("1e999999"), 1), (Decimal("1e-999999"), 1), (10**500, 1)],
    }.items():
        for permits, per in pairs:
            with pytest.raises(ValueError, match=hint):
                Rate(permits, per)  # type: ignore[arg-type]
    wrong: list[tuple[Any, Any]] = [(True, 1), (1, True), ("5", 1), (5, "1"), (None, 1), (5, None), (1j, 1), ([5], 1)]
    for pair in wrong:
        with pytest.raises(TypeError, match=r"must be (an int, float, Decimal or Fraction|a timedelta or a number of seconds),"):
            Rate(*pair)


def test_wrong_text_is_refused() -> None:
    """The message shows how rates are written, or what is wrong with the number. Other libraries read 5/m as per month or minute."""
    texts = ["", " ", "/s", "5/", "0/s", "5/0s", "-5/s", "+5/s", "nan/s", "inf", "5 s", "5/fortnight", "1,000/s", "5//s", "5/s/s"]
    for text in [*texts, "٣/s", "0x10/s", "5/-1s", "_5/s"]:
        with pytest.raises(ValueError, match=r"Write '(100/s|5/s|1000/s)'|greater than 0"):
            Rate.parse(text)
    with pytest.raises(ValueError, match="write 'min'"):
        Rate.parse("5/m")
    values: list[Any] = [None, 5, b"5/s", True]
    for value in values:
        with pytest.raises(TypeError, match="takes text"):
            Rate.parse(value)


def test_monstrous_numbers_are_refused_at_once() -> None:
    """Text may come from outside, and must not cost minutes of arithmetic."""
    for text in ("1" * 2000, "1e9999/s", "1e-9999/s", "1/1e9999s"):
        with pytest.raises(ValueError, match=r"too long|1e400"):
            Rate.parse(text)
    for text in ("9" * 2000, "10^9999", "1E9999", "9999^999", "1,1e9999"):
        with pytest.raises(ValueError, match="RateSpec"):
            RateSpec.parse(text)


def test_seconds_are_taken_to_the_nearest_nanosecond() -> None:
    dice = random.Random(1)
    values = [2 / 3, 1 / 3, 5e-10, 4e-10, Fraction(7, 4), 999_999.9999999994, 0.0, 10.0**7]
    values += [dice.choice((dice.random() * 10**7, dice.randrange(10**9) / 10**9, dice.randrange(10**10) / 1000)) for _ in range(500)]
    for seconds in values:
        exact = (seconds if isinstance(seconds, Fraction) else Fraction(repr(seconds))) * SECOND
        assert abs(duration_to_ns(seconds, "pause()") - exact) <= Fraction(1, 2), seconds
    assert [duration_to_ns(seconds, "pause()") for seconds in (5e-10, 4e-10)] == [1, 0]


# RateSpec: rate, burst ratio and verb in the notation of EngineBlock and nosqlbench.


def test_every_notation_of_a_spec_is_read() -> None:
    """Suffixes, powers, any of three separators, ratio or verb left out."""
    rates = {12000: "12000", 1500: "1.5K 1.5k", 3: "3U", 1000: "1kilo", 2_000_000: "2M 2mega", 10**9: "1G 1B 1billion", 10**12: "1T"}
    rates |= {10**15: "1P", 10**18: "1E 1exa", 10**10: "1.0E10", 10**6: "1E3K", 1024: "2^10", 8000: "2^3K", 0.1: "0.1"}
    for rate, texts in rates.items():
        for text in texts.split():
            assert RateSpec.parse(text) == RateSpec.parse(f" {text} ,1.1") == RateSpec(rate, 1.1, "start"), text
    for text, ratio, verb in [
        ("100,1.1,start", 1.1, "start"),
        ("100:1.3:restart", 1.3, "restart"),
        ("100;1.3;stop", 1.3, "stop"),
        ("100,1.05:RESTART", 1.05, "restart"),
        ("100,configure", 1.1, "configure"),
        ("100,configure,activity", 1.1, "configure"),
        ("100,activity,configure", 1.1, "configure"),
        ("100 unit,1e1", 10.0, "start"),
        ("100,+1.5", 1.5, "start"),
        ("100, 2. ", 2.0, "start"),
        ("100,1", 1.0, "start"),
    ]:
        assert RateSpec(100, ratio, verb) == RateSpec.parse(text), text
