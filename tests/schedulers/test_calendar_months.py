"""CalendarWindow by months and years, and the edges of all calendar windows in zones whose clocks change at odd times."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from aiorate import AllOf, CalendarWindow, Limiter, Rate, SlidingWindow, TokenBucket
from aiorate.testing import ManualClock

S = 1_000_000_000
DAY = 86_400
QUARTER = 900  # all changes of the clocks in the years below are at whole quarters, except those of St John's, at one minute past

ODD = [
    ("America/Sao_Paulo", 2017),  # forward at midnight: it does not exist; back at midnight
    ("America/Havana", 2012),  # back from 01:00 to midnight, which comes twice
    ("Africa/Cairo", 2014),  # four changes in a year, some at midnight
    ("Pacific/Apia", 2011),  # 30 December was left out
    ("Europe/Berlin", 2024),
]


def utc(iso: str) -> int:
    return int(datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp())


def beginnings(zone: str, begin: str, end: str, step: int) -> list[tuple[int, date]]:
    """When each date is reached for the first time, found by asking for the date at each step."""
    tz, found, latest = ZoneInfo(zone), [], None
    for second in range(utc(begin), utc(end), step):
        day = datetime.fromtimestamp(second, tz).date()
        if latest is None or day > latest:
            found.append((second, day))
            latest = day
    return found[1:]  # the first one began before


def walked(rate: str, zone: str, begin: str, end: str) -> list[int]:
    calendar, second, edges = CalendarWindow(rate, zone, origin=0), utc(begin), []
    while (second := calendar._edges(second * S, 1)[0] // S) < utc(end):
        edges.append(second)
    return edges


@pytest.mark.parametrize(("zone", "year"), ODD)
def test_days_weeks_and_months_begin_with_their_date(zone: str, year: int) -> None:
    begin, end = f"{year - 1}-12-15T00:00", f"{year + 1}-01-15T00:00"
    days = beginnings(zone, begin, end, QUARTER)
    assert [second for second, _ in days] == walked("1/day", zone, begin, end)
    weeks = [second for (_, before), (second, day) in pairwise(days) if day.isocalendar()[:2] != before.isocalendar()[:2]]
    assert weeks == walked("1/week", zone, days[0][1].isoformat(), end)
    for months in (1, 2, 3, 4, 6, 12):
        label = [(day.year * 12 + day.month - 1) // months for _, day in days]
        edges = [second for (second, _), one, other in zip(days[1:], label, label[1:], strict=False) if other != one]
        assert edges == walked(f"1/{months}months", zone, days[0][1].isoformat(), end)


def test_clocks_that_go_back_over_midnight_do_not_end_a_day_twice() -> None:
    """In St John's they went back from 00:01 to 23:01: permits of the hour that is repeated are the next day's, which has begun."""
    zone, begin, end = "America/St_Johns", "2006-10-27T12:00", "2006-10-31T12:00"
    assert [second for second, _ in beginnings(zone, begin, end, 60)] == walked("1/day", zone, begin, end)
    repeated = CalendarWindow("3/day", zone, origin=utc("2006-10-29T03:00") * S)  # 23:30 for the second time
    assert datetime.fromtimestamp(repeated._origin // S, ZoneInfo(zone)).isoformat() == "2006-10-28T23:30:00-03:30"
    assert repeated.take(3, 0) == 0
    assert repeated.peek(1, 0) == 24 * 3_600 * S + 1_800 * S


def test_no_window_of_a_history_exceeds_its_number() -> None:
    for zone, rate in [("America/Sao_Paulo", "5/day"), ("America/St_Johns", "5/week"), ("Pacific/Apia", "5/month"), ("UTC", "5/year")]:
        chance = random.Random(f"{zone} {rate}")
        start = utc("2004-11-20T00:00")
        window = CalendarWindow(rate, zone, origin=start * S)
        longest = window.rate.period_ns // S
        years = 3 if "day" in rate else 10
        tz, now, kept, grants = ZoneInfo(zone), 0, Counter[int](), []
        edges = [start, *walked(rate, zone, "2004-11-20T00:00", f"{2006 + years}-01-01T00:00")]
        while start + now // S < utc(f"{2005 + years}-01-01T00:00"):
            permits = chance.randint(1, 5)
            at = window.peek(permits, now)
            now = max(now, at) if chance.random() < 0.7 else now + chance.randrange(longest * S // 3)
            if window.take(permits, now) <= now:
                grants.append((now, permits))
                place = edges[bisect_right(edges, start + now // S) - 1]
                kept[place] += permits
                if chance.random() < 0.2:
                    window.give_back(permits, now, taken=now)
                    grants.pop()
                    kept[place] -= permits
            else:
                assert datetime.fromtimestamp(start + at // S, tz) > datetime.fromtimestamp(start + now // S, tz)

        assert max(kept.values()) == 5
        assert len(kept) > 9
        for first in range(len(grants)):
            total = 0
            for instant, permits in grants[first : first + 12]:
                total += permits
                assert total <= window.bound(instant - grants[first][0] + 1)


def test_the_calendar_ends_with_the_year_9999() -> None:
    last = int(datetime(9999, 12, 31, 12, tzinfo=UTC).timestamp())
    for rate in ("3/day", "3/week", "3/6h", "3/month", "3/year"):
        window = CalendarWindow(rate, "UTC", origin=last * S)
        window.take(3, 0)
        assert window.peek(1, 0) > 0


def test_months_are_written_in_words_and_shown_so() -> None:
    texts = {"10000/month": "10000/month", "10_000 per months": "10000/month", "1e3/mo": "1000/month", "10/3 months": "10/3months"}
    texts |= {"10/3MONTHS": "10/3months", "10/12month": "10/year", " 10 / year ": "10/year", "10/yr": "10/year"}
    for text, shown in texts.items():
        window = CalendarWindow(text, "Europe/Berlin", origin=0)
        assert str(window.rate) == shown
        assert repr(window) == f"CalendarWindow({shown!r}, tz=Europe/Berlin)"
        assert CalendarWindow(str(window.rate), "UTC").rate == window.rate == CalendarWindow(window.rate, "UTC").rate


def test_other_months_are_refused() -> None:
    """A window of five months would begin in another month each year. Other strategies have no months at all."""
    for hint, texts in {
        "1, 2, 3, 4, 6 or 12 months": ["10/5months", "10/0.5month"],
        "'10/year'": ["10/24months", "10/2years"],
        "whole number": ["0.5/month", "1.5/year", "0/month"],
    }.items():
        for text in texts:
            with pytest.raises(ValueError, match=hint):
                CalendarWindow(text, "UTC")
    calls: list[Any] = [Limiter, SlidingWindow, Rate.parse, lambda rate: TokenBucket(rate, burst=5), Limiter("10/s").set_rate]
    for call in calls:
        with pytest.raises(ValueError, match=r"no fixed length. write '1000/30day', or CalendarWindow\('1000/month', 'UTC'\)"):
            call("10/month")


def test_set_rate_reads_months_too() -> None:
    """At a limiter, as a member, and at the strategy itself. Another text changes nothing."""
    rates: list[tuple[Any, str]] = [
        ("20000/month", "20000/month"),
        ("120000/year", "10000/month"),  # a window keeps its period
        ("100000/year", "100000/year"),  # and changes it where the number is whole only there
        (5, "13392000/month"),  # per second: as in the longest month
        (Rate(10, 86_400), "310/month"),
    ]
    for new, shown in rates:
        limiter = Limiter(CalendarWindow("10000/month", "UTC", origin=0), clock=ManualClock())
        limiter.try_acquire(3)
        several = Limiter(AllOf(TokenBucket("10/s", burst=5), CalendarWindow("10000/month", "UTC", origin=0)), clock=ManualClock())

        limiter.set_rate(new)
        several.set_rate(new, member=1)

        assert str(limiter.rate) == str(several.scheduler.members[1].rate) == shown
        assert limiter.statistics().available == limiter.rate.permits - 3
    for wrong in ("10/5months", "0.5/month", "7/11h", "1/s/month"):
        with pytest.raises(ValueError, match=r"10/5months|whole number|1/s/month|7/11h"):
            limiter.set_rate(wrong)
    assert str(limiter.rate) == shown
    with pytest.raises(RuntimeError, match=r"member=0"):
        Limiter(AllOf(CalendarWindow("10/month", "UTC"))).set_rate("20/month")


def test_a_limiter_of_a_month_says_how_things_stand() -> None:
    clock = ManualClock()
    limiter = Limiter(CalendarWindow("10/month", "Europe/Berlin", origin=utc("2024-01-31T23:00") * S), clock=clock)
    limiter.try_acquire(4)

    assert limiter.statistics().available == 6
    assert limiter.scheduler._standings(0) == [(10, limiter.rate, 6, 29 * DAY * S)]
    assert (limiter.delay(6), limiter.delay(7)) == (0, 29 * DAY)
    assert (limiter.bound(DAY), limiter.bound(29 * DAY)) == (20, 30)
    limiter.refund(1)
    assert limiter.statistics().available == 7
    limiter.pause(DAY)
    assert limiter.delay(8) == 29 * DAY
    clock.advance(29 * DAY)
    assert limiter.try_acquire(10)
    assert limiter.delay() == 31 * DAY - 3_600  # of March, in which the clocks go forward
