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

    def __init__(self, compiled: type[PureMeter], random: random.Random) -> None:
        self.random = random
        self.reading = random.choice([0, 10**15, -(10**15)])
        self.pure, self.compiled = PureMeter(), compiled()
        self.follow_the_clock()

    def follow_the_clock(self) -> None:
        self.set("read", self.read)

    def read(self) -> int:
        return self.reading

    def set(self, name: str, value: object) -> None:
        setattr(self.pure, name, value)
        setattr(self.compiled, name, value)

    def step(self) -> None:
        """Let something happen, and compare."""
        pick = self.random.random
        if pick() < 0.5:
            self.move_the_clock()
        if pick() < 0.7:
            self.grab()
        elif pick() < 0.5:
            self.set(*self.any_attribute())
        elif pick() < 0.5:
            self.measure()
        elif pick() < 0.5:
            self.collect()
        elif pick() < 0.3:
            twin = self.random.choice(COPIES)
            self.pure, self.compiled = twin(self.pure), twin(self.compiled)
            self.compare()
            self.follow_the_clock()
            self.set("until", FAR)
        self.compare()

    def move_the_clock(self) -> None:
        step = self.random.choice([1, 7, 1000, 10**6, 10**9, 10**9, HOUR, 24 * HOUR])
        self.reading += self.random.choice([0, 1, step, step, self.random.randrange(step), -1, -self.random.randrange(step)])

    def instant(self) -> int:
        """An instant near that of the clock."""
        away = self.random.choice([1, 1000, 10**9, HOUR])
        return self.reading - self.pure.offset + self.random.randint(-away, away)

    def grab(self) -> None:
        trying = self.random.choice([(), (True,), (False,)])
        before = {name: getattr(self.pure, name) for name in PureMeter.__slots__}

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
        return (
            abs(self.reading - before["offset"]) < 2**63
            and abs(unit) < 2**62
            and (before["due"] is None or abs(before["due"]) < 2**125)
            and (slack in (ENDLESS, -ENDLESS) or slack < 2**125)
            and max(cost, kept) < 2**125
            and (self.pure.due is None or abs(self.pure.due) < 2**125)
            and abs(self.pure.cut) < 2**127
        )

    def any_attribute(self) -> tuple[str, object]:
        pick = self.random
        unit, cost, _, kept = self.pure.numbers
        name = pick.choice(["due", "due", "due", "until", "try_until", "since", "offset", "grabs"])
        if name == "due":
            near = self.instant() * unit
            behind = near - pick.choice([kept, cost, 10 * cost, 10**6 * cost])
            return name, pick.choice([near, near, near, near, behind, behind, behind, behind, pick.choice(ODD)])
        if name == "offset":
            return name, pick.choice([0, 0, 0, 1, -1, HOUR, -(10**15), pick.choice([1, -1]) * 2**62, pick.randint(-(2**63), 2**63 - 1)])
        if name == "grabs":
            return name, 0
        return name, pick.choice([0, FAR, FAR, FAR, FAR, FAR, FAR, self.instant(), self.instant(), 2**63 - 1, -(2**63)])

    def measure(self) -> None:
        """Set other numbers, after `collect` as the schedulers do."""
        self.collect()
        pick = self.random
        unit, cost = pick.choice(UNITS), pick.choice(COSTS)
        kept = pick.choice([0, cost, 9 * cost])
        slack = pick.choice([kept, kept + unit - 1, ENDLESS])
        self.set("numbers", pick.choice([(unit, cost, slack, kept)] * 9 + [NO_LINE]))
        self.set("since", FAR)
        self.set("until", FAR)
        self.set("try_until", FAR)
        self.set("offset", 0)
        self.set("due", pick.choice([self.instant() * unit - 10 * kept, self.pure.due]))

    def collect(self) -> None:
        assert self.pure.collect() == self.compiled.collect()

    def compare(self) -> None:
        assert [getattr(self.pure, name) for name in READABLE] == [getattr(self.compiled, name) for name in READABLE]


def test_the_compiled_meter_does_what_the_pure_one_does(compiled: type[PureMeter]) -> None:
    """Clocks that jump, numbers of any size, copies. A number that does not fit only shuts the compiled one."""
    for seed in range(12):
        pair = Pair(compiled, random.Random(seed))
        for _ in range(2_000):
            pair.step()
        pair.collect()


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


class Twins:
    """Two schedulers. One gives single permits by its meter where that is open, the other by `take`."""

    def __init__(self, made: Callable[[Any], Metered], kind: type[PureMeter], random: random.Random, late: bool) -> None:
        self.random, self.kind, self.late = random, kind, late
        self.now = random.choice([0, 10**15, 10**18])
        self.since: int | None = None
        self.served = self.now  # the latest instant at which something other than a grab happened
        rate = self.rate()
        self.metered, self.plain = made(rate), made(rate)
        self.give_meter()
        self.taken: dict[int, int] = {}  # the permits of each receipt
        self.group: int | None = None  # the instant of the takes since the last change
        self.grabs = 0
        self.both(lambda scheduler: scheduler.take(1, self.now))  # begins the schedule

    def rate(self) -> Any:
        return self.random.choice(RARE) if self.random.random() < 0.1 else self.random.choice(RATES)

    def give_meter(self) -> None:
        self.metered.line = self.kind(self.metered.line.numbers, self.metered.line.due)

    def both(self, call: Callable[[Metered], Any]) -> Any:
        expected, found = call(self.plain), call(self.metered)
        assert expected == found
        return expected

    def step(self) -> None:
        pick = self.random.random
        if pick() < 0.6:
            self.move_the_clock()
        if pick() < 0.7:
            self.take_one()
        elif pick() < 0.4 and not (self.late and isinstance(self.plain, aiorate.TokenPool)):
            self.take_several()
        elif pick() < 0.3:
            self.give_back()
        elif pick() < 0.3:
            self.change()
        if pick() < 0.2:
            self.compare()

    def move_the_clock(self) -> None:
        """By some permits' time, mostly forward. A permit that waits is taken when it is due, or later."""
        unit, cost = self.plain.rate.ticks
        permit = min(cost // unit, 10**17) + 1
        step = self.random.choice([1, permit, permit, 3 * permit + 1, 100 * permit, SECOND])
        later = [step, 1 + self.random.randrange(step), max(self.plain.peek(1, self.now) - self.now, 1), 1]
        self.now = min(self.now + self.random.choice(later), 2**61)
        if self.late:
            since = max(self.now - self.random.choice([0, 1, step // 2, step]), -(2**61))
            self.since = None if self.random.random() < 0.3 else max(since, self.served)  # nobody waits since before the last service

    def take_one(self) -> None:
        meter = self.metered.meter
        grabbed = False
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
            found = self.metered.take(1, self.now, self.since)
            assert found == expected
            # While callers wait since a late wake-up, the meter leaves it to the scheduler to cut anything off.
            assert expected > self.now or meter is None or not self.fits() or self.since is not None

    def fits(self) -> bool:
        unit, cost, _, kept = self.plain.line.numbers
        return max(unit, abs(self.now)) < 2**62 and max(cost, kept, abs(self.plain.line.due or 0)) < 2**124

    def take_several(self) -> None:
        permits = self.random.choice([1, 2, 3, self.random.randint(1, 40)])
        if self.plain.max_permits is not None:
            permits = min(permits, self.plain.max_permits)
        self.served = self.now
        if self.both(lambda scheduler: scheduler.take(permits, self.now, self.since)) <= self.now:
            self.note_take(permits)

    def note_take(self, permits: int) -> None:
        """Keep a receipt. One of an earlier group at that instant could be exchanged for a grabbed permit, which never comes back."""
        if self.now != self.group:
            self.taken.pop(self.now, None)
        self.group = self.now
        if permits or self.now in self.taken:
            self.taken[self.now] = self.taken.get(self.now, 0) + permits

    def give_back(self) -> None:
        if self.taken and self.random.random() < 0.8:
            receipt = max(self.taken) if self.random.random() < 0.7 else self.random.choice([*self.taken])
            permits = self.random.randint(1, self.taken[receipt])
            self.taken[receipt] -= permits
            if not self.taken[receipt]:
                del self.taken[receipt]
            self.both(lambda scheduler: scheduler.give_back(permits, self.now, receipt))
        else:
            permits = self.random.randint(1, 9)
            self.group = None
            self.both(lambda scheduler: scheduler.give_back(permits, self.now))

    def change(self) -> None:
        self.group = self.since = None
        self.served = self.now
        rate, permits = aiorate.Rate.of(self.rate()), self.random.randint(1, 30)
        what = self.random.choice(["set_rate", "reset", "copy", "charge", "restart"])
        if what == "charge":
            self.both(lambda scheduler: scheduler.charge(permits, self.now))
        elif what == "set_rate":
            self.both(lambda scheduler: scheduler.set_rate(rate, self.now))
        elif what == "copy":
            twin = self.random.choice(COPIES)
            self.metered, self.plain = twin(self.metered), twin(self.plain)
            assert type(self.metered.line) is self.kind
        else:
            self.both(lambda scheduler: getattr(scheduler, what)(self.now))

    def compare(self) -> None:
        """All that can be seen from outside, in a random order: each look may be the first after a grab."""
        looks: list[Callable[[Any], Any]] = [
            lambda scheduler: scheduler.peek(1, self.now),
            lambda scheduler: scheduler.peek(scheduler.max_permits or 40, self.now),
            lambda scheduler: scheduler.stock(self.now),
            lambda scheduler: scheduler.available(self.now),
            lambda scheduler: scheduler.lag(self.now),
            lambda scheduler: scheduler.rested(self.now),
            lambda scheduler: getattr(scheduler, "ticks", 0),
        ]
        looks += [lambda scheduler: scheduler.spilled, repr]
        looks += [lambda scheduler: (getattr(scheduler, "active", 0), getattr(scheduler, "waiting", 0))]
        self.random.shuffle(looks)
        for look in looks:
            self.both(look)


@pytest.mark.parametrize("late", [False, True], ids=["on-time", "late"])
def test_grabbing_does_what_taking_one_permit_does(kind: type[PureMeter], late: bool) -> None:
    """Mixed with all else that happens to a scheduler. ``late``: after late wake-ups, which book from an earlier instant."""
    for name, made in MADE.items():
        for seed in range(3):
            twins = Twins(made, kind, random.Random(f"{name} {seed}"), late)
            for _ in range(300):
                twins.step()
            twins.compare()
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


def test_a_look_before_the_first_request_books_no_time(kind: type[PureMeter]) -> None:
    """A pool begins with its first request, however long the machine has been up."""
    pool = aiorate.TokenPool("10/s")
    pool.line = kind(pool.line.numbers, pool.line.due)
    pool.line.until = FAR

    assert not pool.line.grab()
    assert pool.take(1, SECOND) == SECOND
    assert (pool.lag(SECOND), pool.waiting) == (0, 0)


def test_a_pool_prepared_by_hand_has_not_begun(kind: type[PureMeter]) -> None:
    """Its tokens are kept, and its meter grants nothing before the first instant is known."""
    for prepare in (lambda pool: pool.restart(), lambda pool: pool.apply("50/s", 1), lambda pool: pool.refill(5)):
        pool, twin = aiorate.TokenPool("100/s"), aiorate.TokenPool("100/s")
        pool.line = kind(pool.line.numbers, pool.line.due)
        prepare(pool)
        prepare(twin)
        pool.line.until = FAR

        assert not pool.line.grab()
        assert [pool.take(1, now) for now in (SECOND, SECOND, 2 * SECOND)] == [twin.take(1, now) for now in (SECOND, SECOND, 2 * SECOND)]
        assert (pool.waiting, pool.lag(2 * SECOND)) == (twin.waiting, twin.lag(2 * SECOND))
