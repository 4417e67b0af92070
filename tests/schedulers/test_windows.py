"""SlidingWindow and CalendarWindow: a number per window."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from helpers.transcripts import S, grants, waits

from aiorate import CalendarWindow, Rate, SlidingWindow


def test_a_sliding_window_passes_n_in_any_period() -> None:
    window = SlidingWindow("3/s")
    assert grants(window, 8) == "0 0 0 1 1 1 2 2"
    assert grants(window, 300, begin=9).endswith(" 108")
    assert len(window._log) < 9  # it keeps what still counts
    assert waits(SlidingWindow("3/s"), "0 0.6 0.9 0.95 1.0 1.5") == "0 0 0 0.05 0.6 0.4"


def test_a_sliding_window_counts_by_the_rate_as_it_was_given() -> None:
    """100 per minute lets 100 through at once, 5 per 3 s does not."""
    assert grants(SlidingWindow("100/60s"), 101).split()[-2:] == ["0", "60"]
    assert grants(SlidingWindow("5/3s"), 6).split()[-2:] == ["0", "3"]


def test_a_sliding_window_forgets_the_entry_of_the_receipt() -> None:
    """Any entry, as much of it as comes back. An entry that has left the window is gone, and a receipt without a grant finds none."""
    window, other = SlidingWindow("3/s"), SlidingWindow("3/s")
    waits(window, "0 0.5:2")
    waits(other, "0 0.25 0.5")
    window.give_back(1, S // 2, taken=S // 2)
    assert waits(window, "0.6 0.6") == "0 0.4"
    window.give_back(1, S, taken=S // 2)
    window.give_back(1, S, taken=S // 10)
    assert waits(window, "1.2 1.2 1.2") == "0 0.4 0.8"
    other.give_back(1, S // 2, taken=S * 3 // 8)
    assert other.peek(1, S // 2) == S
    other.give_back(1, S // 2, taken=S // 4)
    assert waits(other, "0.5 0.5") == "0 0.5"


def test_what_was_charged_at_the_instant_of_a_grant_stays_when_that_grant_comes_back() -> None:
    """The receipt finds the whole grant, and no more than that."""
    for permits, charged in [(1, 1), (2, 1), (3, 2), (4, 1)]:
        window = SlidingWindow("5/s")
        window.take(permits, 0)
        window.charge(charged, 0)
        window.give_back(permits, S // 2, taken=0)
        assert (window.available(S // 2), window.available(S)) == (5 - charged, 5), (permits, charged)


def test_a_refund_forgets_the_oldest_entries_of_a_window() -> None:
    """These say the least about the time to come. Without grants there is nothing to forget, and no extra room."""
    window, empty = SlidingWindow("3/s"), SlidingWindow("3/s")
    waits(window, "0 0.5:2")
    window.give_back(2, S // 2)
    empty.give_back(2, S)
    empty.give_back(1, S, taken=S // 2)
    assert waits(window, "0.6:2 0.6") == "0 0.9"
    assert waits(empty, "1 1 1 1") == "0 0 0 1"
    later = SlidingWindow("3/s")
    waits(later, "0 0.5:2")
    later.give_back(1, S)  # not the one that has just left the window
    assert (later.available(S), later.give_back(9, S), later.available(S)) == (2, None, 3)


def test_a_charge_of_a_window_equals_takes_one_by_one() -> None:
    """In one step, for any number of permits; over two changes of the clocks, and in months, which differ in length."""
    december = unix("2023-12-20T00:00", "UTC")
    makers = [
        lambda: SlidingWindow("5/s"),
        lambda: CalendarWindow("3/day", "Europe/Berlin", origin=1_711_846_800 * S),
        lambda: CalendarWindow("3/day", "Europe/Berlin", origin=1_729_810_800 * S),
        lambda: CalendarWindow("3/6h", "UTC", origin=5),
        *(lambda rate=rate: CalendarWindow(rate, "Europe/Berlin", origin=december) for rate in ("3/month", "3/3months", "3/year")),
    ]
    for make in makers:
        for permits in (1, 2, 3, 4, 5, 6, 11, 17, 123, 124, 299):
            charged, walked, now = make(), make(), 8 * S // 10
            for window in (charged, walked):
                waits(window, "0:2 0.5:1")

            charged.charge(permits, now)
            for _ in range(permits):
                now = max(now, walked.peek(1, now))
                walked.take(1, now)

            assert [max(charged.peek(n, 8 * S // 10), now) for n in (1, 2, 3)] == [walked.peek(n, now) for n in (1, 2, 3)], (
                charged,
                permits,
            )
        charged.charge(10**30, S)  # a debt may end after the year 9999
        assert charged.peek(1, S) > 10**29 * S


def test_a_window_with_a_new_rate_counts_old_grants() -> None:
    """A lower number takes effect at once, a higher one adds the difference. A new quota does not restart the day."""
    window, calendar = SlidingWindow("3/s"), CalendarWindow("3/min", "UTC", origin=0)
    waits(window, "0:3")
    waits(calendar, "0:3")
    window.set_rate(Rate(5), S // 2)
    calendar.set_rate(Rate(5, 60), 30 * S)
    assert waits(window, "0.5 0.5 0.5") == "0 0 0.5"
    assert waits(calendar, "30:2 30") == "0 30"
    window.set_rate(Rate(1), S)
    assert waits(window, "1") == "1"
    assert window.lag(S) == calendar.lag(S) == 0


def unix(text: str, zone: str) -> int:
    """Unix time in ns of a wall-clock reading."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * S


def edges(rate: str, zone: str, begin: str, count: int) -> list[str]:
    """When, on the zone's clocks, the first permit of each following window goes to a caller that takes all it gets."""
    origin = unix(begin, zone)
    window = CalendarWindow(rate, zone, origin=origin)
    now, seen = 0, []
    for _ in range(count):
        window.take(window.max_permits, now)
        now = window.peek(1, now)
        seen.append(datetime.fromtimestamp((origin + now) // S, ZoneInfo(zone)).strftime("%a %H:%M%z"))
    return seen


def test_calendar_windows_begin_where_the_users_are() -> None:
    """Days with a change of the clocks have 23 or 25 hours; a repeated hour is two windows, and one that is left out is none.

    On Lord Howe the clocks go back from 02:00 to 01:30: the half hour that is over counts with the one that follows.
    """
    berlin, howe = "Europe/Berlin", "Australia/Lord_Howe"
    for rate, zone, begin, expected in [
        ("5/day", "Asia/Kolkata", "2025-01-01T15:00", ["Thu 00:00+0530", "Fri 00:00+0530"]),
        ("5/day", berlin, "2025-03-29T12:00", ["Sun 00:00+0100", "Mon 00:00+0200", "Tue 00:00+0200"]),
        ("5/day", berlin, "2025-10-25T12:00", ["Sun 00:00+0200", "Mon 00:00+0100", "Tue 00:00+0100"]),
        ("5/h", berlin, "2025-10-26T01:30", ["Sun 02:00+0200", "Sun 02:00+0100", "Sun 03:00+0100"]),
        ("5/h", berlin, "2025-03-30T01:30", ["Sun 03:00+0200", "Sun 04:00+0200"]),
        ("5/h", howe, "2025-04-06T00:15", ["Sun 01:00+1100", "Sun 01:30+1030", "Sun 03:00+1030"]),
        ("5/30min", howe, "2025-04-06T01:15", ["Sun 01:30+1100", "Sun 01:30+1030", "Sun 02:00+1030"]),
        ("5/week", berlin, "2025-03-28T12:00", ["Mon 00:00+0200", "Mon 00:00+0200"]),
    ]:
        assert edges(rate, zone, begin, len(expected)) == expected, (rate, zone, begin)


def test_an_edge_within_the_repeated_hour_comes_twice() -> None:
    """Windows of 2:24 h in Berlin: at 2:10 for the second time, the next begins at 2:24 for the second time, and not an hour ago."""
    second_time = datetime(2026, 10, 25, 2, 10, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    window = CalendarWindow("1/8640s", "Europe/Berlin", origin=int(second_time.timestamp()) * S)
    assert waits(window, "0 0") == "0 840"


def test_permits_of_an_earlier_calendar_window_are_gone() -> None:
    """A day's quota is not carried over. A receipt says which window its permits are of."""
    window, other = CalendarWindow("3/min", "UTC", origin=0), CalendarWindow("3/min", "UTC", origin=0)
    waits(window, "0:3")
    waits(other, "59:3 61:3")
    window.give_back(2, 10 * S)
    assert waits(window, "10:2 10") == "0 50"
    window.give_back(3, 121 * S)
    assert waits(window, "121:3 121") == "0 59"
    other.give_back(3, 62 * S, taken=59 * S)
    other.give_back(1, 62 * S, taken=61 * S)
    assert waits(other, "62 62") == "0 58"


def test_a_pause_moves_the_instants_on_the_calendar() -> None:
    window = CalendarWindow("3/min", "UTC", origin=0)
    waits(window, "10:3")
    window._shift(40 * S)
    assert waits(window, "10") == "10"


def test_the_zone_may_be_a_tzinfo_and_the_origin_is_now() -> None:
    window = CalendarWindow("1/day", timezone(timedelta(hours=5)))
    assert window.take(1, 0) == 0
    assert 0 < window.peek(1, 0) <= 86_400 * S


def test_permits_of_long_ago_come_back_in_little_time() -> None:
    """Each return wrote the log again from its entry on: 1000 cancelled tasks stopped the loop for 16 s. The oldest go in their place."""
    window = SlidingWindow("1000000/s")
    for now in range(20_000):
        window.take(1, now)
    window.give_back(1, 20_000, 19_999)
    assert 10**6 - 19_999 == window.available(20_000)
    for taken in range(5_000):
        window.give_back(1, 20_000, taken)
    assert 10**6 - 14_999 == window.available(20_000)
    window.give_back(1, 20_000, 4_999)  # all before it, and that one itself, are gone
    assert 10**6 - 14_999 == window.available(20_000)
