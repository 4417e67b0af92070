"""The laws of schedulers: all strategies at many rates keep them, and a bad scheduler is caught by the law that it breaks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from helpers.capped import Capped
from helpers.laws import check
from helpers.strategies import EACH

import aiorate
from aiorate.testing import check_scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = 10**9
RATES = ["1/day", "0.3/s", "7/s", "3/250ms", "12345/s", "80000/s", "10_000_000/s", "100/60s", "3e9/s"]
MAKERS: dict[str, Callable[[str], aiorate.Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenPool-1.15": lambda rate: aiorate.TokenPool(rate, burst_ratio=1.15),
    "TokenPool-7.3": lambda rate: aiorate.TokenPool(rate, burst_ratio=7.3),
    "TokenPool-small": lambda rate: aiorate.TokenPool(rate, burst_ratio=1.5, pool=1000),
    "TicksAccumulator": aiorate.TicksAccumulator,
    "BurstCompensation": aiorate.BurstCompensation,
    "BurstCompensation-0.3": lambda rate: aiorate.BurstCompensation(rate, strictness=0.3),
    "BurstRatio-1": lambda rate: aiorate.BurstRatio(rate, ratio=1),
    "BurstRatio-7.3": lambda rate: aiorate.BurstRatio(rate, ratio=7.3),
    "SmoothBursty-none": lambda rate: aiorate.SmoothBursty(rate, max_burst=0),
    "SmoothBursty-2.5": lambda rate: aiorate.SmoothBursty(rate, max_stored=2.5),
    "SmoothWarmingUp": lambda rate: aiorate.SmoothWarmingUp(rate, warmup=0.7),
    "SmoothWarmingUp-10": lambda rate: aiorate.SmoothWarmingUp(rate, warmup=3, cold_factor=10),
    "SmoothWarmingUp-1": lambda rate: aiorate.SmoothWarmingUp(rate, warmup=3, cold_factor=1),
    "TokenBucket-1": lambda rate: aiorate.TokenBucket(rate, burst=1),
    "TokenBucket-20": lambda rate: aiorate.TokenBucket(rate, burst=20, initial=3),
    "SlidingWindow": aiorate.SlidingWindow,
    "AllOf": lambda rate: aiorate.AllOf(aiorate.TokenPool(rate), aiorate.BurstRatio("500/min"), aiorate.SlidingWindow("4/3s")),
}
CALENDARS = {  # histories begin just before a change of the clocks
    "a second": lambda: aiorate.CalendarWindow("7/s", "UTC", origin=5),
    "an hour in Berlin": lambda: aiorate.CalendarWindow("30/h", "Europe/Berlin", origin=1_711_846_800 * SECOND),
    "half an hour on Lord Howe": lambda: aiorate.CalendarWindow("3/30min", "Australia/Lord_Howe", origin=1_712_415_600 * SECOND),
    "six hours": lambda: aiorate.CalendarWindow("3/6h", "America/New_York", origin=1_730_606_400 * SECOND),
    "a day in Berlin": lambda: aiorate.CalendarWindow("1000/day", "Europe/Berlin", origin=1_711_846_800 * SECOND),
    "a week": lambda: aiorate.CalendarWindow("5/week", "Asia/Kolkata", origin=0),
    "a month in Berlin": lambda: aiorate.CalendarWindow("7/month", "Europe/Berlin", origin=1_711_846_800 * SECOND),
    "a year in St John's": lambda: aiorate.CalendarWindow("50/year", "America/St_Johns", origin=1_167_618_600 * SECOND),
}
# Laws about the permits or the rate that a server's quota takes away, or about a constant added to all instants, which is a pause to it.
NOT_UNDER_A_QUOTA = {"lateness_costs_no_rate", "charging_delays", "shifting_changes_nothing", "rehearsing_foretells", "no_drift"}
NOT_UNDER_A_QUOTA |= {"giving_back_later_leaves_no_trace", "giving_back_makes_nobody_sooner", "grabbing_takes_one_permit"}


@pytest.mark.parametrize("strategy", EACH)
def test_every_strategy_obeys_every_law(strategy: str) -> None:
    check(EACH[strategy], 8)


def test_the_laws_hold_at_any_rate() -> None:
    """1 per day to thousands of millions per second, rates that divide nothing, odd parameters."""
    dice = random.Random(1)
    for make in MAKERS.values():
        rate = dice.choice(RATES)
        check(lambda make=make, rate=rate: make(rate), 3)  # type: ignore[misc]


def test_the_laws_hold_on_the_calendar() -> None:
    for window, make in CALENDARS.items():
        check(make, 3, () if window in ("a second", "half an hour on Lord Howe") else {"no_drift"})


def quota(inner: aiorate.Scheduler) -> Capped:
    capped = Capped(inner, 2, 0, SECOND // 2)
    capped.lower(5, 0, 3 * SECOND)
    return capped


def bucket(inner: aiorate.Scheduler) -> Capped:
    capped = Capped(inner)
    capped.refill("a bucket of 7", 2, 7, 4 * SECOND, 0, 0)
    return capped


def test_laws_hold_under_the_quota_of_a_server() -> None:
    """A quota is one more reason to refuse, and refusals obey the laws. Once it has ended, all of them hold again."""
    for strategy in ("TokenPool", "SlidingWindow", "SmoothBursty", "BurstRatio"):
        for cap in (quota, bucket):
            check(lambda cap=cap, strategy=strategy: cap(EACH[strategy]()), 4, NOT_UNDER_A_QUOTA)  # type: ignore[misc]
        check_scheduler(lambda strategy=strategy: Capped(EACH[strategy](), 3, -(10**30), -(10**29)), examples=2)  # type: ignore[misc]


# A suite that never fails proves nothing.


class Careful(aiorate.Scheduler):
    """A correct custom scheduler that keeps all the defaults. Permits one after another, an interval apart."""

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

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
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
        return largest + self.rate._permits_in(window)


class PromisesTooMuch(Careful):
    def bound(self, window: int, largest: int = 1) -> int | None:
        return largest + self.rate._permits_in(window) - 1


class Rounds(Careful):  # the interval to whole nanoseconds: 7 per second become a little more
    def take(self, permits: int, now: int, since: int | None = None) -> int:
        spent = self.next
        at = super().take(permits, now, since)
        if spent is not None and self.next != spent:
            self.next -= permits * (self.rate.period_ns % self.rate.permits)
        return at


class CountsInFloats(Careful):  # right to the nanosecond today, not after 104 days
    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = super().take(permits, now, since)
        self.next = float(self.next)
        return at

    def due(self, now: int) -> int:
        return int(super().due(now))


class SpendsWhenRefusing(Careful):
    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = super().take(permits, now, since)
        if at > now:
            self.next += self.rate.period_ns
        return at


class FollowsTheClockBack(Careful):  # time that passes twice is credited twice
    last = -(10**30)

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if now < self.last:
            self.next -= (self.last - now) * self.rate.permits
        self.last = now
        return super().take(permits, now, since)


class HandsOnGrants(Careful):  # a return of any age makes room for as many
    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        self.next -= permits * self.rate.period_ns


class InventsPermits(aiorate.TokenBucket):
    def __init__(self) -> None:
        super().__init__("7/s", burst=5)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        super().give_back(2 * permits, now, taken)


class ServesTheSmallFirst(Careful):
    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        return max(self.due(now) if permits > 1 else self.due(now) - 1, now)


def test_a_bad_scheduler_is_caught_by_the_law_it_breaks() -> None:
    """By `check_scheduler`, whose message shows the law and the calls that break it."""
    check_scheduler(Careful, examples=20)
    for bad, laws in {
        PromisesTooMuch: ["bound_holds"],
        Rounds: ["bound_holds"],
        CountsInFloats: ["granted_on_time", "bound_holds"],
        SpendsWhenRefusing: ["asking_changes_nothing"],
        FollowsTheClockBack: ["asking_changes_nothing"],
        HandsOnGrants: ["giving_back_leaves_no_trace", "bound_holds"],
        InventsPermits: ["giving_back_leaves_no_trace"],
        ServesTheSmallFirst: ["granted_on_time"],
    }.items():
        with pytest.raises(AssertionError, match=r"The history:\n  peek\(") as caught:
            check_scheduler(bad, examples=40)
        assert str(caught.value).partition(":")[0] in laws, (bad, caught.value)
