"""The meters on random histories: compiled as in Python, and a grab does what ``take(1, now, since)`` does."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest

import aiorate
from aiorate.meter import ENDLESS, FAR, NO_LINE, PureMeter
from aiorate.schedulers.metered import Metered

SECOND = 10**9
HOUR = 3_600 * SECOND
COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda scheduler: pickle.loads(pickle.dumps(scheduler))]
UNITS = [1, 1, 1, 3, 3, 7, 1000, 1000, 10**6, 10**6, 10**9 + 7, 10**9 + 7, 2**61, 2**62 - 1, 2**62, 10**30]
COSTS = [1, 2, 7, 1000, 1000, 10**6, 10**6, 10**9, 10**9, 10**9 + 7, 60 * 10**9, 2**61, 10**30, 2**124, 2**125, 10**40]
ODD = [None, 0, -1, 2**63, -(2**63), 2**64, 2**124, -(2**124), 2**125, 2**127, 2**128, -(10**50)]
READABLE = ("numbers", "due", "until", "try_until", "offset", "since", "grabs", "last")


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
        elif pick() < 0.5:
            assert self.pure.collect() == self.compiled.collect()
        elif pick() < 0.3:
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
        unit, cost, slack, kept = before["numbers"]
        large = [number for number in (cost, kept, before["due"], self.pure.due, slack) if number not in (None, ENDLESS, -ENDLESS)]
        return (
            abs(self.reading - before["offset"]) < 2**63
            and unit < 2**62
            and all(abs(number) < 2**125 for number in large)
            and abs(self.pure.cut) < 2**127
        )

    def instant(self) -> int:
        """An instant near that of the clock."""
        away = self.dice.choice([1, 1000, 10**9, HOUR])
        return self.reading - self.pure.offset + self.dice.randint(-away, away)

    def any_attribute(self) -> tuple[str, object]:
        pick = self.dice
        unit, cost, _, kept = self.pure.numbers
        name = pick.choice(["due", "due", "due", "until", "try_until", "since", "offset", "grabs"])
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
        """Set other numbers, after `collect` as the schedulers do."""
        assert self.pure.collect() == self.compiled.collect()
        unit, cost = self.dice.choice(UNITS), self.dice.choice(COSTS)
        kept = self.dice.choice([0, cost, 9 * cost])
        slack = self.dice.choice([kept, kept + unit - 1, ENDLESS])
        self.set("numbers", self.dice.choice([(unit, cost, slack, kept)] * 9 + [NO_LINE]))
        for name in ("since", "until", "try_until"):
            self.set(name, FAR)
        self.set("offset", 0)
        self.set("due", self.dice.choice([self.instant() * unit - 10 * kept, self.pure.due]))


def test_the_compiled_meter_does_what_the_pure_one_does(compiled: type[PureMeter]) -> None:
    """Clocks that jump, numbers of any size, copies. A number that does not fit only shuts the compiled one."""
    for seed in range(12):
        pair = Pair(compiled, random.Random(seed))
        for _ in range(2_000):
            pair.step()


RATES = ["1/s", "3/s", "7/s", "0.3/s", "1000/s", "12345/s", "83300/s", "1e6/s", "3e9/s", "1/day", "3/250ms"]
RARE = [aiorate.Rate(10**30), aiorate.Rate(2**61), aiorate.Rate(1, 10**6), aiorate.Rate(10**9 + 7, 2**40)]
MADE: dict[str, Callable[[Any], Metered]] = {
    "TokenBucket-1": lambda rate: aiorate.TokenBucket(rate, burst=1),
    "TokenBucket-7": lambda rate: aiorate.TokenBucket(rate, burst=7, initial=2),
    "TokenBucket-1000": lambda rate: aiorate.TokenBucket(rate, burst=1000),
    "TokenPool": aiorate.TokenPool,
    "TokenPool-3s": lambda rate: aiorate.TokenPool(rate, pool=3 * SECOND),
    "TicksAccumulator": aiorate.TicksAccumulator,
    "BurstCompensation": aiorate.BurstCompensation,
    "BurstCompensation-0": lambda rate: aiorate.BurstCompensation(rate, strictness=0),
}
LOOKS: list[Callable[[Any, int], Any]] = [
    lambda scheduler, now: scheduler.peek(1, now),
    lambda scheduler, now: scheduler.peek(scheduler.max_permits or 40, now),
    lambda scheduler, now: scheduler.stock(now),
    lambda scheduler, now: scheduler.available(now),
    lambda scheduler, now: (scheduler.lag(now), scheduler.rested(now), scheduler.spilled, repr(scheduler)),
    lambda scheduler, now: [getattr(scheduler, name, 0) for name in ("ticks", "active", "waiting")],
]


class Twins:
    """Two schedulers. One gives single permits by its meter where that is open, the other by `take`."""

    def __init__(self, made: Callable[[Any], Metered], kind: type[PureMeter], dice: random.Random, late: bool) -> None:
        self.dice, self.kind, self.late = dice, kind, late
        self.now = dice.choice([0, 10**15, 10**18])
        self.since: int | None = None
        self.served = self.now  # the latest instant at which something other than a grab happened
        rate = self.rate()
        self.metered, self.plain = made(rate), made(rate)
        self.metered.line = kind(self.metered.line.numbers, self.metered.line.due)
        self.taken: dict[int, int] = {}  # the permits of each receipt
        self.group: int | None = None  # the instant of the takes since the last change
        self.grabs = 0
        self.both(lambda scheduler: scheduler.take(1, self.now))  # begins the schedule

    def rate(self) -> Any:
        return self.dice.choice(RARE) if self.dice.random() < 0.1 else self.dice.choice(RATES)

    def both(self, call: Callable[[Metered], Any]) -> Any:
        expected, found = call(self.plain), call(self.metered)
        assert expected == found
        return expected

    def step(self) -> None:
        pick = self.dice.random
        if pick() < 0.6:
            self.move_the_clock()
        if pick() < 0.7:
            self.take_one()
        elif pick() < 0.4 and not (self.late and isinstance(self.plain, aiorate.TokenPool)):
            permits = min(self.dice.choice([1, 2, 3, self.dice.randint(1, 40)]), self.plain.max_permits or 40)
            self.served = self.now
            if self.both(lambda scheduler: scheduler.take(permits, self.now, self.since)) <= self.now:
                self.note_take(permits)
        elif pick() < 0.3:
            self.give_back()
        elif pick() < 0.3:
            self.change()
        if pick() < 0.2:
            for look in self.dice.sample(LOOKS, len(LOOKS)):  # each may be the first after a grab
                self.both(lambda scheduler, look=look: look(scheduler, self.now))  # type: ignore[misc]

    def move_the_clock(self) -> None:
        """By some permits' time, mostly forward. A permit that waits is taken when it is due, or later."""
        unit, cost = self.plain.rate.ticks
        permit = min(cost // unit, 10**17) + 1
        step = self.dice.choice([1, permit, permit, 3 * permit + 1, 100 * permit, SECOND])
        later = [step, 1 + self.dice.randrange(step), max(self.plain.peek(1, self.now) - self.now, 1), 1]
        self.now = min(self.now + self.dice.choice(later), 2**61)
        if self.late:
            since = max(self.now - self.dice.choice([0, 1, step // 2, step]), -(2**61))
            self.since = None if self.dice.random() < 0.3 else max(since, self.served)  # nobody waits since before the last service

    def take_one(self) -> None:
        meter, grabbed = self.metered.meter, False
        if meter is not None:
            meter.until, meter.read = FAR, lambda: self.now
            since = FAR if self.since is None else self.since
            if since != meter.since:
                self.metered.collect()
                meter.since = since
            grabbed = meter.grab()
            meter.until = 0

        expected = self.plain.take(1, self.now, self.since)

        if expected <= self.now:
            self.note_take(0)
        if grabbed:
            assert expected <= self.now
            self.grabs += 1
        else:
            assert self.metered.take(1, self.now, self.since) == expected
            # While callers wait since a late wake-up, the meter leaves it to the scheduler to cut anything off.
            assert expected > self.now or meter is None or not self.fits() or self.since is not None

    def fits(self) -> bool:
        unit, cost, _, kept = self.plain.line.numbers
        return max(unit, abs(self.now)) < 2**62 and max(cost, kept, abs(self.plain.line.due or 0)) < 2**124

    def note_take(self, permits: int) -> None:
        """Keep a receipt. One of an earlier group at that instant could be exchanged for a grabbed permit, which never comes back."""
        if self.now != self.group:
            self.taken.pop(self.now, None)
        self.group = self.now
        if permits or self.now in self.taken:
            self.taken[self.now] = self.taken.get(self.now, 0) + permits

    def give_back(self) -> None:
        receipt, permits = None, self.dice.randint(1, 9)
        if self.taken and self.dice.random() < 0.8:
            receipt = max(self.taken) if self.dice.random() < 0.7 else self.dice.choice([*self.taken])
            permits = self.dice.randint(1, self.taken[receipt])
            self.taken[receipt] -= permits
            if not self.taken[receipt]:
                del self.taken[receipt]
        else:
            self.group = None
        self.both(lambda scheduler: scheduler.give_back(permits, self.now, receipt))

    def change(self) -> None:
        self.group = self.since = None
        self.served = self.now
        rate, permits = aiorate.Rate.of(self.rate()), self.dice.randint(1, 30)
        what = self.dice.choice(["set_rate", "reset", "copy", "charge", "restart"])
        if what == "copy":
            twin = self.dice.choice(COPIES)
            self.metered, self.plain = twin(self.metered), twin(self.plain)
            assert type(self.metered.line) is self.kind
        else:
            arguments = {"charge": (permits,), "set_rate": (rate,)}.get(what, ())
            self.both(lambda scheduler: getattr(scheduler, what)(*arguments, self.now))


@pytest.mark.parametrize("late", [False, True], ids=["on-time", "late"])
def test_grabbing_does_what_taking_one_permit_does(kind: type[PureMeter], late: bool) -> None:
    """Mixed with all else that happens to a scheduler. ``late``: after late wake-ups, which book from an earlier instant."""
    for name, made in MADE.items():
        for seed in range(3):
            twins = Twins(made, kind, random.Random(f"{name} {seed}"), late)
            for _ in range(300):
                twins.step()
            assert twins.grabs > 5 or name == "TokenPool-3s"  # which may be less than a permit


def test_a_grab_that_cuts_time_off_joins_no_earlier_take(kind: type[PureMeter]) -> None:
    """The take was booked from an earlier instant of the same reading: its receipt returns one interval, and not what was cut off."""
    scheduler = aiorate.BurstCompensation("1000/s", start=0)
    scheduler.line = kind(scheduler.line.numbers, scheduler.line.due)
    scheduler.line.until, scheduler.line.read = FAR, lambda: SECOND
    assert scheduler.take(1, SECOND, since=0) == 0
    assert scheduler.line.grab()

    scheduler.give_back(1, SECOND, SECOND)

    assert scheduler.ticks == SECOND + SECOND // 1000


def test_a_pool_prepared_by_hand_has_not_begun(kind: type[PureMeter]) -> None:
    """Its tokens are kept. It begins with its first request, however long the machine has been up, and its meter grants nothing before."""
    for prepare in (lambda pool: None, lambda pool: pool.restart(), lambda pool: pool.apply("50/s", 1), lambda pool: pool.refill(5)):
        pool, twin = aiorate.TokenPool("100/s"), aiorate.TokenPool("100/s")
        pool.line = kind(pool.line.numbers, pool.line.due)
        prepare(pool)
        prepare(twin)
        pool.line.until = FAR

        assert not pool.line.grab()
        assert [pool.take(1, now) for now in (SECOND, SECOND, 2 * SECOND)] == [twin.take(1, now) for now in (SECOND, SECOND, 2 * SECOND)]
        assert (pool.waiting, pool.lag(2 * SECOND)) == (twin.waiting, twin.lag(2 * SECOND))
