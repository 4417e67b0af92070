"""Orders of a few steps: up to four callers, and six steps among requests, cancellations, changes, iterations and timers.

A program is a word of six letters, drawn at random; a slow test tries one in four on one line, and one in sixteen on keys. Each must keep
the bound and the order of arrival, end every request, lose no permit, and leave nothing behind.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
from helpers.driving import SECOND, SteppedClock, others, turns

import aiorate
from aiorate import KeyedLimiter, Limiter, TokenBucket, TokenPool

from .world import Level, noted

# The steps, and how often each may come.
STEPS = {
    "A": 4,  # another caller asks
    "c": 2,  # the first in line is cancelled
    "l": 1,  # the last one is cancelled
    "u": 2,  # the first is cancelled, catches that, and asks again
    "t": 3,  # one iteration of the loop
    "f": 3,  # the next timer fires, before any task runs
    "P": 1,  # a pause of 0.1 s
    "S": 1,  # half the rate
    "F": 1,  # double the rate
    "R": 1,  # one permit is refunded
    "X": 1,  # the limiter is closed
}
LENGTH = 6


def size(number: int) -> int:
    """The permits of a request: the second one asks for two, so that those behind it could be granted sooner."""
    return 2 if number == 1 else 1


def words() -> Iterator[str]:
    """All programs that begin with a request."""
    for rest in product(STEPS, repeat=LENGTH - 1):
        word = "A" + "".join(rest)
        if all(count <= STEPS[step] for step, count in Counter(word).items()):
            yield word


class Case:
    """A limiter, and requests with their outcomes."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.levels: dict[str, Level] = {}
        self.changed = "own"
        """The level whose rate changes."""
        self.closing: Any = None
        self.verbs: Any = None
        self.lines: list[Limiter] = []
        self.asked: list[asyncio.Task[None]] = []
        self.arrived: list[int] = []
        self.granted: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.stubborn: set[int] = set()
        self.extra = 0
        self.closed = False
        self.paused = False

    def level(self, name: str, strategy: Any) -> Any:
        self.levels[name] = Level.of(strategy, largest=2)
        return strategy

    async def one(self, number: int) -> None:
        try:
            await self.acquire(number)
        except asyncio.CancelledError:
            if number not in self.stubborn:
                raise
            asyncio.current_task().uncancel()  # type: ignore[union-attr]
            self.arrived.remove(number)
            await self.acquire(number)

    async def acquire(self, number: int) -> None:
        self.arrived.append(number)
        await self.lines[number % len(self.lines)].acquire(size(number))
        self.granted[number] = self.clock.now()

    def cancel(self, place: int, stubborn: bool = False) -> None:
        waiting = [number for number, task in enumerate(self.asked) if not task.done() and not task.cancelling()]
        for number in waiting[place:][:1]:
            # A task that has not begun has nothing to catch.
            (self.stubborn if stubborn and number in self.arrived else self.cancelled).add(number)
            self.asked[number].cancel()

    async def step(self, letter: str) -> None:
        if letter == "A":
            self.asked.append(asyncio.create_task(self.one(len(self.asked))))
        elif letter in "cul":
            self.cancel(-1 if letter == "l" else 0, letter == "u")
        elif letter == "t":
            await turns(1)
        elif letter == "f":
            self.clock.fire()
        elif letter == "P":
            self.paused = True
            self.verbs.pause(0.1)
        elif letter == "R":
            self.extra += 1
            self.verbs.refund(1)
        elif letter == "X":
            self.closed = True
            await self.closing.aclose()
        else:
            self.verbs.set_rate("5/s" if letter == "S" else "20/s")

    async def drain(self) -> None:
        """Let time pass until nothing is left to happen. No request waits without need, and no timer is set without a request."""
        fired = True
        while fired:
            await turns(6)
            waiting = [number for number in self.arrived if not self.asked[number].done()]
            if not waiting:
                assert self.clock.next_timer is None, "a timer without a request"
            elif len(self.lines) == 1 and not self.paused:  # else the limiter's time differs from the clock's
                now = self.clock.now()
                assert self.lines[0].scheduler.peek(size(waiting[0]), now) > now, f"{waiting[0]} could be granted"
            fired = self.clock.fire()
        assert set() == others()
        assert [0] * len(self.lines) == [line.statistics().waiting for line in self.lines]

    def check(self) -> None:
        for number, task in enumerate(self.asked):
            assert task.done(), f"{number} is lost"
            if task.cancelled():
                assert number in self.cancelled | self.stubborn
                self.granted.pop(number, None)
            elif number not in self.granted:
                assert self.closed
                assert isinstance(task.exception(), aiorate.LimiterClosed), f"{number} was told {task.exception()!r}"
        for line in range(len(self.lines)):
            # Of two granted at one instant, the later one may run first if its task was started before the other was woken.
            instants = [self.granted[number] for number in self.arrived if number in self.granted and number % len(self.lines) == line]
            assert instants == sorted(instants), "out of order"
        for name, level in self.levels.items():
            had = sum(size(number) for number in self.granted if name in ("own", "shared", str(number % 2)))
            assert had == len(level.grants()), f"{name} granted {len(level.grants())}, and {had} went on"
            # The rate of one level may have been four times as high at some time.
            level.check(name, 0, self.extra, 4 if name == self.changed else 1)
        if not self.extra:
            assert sum(map(size, self.granted)) == sum(line.statistics().granted for line in self.lines)
        # Six permits at half the rate, and a pause.
        assert max(self.granted.values(), default=0) <= 1.3 * SECOND


def one_line(strategy: Any) -> Case:
    case = Case()
    case.verbs = case.closing = limiter = Limiter(case.level("own", strategy), clock=case.clock)
    case.lines = [limiter]
    return case


def shared(verbs_of: str) -> Case:
    """Two keys at twice the rate of the limit that they share. The steps change a key or the shared limit."""
    case = Case()
    case.changed = verbs_of
    top = Limiter(case.level("shared", noted(TokenBucket, "10/s", 2)), clock=case.clock)
    keyed = KeyedLimiter(lambda key: Limiter(case.level(key, noted(TokenBucket, "20/s", 2)), clock=case.clock), shared=top)
    case.lines = [keyed["0"], keyed["1"]]
    case.verbs, case.closing = top if verbs_of == "shared" else case.lines[0], keyed
    return case


CASES: dict[str, Callable[[], Case]] = {
    "bucket": lambda: one_line(noted(TokenBucket, "10/s", 2)),
    "pool": lambda: one_line(noted(TokenPool, "10/s")),
    "shared": lambda: shared("shared"),
    "key": lambda: shared("0"),
}
ONE_LINE = ("bucket", "pool")


async def run(make: Callable[[], Case], word: str) -> None:
    case = make()
    for letter in word:
        await case.step(letter)
    await case.drain()
    case.check()
    # It still works.
    before = len(case.granted)
    for _ in case.lines:
        await case.step("A")
    await case.drain()
    assert len(case.granted) == before + (0 if case.closed else len(case.lines))
    [task.exception() for task in case.asked if not task.cancelled()]


def check_words(kind: str, chosen: Sequence[str]) -> None:
    """A defect that needs a certain order shows within a few steps, if every order is tried."""

    async def main() -> None:
        for word in chosen:
            try:
                await run(CASES[kind], word)
            except Exception as error:
                raise AssertionError(f"{word}: {error}") from error

    asyncio.run(main())


def test_no_order_of_steps_loses_or_hurries_a_grant() -> None:
    every = list(words())
    for kind in CASES:
        check_words(kind, random.Random(kind).sample(every, 100 if kind in ONE_LINE else 50))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_no_other_order_loses_or_hurries_a_grant(kind: str) -> None:
    check_words(kind, list(words())[:: 4 if kind in ONE_LINE else 16])
