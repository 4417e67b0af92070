"""The compiled meter does what the meter in Python does, in random steps."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
from helpers.samples import histories, sampled

from aiorate.meter import ENDLESS, FAR, NO_LINE, PureMeter

HOUR = 3_600 * 10**9
UNITS = [1, 1, 1, 3, 3, 7, 1000, 1000, 10**6, 10**6, 10**9 + 7, 10**9 + 7, 2**61, 2**62 - 1, 2**62, 10**30]
COSTS = [1, 2, 7, 1000, 1000, 10**6, 10**6, 10**9, 10**9, 10**9 + 7, 60 * 10**9, 2**61, 10**30, 2**124, 2**125, 10**40]
ODD = [None, 0, -1, 2**63, -(2**63), 2**64, 2**124, -(2**124), 2**125, 2**127, 2**128, -(10**50)]
COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda meter: pickle.loads(pickle.dumps(meter))]
READABLE = ("numbers", "due", "until", "try_until", "offset", "since", "grabs", "last")
STEPS = 3_000


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


@sampled
@pytest.mark.parametrize("seed", range(histories(330)))
def test_the_compiled_meter_does_what_the_pure_one_does(compiled: type[PureMeter], seed: int) -> None:
    """Random steps: clocks that jump, numbers of any size, copies. A number that does not fit only shuts the compiled one."""
    pair = Pair(compiled, random.Random(seed))

    for _ in range(STEPS):
        pair.step()

    pair.collect()
