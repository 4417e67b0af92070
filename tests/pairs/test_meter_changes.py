"""Whatever happens to a limiter in the middle of a stretch of grabs: it goes on as it would with a shut meter, to the last figure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from helpers.driving import SECOND, turns
from helpers.meters import Machine, at_once

import aiorate
from aiorate.feedback import Feedback, Quota

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("each_meter")]
MS = SECOND // 1000
START = 1000 * SECOND

KINDS: dict[str, Callable[[], aiorate.Scheduler]] = {
    "bucket": lambda: aiorate.TokenBucket("1000/s", burst=20),
    "bucket of one": lambda: aiorate.TokenBucket("1000/s", burst=1),
    "pool": lambda: aiorate.TokenPool("1000/s"),
    "large pool": lambda: aiorate.TokenPool("1000/s", pool=30 * MS),
    "pool that catches up": lambda: aiorate.TokenPool("1000/s", 1.5, pool=30 * MS),
    "ticks": lambda: aiorate.TicksAccumulator("1000/s"),
    "strict": lambda: aiorate.BurstCompensation("1000/s"),
    "half strict": lambda: aiorate.BurstCompensation("1000/s", 0.5),
    "ratio": lambda: aiorate.BurstRatio("1000/s", 1.5),
    "window": lambda: aiorate.SlidingWindow("20/s"),
    "two": lambda: aiorate.AllOf(aiorate.TokenBucket("1000/s", burst=20), aiorate.TokenPool("700/s", pool=30 * MS)),
}


class Story:
    """One limiter, what happens to it, and what came of it."""

    def __init__(self, limiter: aiorate.Limiter, machine: Machine, shut: bool) -> None:
        self.limiter, self.machine, self.shut = limiter, machine, shut
        self.outcomes: list[Any] = []

    def ready(self) -> aiorate.Limiter:
        """The limiter, whose next call asks the dispatcher if the meter has to be shut."""
        if self.shut:
            self.limiter._dispatcher.meter.until = self.limiter._dispatcher.meter.try_until = 0
        return self.limiter

    async def grab(self, times: int = 6, step: int = MS // 3) -> None:
        """Try and acquire, in either order in turn, with `step` ns in between."""
        for k in range(times):
            self.machine.instant += step
            try:
                if k % 2:
                    self.outcomes.append(self.ready().try_acquire())
                self.outcomes.append(await at_once(self.ready()))
                if not k % 2:
                    self.outcomes.append(self.ready().try_acquire())
            except (aiorate.LimiterClosed, aiorate.LineFull) as error:
                self.outcomes.append(type(error))

    async def pass_time(self, ns: int) -> None:
        self.machine.instant += ns
        self.ready()
        await turns(4)

    def look(self) -> None:
        scheduler = self.ready().scheduler
        now = self.machine.instant - self.limiter._dispatcher.timeline.offset
        pool = [scheduler.active, scheduler.waiting] if isinstance(scheduler, aiorate.TokenPool) else []
        ticks = scheduler.ticks if isinstance(scheduler, aiorate.TicksAccumulator | aiorate.BurstCompensation) else None
        self.outcomes += [pool, ticks, scheduler.spilled, scheduler.stock(now), scheduler.lag(now), scheduler.peek(1, now)]
        self.outcomes += [repr(self.limiter.statistics())]


async def stop_and_start(story: Story) -> None:
    story.limiter.apply("1000,1.0,stop")
    await story.grab(1)
    await story.pass_time(3 * MS)
    story.ready().apply("1000,1.0,start")


async def pause_and_resume(story: Story) -> None:
    story.limiter.pause(60)
    await story.grab(1)
    await story.pass_time(3 * MS)
    story.ready().resume()


async def pause_that_ends(story: Story) -> None:
    story.limiter.pause(0.002)
    await story.grab(1)
    await story.pass_time(5 * MS)


async def change_the_ratio_and_back(story: Story) -> None:
    story.limiter.apply("1000,1.2,start")
    await story.grab(2)
    await story.pass_time(7 * MS)
    await story.grab(2)
    story.ready().apply("1000,1.0,start")


async def close_and_reopen(story: Story) -> None:
    await story.limiter.aclose()
    await story.grab(1)
    story.ready().apply("1000,1.0,start")


async def quota_and_its_end(story: Story) -> None:
    story.limiter.observe(Feedback(200, quotas=(Quota("requests", 100, 3, 0.05),)))
    await story.pass_time(20 * MS)
    await story.grab()
    await story.pass_time(40 * MS)


async def waiter_that_goes_on(story: Story) -> None:
    while story.ready().try_acquire():
        pass
    waiter = asyncio.ensure_future(story.ready().acquire())
    await turns(3)
    await story.grab(1)
    await story.pass_time(1 * MS)
    story.ready().statistics()
    await story.grab(1)
    await turns(4)
    story.outcomes.append(waiter.done())
    waiter.cancel()
    await turns(4)


async def grant_that_comes_back(story: Story) -> None:
    """The waiter is granted 25 ms late, others grab beside it, and it is cancelled before it goes on."""
    while story.ready().try_acquire():
        pass
    waiter = asyncio.ensure_future(story.ready().acquire())
    await turns(3)
    story.machine.instant += 25 * MS
    story.ready().statistics()
    story.outcomes += [story.ready().try_acquire() for _ in range(3)]
    waiter.cancel()
    story.outcomes += [story.ready().try_acquire() for _ in range(3)]
    await turns(4)
    story.outcomes.append(waiter.cancelled())
    scheduler = story.ready().scheduler
    assert not isinstance(scheduler, aiorate.TokenPool) or scheduler.active >= 0
    story.outcomes += [story.ready().try_acquire() for _ in range(30)]
    await story.pass_time(1 * MS)
    story.ready().try_acquire()


async def late_wake_up(story: Story) -> None:
    """Those that come right after a late wake-up are booked from before it; nobody is later."""
    while story.ready().try_acquire():
        pass
    waiter = asyncio.ensure_future(story.ready().acquire())
    await turns(3)
    story.machine.instant += 12 * MS
    story.ready().statistics()
    await turns(4)
    story.outcomes.append(waiter.done())
    waiter.cancel()
    await story.grab(3, step=0)
    await story.pass_time(1 * MS)
    await story.grab(8, step=0)
    await story.pass_time(1 * MS)


async def clock_that_goes_back(story: Story) -> None:
    story.machine.instant -= 2 * MS
    await story.grab(2)
    story.machine.instant -= 4 * SECOND
    await story.grab(2)
    await story.pass_time(4 * SECOND)


async def refusal_at_once(story: Story) -> None:
    for _ in range(25):
        try:
            story.outcomes.append(await story.ready().acquire(max_wait=0))
        except aiorate.WaitTooLong as error:
            story.outcomes.append(str(error))


def simple(call: Callable[[aiorate.Limiter], object]) -> Callable[[Story], Awaitable[None]]:
    async def happen(story: Story) -> None:
        call(story.ready())

    return happen


HAPPENINGS: dict[str, Callable[[Story], Awaitable[None]]] = {
    "set_rate": simple(lambda limiter: limiter.set_rate("400/s", member=0 if limiter.scheduler.members else None)),
    "charge": simple(lambda limiter: limiter.charge(30)),
    "refund": simple(lambda limiter: limiter.refund(3)),
    "reset": simple(lambda limiter: limiter.reset()),
    "restart": simple(lambda limiter: limiter.apply("1000,1.0,restart")),
    "delay": simple(lambda limiter: limiter.delay()),
    "more": simple(lambda limiter: limiter.try_acquire(min(5, limiter.scheduler.max_permits or 5))),
    "change the ratio and back": change_the_ratio_and_back,
    "clock that goes back": clock_that_goes_back,
    "close and reopen": close_and_reopen,
    "grant that comes back": grant_that_comes_back,
    "late wake-up": late_wake_up,
    "pause and resume": pause_and_resume,
    "pause that ends": pause_that_ends,
    "quota and its end": quota_and_its_end,
    "refusal at once": refusal_at_once,
    "stop and start": stop_and_start,
    "waiter that goes on": waiter_that_goes_on,
}


APPLYING = ("change the ratio and back", "close and reopen", "restart", "stop and start")
PAIRS = [(kind, happening) for kind in KINDS for happening in HAPPENINGS if kind != "two" or happening not in APPLYING]  # it has two rates


async def tell(kind: str, happening: str, machine: Machine, shut: bool) -> tuple[list[Any], int]:
    """What came of it all, and the number of grabs."""
    machine.instant = START
    limiter = aiorate.Limiter(KINDS[kind](), max_waiting=1 if happening == "quota and its end" else None)
    story = Story(limiter, machine, shut)
    await story.grab(1)
    await story.pass_time(40 * MS)
    await story.grab(2)
    await HAPPENINGS[happening](story)
    await story.grab()
    story.look()
    await story.pass_time(13 * MS)
    await story.grab(15)
    story.look()
    return story.outcomes, limiter._dispatcher.meter.grabs


@pytest.mark.parametrize(("kind", "happening"), PAIRS)
async def test_a_limiter_goes_on_as_with_a_shut_meter(kind: str, happening: str, machine: Machine) -> None:
    """The same outcomes, statistics and figures of the scheduler."""
    shut, none = await tell(kind, happening, machine, shut=True)
    opened, grabs = await tell(kind, happening, machine, shut=False)

    assert shut == opened
    assert none == 0 < grabs
