"""The laws of schedulers, on all strategies at many rates, and on bad schedulers, which each break one law."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from helpers.samples import histories, sampled
from helpers.strategies import EACH

import aiorate
from aiorate.meter import ENDLESS, Meter
from aiorate.testing import check_scheduler
from aiorate.testing.laws import LAWS, run_law
from aiorate.testing.receipts import EXACT_RECEIPTS

if TYPE_CHECKING:
    from collections.abc import Callable

FEW = ["0.3/s", "12345/s", "3e9/s"]
RATES = ["1/day", "0.3/s", "7/s", "3/250ms", "12345/s", "80000/s", "10_000_000/s", "100/60s", "3e9/s"]


def many(*parameters: object) -> Any:
    """Further parameters of the same test, for a long run."""
    return pytest.param(*parameters, marks=pytest.mark.slow)


MAKERS: dict[str, Callable[[str], aiorate.Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenPool-burst-1.15": lambda rate: aiorate.TokenPool(rate, burst_ratio=1.15),
    "TokenPool-burst-7.3": lambda rate: aiorate.TokenPool(rate, burst_ratio=7.3),
    "TokenPool-small": lambda rate: aiorate.TokenPool(rate, burst_ratio=1.5, pool=1000),
    "TicksAccumulator": aiorate.TicksAccumulator,
    "BurstCompensation-strict": aiorate.BurstCompensation,
    "BurstCompensation-0.3": lambda rate: aiorate.BurstCompensation(rate, strictness=0.3),
    "BurstRatio-1": lambda rate: aiorate.BurstRatio(rate, ratio=1),
    "BurstRatio-7.3": lambda rate: aiorate.BurstRatio(rate, ratio=7.3),
    "SmoothBursty": aiorate.SmoothBursty,
    "SmoothBursty-none": lambda rate: aiorate.SmoothBursty(rate, max_burst=0),
    "SmoothBursty-2.5": lambda rate: aiorate.SmoothBursty(rate, max_stored=2.5),
    "SmoothWarmingUp": lambda rate: aiorate.SmoothWarmingUp(rate, warmup=0.7),
    "SmoothWarmingUp-cold-10": lambda rate: aiorate.SmoothWarmingUp(rate, warmup=3, cold_factor=10),
    "SmoothWarmingUp-cold-1": lambda rate: aiorate.SmoothWarmingUp(rate, warmup=3, cold_factor=1),
    "TokenBucket-1": lambda rate: aiorate.TokenBucket(rate, burst=1),
    "TokenBucket-20": lambda rate: aiorate.TokenBucket(rate, burst=20, initial=3),
    "SlidingWindow": aiorate.SlidingWindow,
    "AllOf": lambda rate: aiorate.AllOf(aiorate.TokenPool(rate), aiorate.BurstRatio("500/min"), aiorate.SlidingWindow("4/3s")),
}


class NoReceiptsBucket(aiorate.TokenBucket):
    """Keeps no records, as in a limiter without waiters. Nothing comes back by receipt."""

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        if taken is None:
            super().give_back(permits, now)


class NoReceiptsPool(aiorate.TokenPool):
    """Likewise."""

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        if taken is None:
            super().give_back(permits, now)


def without_receipts(scheduler: aiorate.Scheduler) -> aiorate.Scheduler:
    scheduler.receipts = False
    return scheduler


MAKERS["TokenBucket-no-receipts"] = lambda rate: without_receipts(NoReceiptsBucket(rate, burst=20))
MAKERS["TokenPool-no-receipts"] = lambda rate: without_receipts(NoReceiptsPool(rate))
CALENDARS = {
    "a second": lambda: aiorate.CalendarWindow("7/s", "UTC", origin=5),
    "an hour in Berlin": lambda: aiorate.CalendarWindow("30/h", "Europe/Berlin", origin=1_711_846_800_000_000_000),
    "half an hour on Lord Howe": lambda: aiorate.CalendarWindow("3/30min", "Australia/Lord_Howe", origin=1_712_415_600_000_000_000),
    "six hours": lambda: aiorate.CalendarWindow("3/6h", "America/New_York", origin=1_730_606_400_000_000_000),
    "a day in Berlin": lambda: aiorate.CalendarWindow("1000/day", "Europe/Berlin", origin=1_711_846_800_000_000_000),
    "a week": lambda: aiorate.CalendarWindow("5/week", "Asia/Kolkata", origin=0),
    "a month in Berlin": lambda: aiorate.CalendarWindow("7/month", "Europe/Berlin", origin=1_711_846_800_000_000_000),
    "a year in St John's": lambda: aiorate.CalendarWindow("50/year", "America/St_Johns", origin=1_167_618_600_000_000_000),
    "a day in St John's": lambda: aiorate.CalendarWindow("5/day", "America/St_Johns", origin=1_162_092_600_000_000_000),
}


@pytest.mark.parametrize("examples", [6, many(60)])
@pytest.mark.parametrize("law", LAWS + EXACT_RECEIPTS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", EACH)
def test_every_strategy_obeys_every_law(name: str, law: Callable[..., None], examples: int) -> None:
    """All that is built on schedulers relies on the laws alone."""
    run_law(law, EACH[name], examples)


@pytest.mark.parametrize(("rate", "examples"), [*((rate, 2) for rate in FEW), *(many(rate, 8) for rate in RATES)])
@pytest.mark.parametrize("maker", MAKERS)
def test_the_laws_hold_at_any_rate(maker: str, rate: str, examples: int) -> None:
    """1 per day to thousands of millions per second, rates that divide nothing, odd parameters."""
    for law in LAWS + EXACT_RECEIPTS:
        if "no-receipts" not in maker or "leaves_no_trace" not in law.__name__:
            run_law(law, lambda: MAKERS[maker](rate), examples)


@pytest.mark.parametrize("examples", [3, many(40)])
@pytest.mark.parametrize("window", CALENDARS)
def test_the_laws_hold_on_the_calendar(window: str, examples: int) -> None:
    """The histories begin just before a change of the clocks."""
    for law in LAWS + EXACT_RECEIPTS:
        if law.__name__ != "no_drift" or window in ("a second", "half an hour on Lord Howe"):
            run_law(law, CALENDARS[window], examples)


class Careful(aiorate.Scheduler):
    """A correct custom scheduler that keeps all the defaults.

    Permits one after another, an interval apart. Each of the bad schedulers below spoils one thing.
    """

    max_permits = 3

    def __init__(self, rate: str = "7/s") -> None:
        self.rate = aiorate.Rate.parse(rate)
        self.next: Any = None  # in ticks, of which a nanosecond has rate.permits
        self.latest: Any = None  # the receipt of the latest take, and what next was before

    def due(self, now: int) -> int:
        if self.next is None:
            self.next = now * self.rate.permits
        return -(-self.next // self.rate.permits)

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = self.due(now)
        if at <= now:
            since = now if since is None or since > now else since
            self.latest = now, self.next, permits
            if self.next <= (since - 1) * self.rate.permits:
                self.next = since * self.rate.permits
            self.next += permits * self.rate.period_ns
            at = max(at, since)
        return at

    def peek(self, permits: int, now: int) -> int:
        return max(self.due(now), now)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        if self.latest is not None and (taken, permits) == (self.latest[0], self.latest[2]):
            self.next = self.latest[1]
            self.latest = None

    def set_rate(self, rate: aiorate.Rate, now: int) -> None:
        self.latest = None
        self.next = -(-self.next * rate.permits // self.rate.permits)
        self.rate = rate

    def lag(self, now: int) -> int:
        return 0

    def bound(self, window: int, largest: int = 1) -> int | None:
        return largest + self.rate.permits_in(window)


@sampled
def test_a_custom_scheduler_obeys_the_laws() -> None:
    """Eight members are enough."""
    check_scheduler(Careful, examples=histories(50))


class PromisesTooMuch(Careful):
    def bound(self, window: int, largest: int = 1) -> int | None:
        return largest + self.rate.permits_in(window) - 1


class Rounds(Careful):
    """The interval is rounded to whole nanoseconds: 7 per second become a little more."""

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        spent = self.next
        at = super().take(permits, now, since)
        if spent is not None and self.next != spent:
            self.next -= permits * (self.rate.period_ns % self.rate.permits)
        return at


class CountsInFloats(Careful):
    """Seconds added up in a float: right to the nanosecond today, not after 104 days."""

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = super().take(permits, now, since)
        self.next = float(self.next)
        return at

    def due(self, now: int) -> int:
        return int(super().due(now))


class GrantsEarly(Careful):
    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = super().take(permits, now + 5, None if since is None else since)
        return at if at > now + 5 else min(at, now)


class SpendsWhenAsked(Careful):
    def peek(self, permits: int, now: int) -> int:
        at = super().peek(permits, now)
        self.next += 1
        return at


class SpendsWhenRefusing(Careful):
    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = super().take(permits, now, since)
        if at > now:
            self.next += self.rate.period_ns
        return at


class FollowsTheClockBack(Careful):
    """As golang.org/x/time/rate does: time that passes twice is credited twice."""

    def due(self, now: int) -> int:
        self.level, self.last = getattr(self, "level", 0), getattr(self, "last", now)
        if now < self.last and self.next is not None:
            self.next -= (self.last - now) * self.rate.permits
        self.last = now
        return super().due(now)


class InventsPermits(aiorate.TokenBucket):
    """Puts back twice as much as was taken out."""

    def __init__(self) -> None:
        super().__init__("7/s", burst=5)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        super().give_back(2 * permits, now, taken)


class HandsOnGrants(Careful):
    """A return of any age makes room for as many: the slot is granted a second time."""

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        self.next -= permits * self.rate.period_ns


class CountsOnTheFuture(Careful):
    """Counts permits as stock that are due later."""

    def stock(self, now: int) -> int:
        return 1 + max(0, now + self.rate.interval_ns - self.due(now)) // self.rate.interval_ns


class ForgetsDebts(Careful):
    def charge(self, permits: int, now: int) -> None:
        super().charge(1, now)


class ServesTheSmallFirst(Careful):
    def peek(self, permits: int, now: int) -> int:
        return max(self.due(now) if permits > 1 else self.due(now) - 1, now)


class LateTimersCost(Careful):
    """Books from now, not from `since`, and does not say so."""

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        return super().take(permits, now)


class Forgives(Careful):
    def set_rate(self, rate: aiorate.Rate, now: int) -> None:
        self.rate = rate
        self.next = now * rate.permits


class LivesByTheClockFace(Careful):
    """Begins at a whole second of the clock."""

    def due(self, now: int) -> int:
        if self.next is None:
            self.next = -(-now // 1_000_000_000) * 1_000_000_000 * self.rate.permits
        return super().due(now)


class Sulks(Careful):
    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if permits > 2:
            raise ZeroDivisionError("oh")
        return super().take(permits, now, since)


class ForgetsItsMeter(aiorate.TokenBucket):
    """What its meter took does not count."""

    def __init__(self) -> None:
        super().__init__("100/s", burst=5)

    @property
    def meter(self) -> Meter:
        return Meter((1, 1, ENDLESS, 0), 0)


BAD = {
    PromisesTooMuch: ("bound_holds",),
    Rounds: ("bound_holds", "bound_holds_for_what_is_kept", "bound_holds_when_late", "no_drift"),
    # Anything may come of it, as histories last for years.
    CountsInFloats: tuple(law.__name__ for law in LAWS[3:]),
    GrantsEarly: ("granted_on_time", "asking_changes_nothing"),
    SpendsWhenAsked: ("asking_changes_nothing",),
    SpendsWhenRefusing: ("asking_changes_nothing",),
    FollowsTheClockBack: ("asking_changes_nothing", "going_back_earns_nothing"),
    InventsPermits: ("giving_back_leaves_no_trace",),
    HandsOnGrants: ("bound_holds", "bound_holds_for_what_is_kept"),
    CountsOnTheFuture: ("stock_is_there",),
    ForgetsDebts: ("charging_delays",),
    ServesTheSmallFirst: ("granted_on_time", "more_is_never_sooner"),
    LateTimersCost: ("lateness_costs_no_rate",),
    Forgives: ("set_rate_forgives_nothing",),
    LivesByTheClockFace: ("shifting_changes_nothing",),
    Sulks: ("asking_changes_nothing", "granted_on_time"),
    ForgetsItsMeter: ("bound_holds", "grabbing_takes_one_permit"),
}


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
def test_a_bad_scheduler_is_caught_by_the_right_law(bad: Callable[[], aiorate.Scheduler]) -> None:
    """A suite that never fails proves nothing. The message shows the law and the history that breaks it."""
    with pytest.raises(AssertionError) as caught:
        check_scheduler(bad, examples=30)

    law, _, rest = str(caught.value).partition(":")
    assert law in BAD[bad]
    assert re.search(r"The history:\n  [a-z_]+\(", rest)  # which call comes first depends on the example
