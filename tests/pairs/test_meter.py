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
from aiorate.feedback import Feedback, Quota
from aiorate.rate import Rate
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
    """One limiter, what happens to it, and what came of it."""

    def __init__(self, kind: str, machine: Machine, shut: bool, **options: Any) -> None:
        machine.instant = START
        self.machine, self.clock = machine, ManualClock(START) if shut else None
        self.limiter = Limiter(KINDS[kind](), clock=self.clock, **options)
        self.outcomes: list[Any] = []

    def move(self, ns: int, grants: bool = True) -> None:
        self.machine.instant += ns
        if self.clock is not None:
            self.clock.set(self.machine.instant)
        if grants:
            self.limiter.statistics()  # grants what is due

    async def grab(self, times: int = 6, step: int = MS // 3) -> None:
        """Try and acquire, in either order in turn, with `step` ns in between."""
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

    async def pass_time(self, ns: int) -> None:
        self.move(ns)
        await turns(4)

    def drain(self) -> None:
        while self.limiter.try_acquire():
            pass

    async def waiter(self) -> asyncio.Task[float]:
        self.drain()
        waiter = asyncio.ensure_future(self.limiter.acquire())
        await turns(3)
        return waiter

    def look(self) -> None:
        limiter = self.limiter
        self.outcomes += [limiter.lag, limiter.delay(), limiter.delay(min(3, limiter.scheduler.max_permits or 3)), limiter.statistics()]


HAPPENINGS: dict[str, Callable[[Story], Awaitable[None]]] = {}


def happens(does: Callable[[Story], Awaitable[None]]) -> Callable[[Story], Awaitable[None]]:
    HAPPENINGS[does.__name__] = does
    return does


@happens
async def stop_and_start(story: Story) -> None:
    story.limiter.apply("1000,1.0,stop")
    await story.grab(1)
    await story.pass_time(3 * MS)
    story.limiter.apply("1000,1.0,start")


@happens
async def pauses(story: Story) -> None:
    story.limiter.pause(60)
    await story.grab(1)
    await story.pass_time(3 * MS)
    story.limiter.resume()
    await story.grab(1)
    story.limiter.pause(0.002)
    await story.grab(1)
    await story.pass_time(5 * MS)


@happens
async def another_ratio(story: Story) -> None:
    story.limiter.apply("1000,1.2,start")
    await story.grab(2)
    await story.pass_time(7 * MS)
    await story.grab(2)
    story.limiter.apply("1000,1.0,start")


@happens
async def close_and_reopen(story: Story) -> None:
    await story.limiter.aclose()
    await story.grab(1)
    story.limiter.apply("1000,1.0,start")


@happens
async def quota_and_its_end(story: Story) -> None:
    story.limiter.observe(Feedback(200, quotas=(Quota("requests", 100, 3, 0.05),)))
    await story.pass_time(20 * MS)
    await story.grab()
    await story.pass_time(40 * MS)


@happens
async def waiter_that_goes_on(story: Story) -> None:
    waiter = await story.waiter()
    await story.grab(1)
    await story.pass_time(1 * MS)
    await story.grab(1)
    await turns(4)
    story.outcomes.append(waiter.done())
    waiter.cancel()
    await turns(4)


@happens
async def grant_that_comes_back(story: Story) -> None:
    """The waiter is granted 25 ms late, others grab beside it, and it is cancelled before it goes on."""
    waiter = await story.waiter()
    story.move(25 * MS)
    story.outcomes += [story.limiter.try_acquire() for _ in range(3)]
    waiter.cancel()
    story.outcomes += [story.limiter.try_acquire() for _ in range(3)]
    await turns(4)
    story.outcomes += [waiter.cancelled(), *(story.limiter.try_acquire() for _ in range(30))]
    await story.pass_time(1 * MS)


@happens
async def late_wake_up(story: Story) -> None:
    """Those that come right after a late wake-up are booked from before it; nobody is later."""
    waiter = await story.waiter()
    await story.pass_time(12 * MS)
    story.outcomes.append(waiter.done())
    waiter.cancel()
    await story.grab(3, step=0)
    await story.pass_time(1 * MS)
    await story.grab(8, step=0)
    await story.pass_time(1 * MS)


@happens
async def clock_that_goes_back(story: Story) -> None:
    for ns in (-2 * MS, -4 * SECOND):
        story.move(ns)
        await story.grab(2)
    await story.pass_time(4 * SECOND)


@happens
async def changes(story: Story) -> None:
    limiter = story.limiter
    most = min(5, limiter.scheduler.max_permits or 5)
    for change in (
        lambda: limiter.charge(30),
        lambda: limiter.refund(3),
        lambda: limiter.try_acquire(most),
        limiter.reset,
        lambda: limiter.set_rate("400/s", member=0 if limiter.scheduler.members else None),
    ):
        change()
        await story.grab(3)


@happens
async def refusal_at_once(story: Story) -> None:
    for _ in range(25):
        try:
            story.outcomes.append(await story.limiter.acquire(max_wait=0))
        except aiorate.WaitTooLong as error:
            story.outcomes.append(str(error))


APPLYING = ("another_ratio", "close_and_reopen", "stop_and_start")
PAIRS = [(kind, happening) for kind in KINDS for happening in HAPPENINGS if kind != "two" or happening not in APPLYING]  # it has two rates


async def told(kind: str, happening: str, machine: Machine, shut: bool) -> list[Any]:
    story = Story(kind, machine, shut, max_waiting=1 if happening == "quota_and_its_end" else None)
    await story.grab(1)
    await story.pass_time(40 * MS)
    await story.grab(2)
    await HAPPENINGS[happening](story)
    await story.grab()
    story.look()
    await story.pass_time(13 * MS)
    await story.grab(15)
    story.look()
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


@pytest.mark.asyncio
@pytest.mark.usefixtures("every_clock")
async def test_an_open_shared_limit_makes_up_for_lateness() -> None:
    """A wake-up that is late for one limit is late for the one behind it, which nobody waits in and whose meter is open."""
    for depth in (2, 3):
        clock = ManualClock(SECOND)
        limiter = Limiter(BurstCompensation("10/s"), clock=clock)
        for _ in range(depth - 1):
            keyed = aiorate.KeyedLimiter[str](lambda key: Limiter(BurstCompensation("10/s"), clock=clock), shared=limiter)  # noqa: B023
            limiter = keyed["key"]
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(51)]

        for step in range(1, 5_000 // 15 + 2):  # wake-ups are up to 15 ms late
            await turns(6)
            clock.set(SECOND + step * 15 * MS)
        await turns(6)

        assert all(task.done() for task in tasks), depth


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
