"""The meters on random histories: compiled as in Python, and a grab does what ``take(1, now, since)`` does."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest

import aiorate
from aiorate._meter import ENDLESS, FAR, NO_LINE, PureMeter
from aiorate._schedulers.interface import Metered

SECOND = 10**9
HOUR = 3_600 * SECOND
COPIES: list[Callable[[Any], Any]] = [copy.deepcopy, lambda scheduler: pickle.loads(pickle.dumps(scheduler))]
UNITS = [1, 1, 1, 3, 3, 7, 1000, 1000, 10**6, 10**6, 10**9 + 7, 10**9 + 7, 2**61, 2**62 - 1, 2**62, 10**30]
COSTS = [1, 2, 7, 1000, 1000, 10**6, 10**6, 10**9, 10**9, 10**9 + 7, 60 * 10**9, 2**61, 10**30, 2**124, 2**125, 10**40]
ODD = [None, 0, -1, 2**63, -(2**63), 2**64, 2**124, -(2**124), 2**125, 2**127, 2**128, -(10**50)]
READABLE = ("numbers", "due", "until", "offset", "since", "grabs", "last", "cut", "peak")


class Pair:
    """A meter of each kind, to which the same happens, and a clock that is moved by hand."""

    def __init__(self, compiled: type[PureMeter], dice: random.Random) -> None:
        self.dice, self.pure, self.compiled = dice, PureMeter(), compiled()
        self.reading = dice.choice([0, 10**15, -(10**15)])
        self.set("read", lambda: self.reading)

    def set(self, name: str, value: object) -> None:
        setattr(self.pure, name, value)
        setattr(self.compiled, name, value)

    def step(self) -> None:
        """Let something happen, and compare."""
        pick = self.dice.random
        if pick() < 0.5:
            step = self.dice.choice([1, 7, 1000, 10**6, 10**9, 10**9, HOUR, 24 * HOUR])
            self.reading += self.dice.choice([0, 1, step, step, self.dice.randrange(step), -1, -self.dice.randrange(step)])
        if pick() < 0.7:
            self.grab()
        elif pick() < 0.5:
            self.set(*self.any_attribute())
        elif pick() < 0.5:
            self.measure()
        elif pick() < 0.15:
            twin = self.dice.choice(COPIES)
            for meter in (self.pure, self.compiled):
                meter.read = int  # a clock that can be pickled
            self.pure, self.compiled = twin(self.pure), twin(self.compiled)
            self.set("read", lambda: self.reading)
            self.set("until", FAR)
        assert [getattr(self.pure, name) for name in READABLE] == [getattr(self.compiled, name) for name in READABLE]

    def grab(self) -> None:
        before = {name: getattr(self.pure, name) for name in PureMeter.__slots__}
        trying = self.dice.choice([(), (True,), (False,)])
        expected, found = self.pure.grab(*trying), self.compiled.grab(*trying)
        if self.fits(before):
            assert expected is found
        else:  # then the scheduler takes the permit itself
            assert found is False
            for name, value in before.items():
                setattr(self.pure, name, value)

    def fits(self, before: dict[str, Any]) -> bool:
        """Whether the compiled meter can count as far as that grab went."""
        unit, cost, kept = before["numbers"]
        large = [number for number in (cost, kept, before["due"], self.pure.due) if number not in (None, ENDLESS, -ENDLESS)]
        return (
            abs(self.reading - before["offset"]) < 2**63
            and unit < 2**62
            and all(abs(number) < 2**125 for number in large)
            and self.pure.cut < 2**126
        )

    def instant(self) -> int:
        """An instant near that of the clock."""
        away = self.dice.choice([1, 1000, 10**9, HOUR])
        return self.reading - self.pure.offset + self.dice.randint(-away, away)

    def any_attribute(self) -> tuple[str, object]:
        pick = self.dice
        unit, cost, kept = self.pure.numbers
        kept = kept if abs(kept) < ENDLESS else 0
        name = pick.choice(["due", "due", "due", "until", "since", "offset", "grabs"])
        if name == "due":
            near = self.instant() * unit
            return name, pick.choice(
                [near, near, near, *(near - behind for behind in (kept, cost, 10 * cost, 10**6 * cost)), pick.choice(ODD)]
            )
        if name == "offset":
            return name, pick.choice([0, 0, 0, 1, -1, HOUR, -(10**15), pick.choice([1, -1]) * 2**62, pick.randint(-(2**63), 2**63 - 1)])
        if name == "grabs":
            return name, 0
        return name, pick.choice([0, *[FAR] * 6, self.instant(), self.instant(), 2**63 - 1, -(2**63)])

    def measure(self) -> None:
        """Set other numbers, and note the grabs as the schedulers do."""
        self.set("peak", -1)
        unit, cost = self.dice.choice(UNITS), self.dice.choice(COSTS)
        kept = self.dice.choice([0, cost, 9 * cost])
        self.set("numbers", self.dice.choice([(unit, cost, kept)] * 6 + [(unit, cost, ENDLESS)] * 3 + [(unit, cost, NO_LINE)]))
        for name in ("since", "until"):
            self.set(name, FAR)
        self.set("offset", 0)
        self.set("due", self.dice.choice([self.instant() * unit - 10 * kept, self.pure.due]))


def test_the_compiled_meter_does_what_the_pure_one_does(compiled: type[PureMeter]) -> None:
    """Clocks that jump, numbers of any size, copies. A number that does not fit only shuts the compiled one."""
    for seed in range(12):
        pair = Pair(compiled, random.Random(seed))
        for _ in range(2_000):
            pair.step()


RATES = ["1/s", "7/s", "0.3/s", "12345/s", "3e9/s", "1/day", aiorate.Rate(10**30), aiorate.Rate(1, 10**6), aiorate.Rate(10**9 + 7, 2**40)]
MADE: list[Callable[[Any], Metered]] = [
    lambda rate: aiorate.TokenBucket(rate, burst=1),
    lambda rate: aiorate.TokenBucket(rate, burst=7, initial=2),
    aiorate.TokenPool,
    lambda rate: aiorate.TokenPool(rate, pool=3 * SECOND),
    aiorate.TicksAccumulator,
    aiorate.BurstCompensation,
    lambda rate: aiorate.BurstCompensation(rate, strictness=0),
]


def line_of(kind: type[PureMeter], scheduler: Metered) -> PureMeter:
    """The scheduler's line, kept by a meter of that kind."""
    meter = kind()
    meter.numbers, meter.due = scheduler._line.numbers, scheduler._line.due
    return meter


def grab(scheduler: Metered, now: int, since: int | None) -> bool:
    """Take a permit by the meter if that is open, since a late wake-up if one is given; else by `take`."""
    meter, taken = scheduler._meter, False
    if meter is not None:
        meter.until, meter.read = FAR, lambda: now
        if meter.since != (FAR if since is None else since):
            if meter.peak >= 0:
                scheduler._heed_grabs()
            meter.since = FAR if since is None else since
        taken = meter.grab()
        meter.until, meter.read = 0, int
    return taken or scheduler.take(1, now, since) <= now


@pytest.mark.parametrize("late", [False, True], ids=["on-time", "late"])
def test_grabbing_does_what_taking_one_permit_does(kind: type[PureMeter], late: bool) -> None:
    """Mixed with all else that happens to a scheduler. ``late``: after late wake-ups, which book from an earlier instant."""
    for seed in range(28):
        dice = random.Random(seed)
        made, now, rate = MADE[seed % 7], dice.choice([0, 10**15, 10**18]), dice.choice(RATES)
        grabbed, taken = made(rate), made(rate)
        grabbed._line = line_of(kind, grabbed)
        assert grabbed.take(1, now) == taken.take(1, now)  # begins the schedule
        served, receipts = now, list[int]()
        for _ in range(300):
            unit, cost = taken.rate._ticks
            permit = min(cost // unit, 10**15) + 1
            now += dice.choice([0, 0, 1, dice.randrange(permit), permit, 100 * permit, SECOND, max(taken.peek(1, now) - now, 1)])
            since = max(served, now - dice.randrange(2 * permit)) if late and dice.random() < 0.7 else None
            assert grab(grabbed, now, since) == (taken.take(1, now, since) <= now)
            if dice.random() < 0.2:
                served = now
                permits = min(dice.randint(1, 9), taken.max_permits or 9)
                match dice.choice(["take", "give_back", "refund", "charge", "set_rate", "reset", "restart", "copy"]):
                    case "take" if not (late and isinstance(taken, aiorate.TokenPool)):
                        now += 1  # so that no grabbed permit has the same receipt
                        calls: list[tuple[Any, ...]] = [("take", permits, now)]
                        receipts += [now] if taken.peek(permits, now) <= now else []
                        now += 1
                    case "give_back" if receipts:
                        calls = [("give_back", 1, now, receipts.pop())]
                    case "refund":
                        calls = [("give_back", permits, now)]
                    case "set_rate":
                        calls = [("set_rate", aiorate.Rate.of(dice.choice(RATES)), now)]
                    case ("reset" | "restart") as call:
                        calls = [(call, now)]
                    case "copy":
                        twin, calls = dice.choice(COPIES), []
                        grabbed, taken = twin(grabbed), twin(taken)
                        assert type(grabbed._line) is kind
                    case _:
                        calls = [("charge", permits, now)]
                for call, *arguments in calls:
                    assert getattr(grabbed, call)(*arguments) == getattr(taken, call)(*arguments), (seed, call)
            for look in dice.sample(["peek", "available", "lag", "_rested"], 1):  # each may be the first after a grab
                ask = (1, now) if look == "peek" else (now,)
                assert getattr(grabbed, look)(*ask) == getattr(taken, look)(*ask), (seed, look)
        assert (grabbed.available(now), grabbed.lag(now), grabbed._spilled) == (taken.available(now), taken.lag(now), taken._spilled)


def test_a_grab_that_cuts_time_off_joins_no_earlier_take(kind: type[PureMeter]) -> None:
    """The take was booked from an earlier instant of the same reading: its receipt returns one interval, and not what was cut off."""
    scheduler = aiorate.BurstCompensation("1000/s", start=0)
    scheduler._line = line_of(kind, scheduler)
    scheduler._line.until, scheduler._line.read = FAR, lambda: SECOND
    assert scheduler.take(1, SECOND, since=0) == 0
    assert scheduler._line.grab()
    scheduler.give_back(1, SECOND, SECOND)
    assert scheduler.ticks == SECOND + SECOND // 1000


def test_a_pool_prepared_by_hand_has_not_begun(kind: type[PureMeter]) -> None:
    """Its tokens are kept. It begins with its first request, however long the machine has been up, and its meter grants nothing before."""
    for prepare in (lambda pool: None, lambda pool: pool.restart(), lambda pool: pool.apply("50/s", 1), lambda pool: pool.refill(5)):
        pool, twin = aiorate.TokenPool("100/s"), aiorate.TokenPool("100/s")
        pool._line = line_of(kind, pool)
        prepare(pool)
        prepare(twin)
        pool._line.until = FAR
        assert not pool._line.grab()
        assert [pool.take(1, now) for now in (SECOND, SECOND, 2 * SECOND)] == [twin.take(1, now) for now in (SECOND, SECOND, 2 * SECOND)]
        assert (pool.waiting, pool.lag(2 * SECOND)) == (twin.waiting, twin.lag(2 * SECOND))
