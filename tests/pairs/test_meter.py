"""The open meter together with all that can happen to a limiter: it goes on as one with a shut meter does, to the last figure.

The meter is open by the machine's monotonic clock, which is moved by hand here, and shut by a clock that the user passes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from helpers.driving import SECOND, turns
from helpers.meters import Machine, at_once

import aiorate
from aiorate import AllOf, BurstCompensation, BurstRatio, Limiter, SlidingWindow, TicksAccumulator, TokenBucket, TokenPool
from aiorate._feedback import Feedback, Quota
from aiorate._rate import Rate
from aiorate.testing import ManualClock

MS = SECOND // 1000
START = 1000 * SECOND

KINDS: dict[str, Callable[[], aiorate.Scheduler]] = {
    "bucket": lambda: TokenBucket("1000/s", burst=20),
    "bucket of one": lambda: TokenBucket("1000/s", burst=1),
    "pool": lambda: TokenPool("1000/s"),
    "large pool": lambda: TokenPool("1000/s", pool=30 * MS),
    "pool that catches up": lambda: TokenPool("1000/s", 1.5, pool=30 * MS),
    "ticks": lambda: TicksAccumulator("1000/s"),
    "strict": lambda: BurstCompensation("1000/s"),
    "half strict": lambda: BurstCompensation("1000/s", 0.5),
    "ratio": lambda: BurstRatio("1000/s", 1.5),
    "window": lambda: SlidingWindow("20/s"),
    "two": lambda: AllOf(TokenBucket("1000/s", burst=20), TokenPool("700/s", pool=30 * MS)),
}


class Story:
    """One limiter, what happens to it, and what came of it. Steps are its methods, or else those of the limiter."""

    def __init__(self, kind: str, machine: Machine, shut: bool, **options: Any) -> None:
        machine.instant = START
        self.machine, self.clock = machine, ManualClock(START) if shut else None
        self.limiter = Limiter(KINDS[kind](), clock=self.clock, **options)
        self.most = min(5, self.limiter.scheduler.max_permits or 5)
        self.outcomes: list[Any] = []

    async def play(self, *steps: tuple[Any, ...]) -> None:
        for name, *arguments in steps:
            done = getattr(self if hasattr(self, name) else self.limiter, name)(*arguments)
            if isinstance(done, Awaitable):
                await done

    def move(self, ms: float, grants: bool = True) -> None:
        self.machine.instant += round(ms * MS)
        if self.clock is not None:
            self.clock.set(self.machine.instant)
        if grants:
            self.limiter.statistics()  # grants what is due

    async def wait(self, ms: float) -> None:
        if ms:
            self.move(ms)
        await turns(4)

    async def grab(self, times: int = 6, step: float = 1 / 3) -> None:
        """Try and acquire, in either order in turn, with `step` ms in between."""
        for k in range(times):
            self.move(step, grants=False)  # so that permits come from the meter
            await turns(step > 0)
            try:
                if k % 2:
                    self.outcomes.append(self.limiter.try_acquire())
                self.outcomes.append(await at_once(self.limiter))
                if not k % 2:
                    self.outcomes.append(self.limiter.try_acquire())
            except (aiorate.LimiterClosed, aiorate.LineFull) as error:
                self.outcomes.append(type(error))

    def tries(self, times: int) -> None:
        self.outcomes += [self.limiter.try_acquire() for _ in range(times)]

    async def ask(self) -> None:
        """Wait for a permit, when there are none."""
        while self.limiter.try_acquire():
            pass
        self.waiter = asyncio.ensure_future(self.limiter.acquire())
        await turns(3)

    def cancel(self) -> None:
        self.waiter.cancel()

    def asked(self) -> None:
        self.outcomes += [self.waiter.done(), self.waiter.done() and self.waiter.cancelled()]

    def try_most(self) -> None:
        self.limiter.try_acquire(self.most)

    def slower(self) -> None:
        self.limiter.set_rate("400/s", member=0 if self.limiter.scheduler.members else None)

    async def refused_at_once(self) -> None:
        for _ in range(25):
            try:
                self.outcomes.append(await self.limiter.acquire(max_wait=0))
            except aiorate.WaitTooLong as error:
                self.outcomes.append(str(error))

    def look(self) -> None:
        limiter = self.limiter
        self.outcomes += [limiter.lag, limiter.delay(), limiter.delay(min(3, self.most)), limiter.statistics()]


def apply(spec: str) -> tuple[str, str]:
    return "apply", spec


START_AGAIN = apply("1000,1.0,start")
HAPPENINGS: dict[str, list[tuple[Any, ...]]] = {
    "stop and start": [apply("1000,1.0,stop"), ("grab", 1), ("wait", 3), START_AGAIN],
    "pauses": [("pause", 60), ("grab", 1), ("wait", 3), ("resume",), ("grab", 1), ("pause", 0.002), ("grab", 1), ("wait", 5)],
    "another ratio": [apply("1000,1.2,start"), ("grab", 2), ("wait", 7), ("grab", 2), START_AGAIN],
    "close and reopen": [("aclose",), ("grab", 1), START_AGAIN],
    "quota and its end": [("observe", Feedback(200, quotas=(Quota("requests", 100, 3, 0.05),))), ("wait", 20), ("grab",), ("wait", 40)],
    "waiter that goes on": [("ask",), ("grab", 1), ("wait", 1), ("grab", 1), ("wait", 0), ("asked",), ("cancel",), ("wait", 0)],
    # The waiter is granted 25 ms late, others grab beside it, and it is cancelled before it goes on.
    "grant that comes back": [
        ("ask",),
        ("move", 25),
        ("tries", 3),
        ("cancel",),
        ("tries", 3),
        ("wait", 0),
        ("asked",),
        ("tries", 30),
        ("wait", 1),
    ],
    # Those that come right after a late wake-up are booked from before it; nobody is later.
    "late wake-up": [("ask",), ("wait", 12), ("asked",), ("cancel",), ("grab", 3, 0), ("wait", 1), ("grab", 8, 0), ("wait", 1)],
    "clock that goes back": [("move", -2), ("grab", 2), ("move", -4000), ("grab", 2), ("wait", 4000)],
    "changes": [
        step for change in (("charge", 30), ("refund", 3), ("try_most",), ("reset",), ("slower",)) for step in (change, ("grab", 3))
    ],
    "refusal at once": [("refused_at_once",)],
}
# A list has two rates, and takes no spec.
PAIRS = [(kind, name) for kind in KINDS for name, steps in HAPPENINGS.items() if kind != "two" or START_AGAIN not in steps]


async def told(kind: str, happening: str, machine: Machine, shut: bool) -> list[Any]:
    story = Story(kind, machine, shut, max_waiting=1 if happening == "quota and its end" else None)
    await story.play(
        ("grab", 1), ("wait", 40), ("grab", 2), *HAPPENINGS[happening], ("grab",), ("look",), ("wait", 13), ("grab", 15), ("look",)
    )
    return story.outcomes


@pytest.mark.asyncio
@pytest.mark.usefixtures("each_meter")
async def test_a_limiter_goes_on_as_with_a_shut_meter(machine: Machine) -> None:
    """The same outcomes and statistics, whatever happens in the middle of a stretch of grabs."""
    for kind, happening in random.Random(1).sample(PAIRS, 60):
        expected = await told(kind, happening, machine, shut=True)
        assert expected == await told(kind, happening, machine, shut=False), (kind, happening)


@pytest.mark.asyncio
async def test_a_clock_below_zero_opens_no_shut_meter() -> None:
    """A shut meter is marked with 0, which is later than any such reading: it passes no line, and nothing of a closed limiter."""
    clock = ManualClock(0)
    clock.set(-100 * SECOND)
    limiter = Limiter(TokenBucket("1/s", burst=10), clock=clock)
    assert limiter.try_acquire()
    large = asyncio.ensure_future(limiter.acquire(10))
    await turns(3)
    assert not limiter.try_acquire()

    await limiter.aclose()
    with pytest.raises(aiorate.LimiterClosed):
        limiter.try_acquire()
    await asyncio.gather(large, return_exceptions=True)


async def opened(limiter: Limiter) -> Limiter:
    """The limiter after five permits, some of them from the meter."""
    for _ in range(5):
        assert await at_once(limiter)
    return limiter


@pytest.mark.asyncio
async def test_a_take_that_users_wrote_sees_every_permit(machine: Machine) -> None:
    """That of a subclass, or one in place of the method, which calls it."""

    class Mine(TokenBucket):
        def take(self, permits: int, now: int, since: int | None = None) -> int:
            asked.append(permits)
            return super().take(permits, now, since)

    def replaced(permits: int, now: int, since: int | None = None) -> int:
        asked.append(permits)
        return take(permits, now, since)

    mended = type("Mended", (TokenBucket,), {})("1000/s", burst=20)
    take, mended.take = mended.take, replaced
    for scheduler in (Mine("1000/s", burst=20), mended):
        asked: list[int] = []
        limiter = Limiter(scheduler)
        machine.instant += SECOND
        await turns(3)
        await opened(limiter)
        assert len(asked) >= 5


@pytest.mark.asyncio
@pytest.mark.usefixtures("each_meter")
async def test_what_128_bits_do_not_hold_is_left_to_the_scheduler(machine: Machine) -> None:
    table: list[tuple[Callable[[], aiorate.Scheduler], int]] = [
        (lambda: TokenBucket(Rate(10**9), burst=10**40), 10**60),
        (lambda: TokenBucket(Rate(10**300), burst=10**40), 10**30),
        (lambda: TokenBucket("10/s", burst=5), 10**60),
        (lambda: TicksAccumulator("10/s", start=-(10**50)), 10**60),
        (lambda: TokenPool("10/s", pool=10**45, start=-(10**50)), 10**60),
    ]
    for row, (make, charge) in enumerate(table):
        limiter, model = Limiter(make()), make()
        for permits in (0, charge):
            if permits:
                limiter.charge(permits)
                model.charge(permits, machine.instant)
            for _ in range(5):
                assert (model.take(1, machine.instant) <= machine.instant) is await at_once(limiter), row
        limiter.reset()
        assert limiter.try_acquire(), row


@pytest.mark.asyncio
async def test_a_shared_limit_that_is_joined_later_shuts_the_meter(machine: Machine) -> None:
    limiter = await opened(Limiter(TokenBucket("10/s", burst=20)))
    shared = Limiter(TokenBucket("10/s", burst=3))
    keyed = aiorate.KeyedLimiter[str](lambda key: limiter, shared=shared)["key"]

    assert [True, True, True, False] == [keyed.try_acquire() for _ in range(4)]
    assert (8, 3) == (limiter.statistics().granted, shared.statistics().granted)
