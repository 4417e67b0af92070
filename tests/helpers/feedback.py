"""Feedback of a server, and tasks that wait for a limiter which observes it."""

from __future__ import annotations

from typing import Any

from aiorate import Limiter, Scheduler, TokenBucket
from aiorate.http import Feedback, Quota
from aiorate.testing import ManualClock
from helpers.driving import SECOND, Crowd, turns


def said(*quotas: Quota, pause: float | None = None) -> Feedback:
    """A response with these quotas: a 429 if it has a pause (s), else a 200."""
    return Feedback(429 if pause else 200, pause, quotas, "a test")


def remaining(permits: int, seconds: float, **more: Any) -> Feedback:
    """A response with one quota: ``permits`` remain for ``seconds``."""
    return said(Quota(remaining=permits, reset=seconds, **more))


def crowd_of(scheduler: Scheduler | None = None, **options: Any) -> Crowd:
    clock = ManualClock()
    return Crowd(Limiter(TokenBucket("10/s", burst=10) if scheduler is None else scheduler, clock=clock, **options), clock)


def seconds(crowd: Crowd) -> list[float]:
    """The instants of the grants, in seconds."""
    return [at / SECOND for at in crowd.granted.values()]


async def granted(*steps: tuple[Any, ...], scheduler: Scheduler | None = None) -> list[float]:
    """When requests are granted, in seconds.

    A step is a gap in seconds, and then the number of requests that ask, what a server says, or a method of the limiter and its arguments.
    """
    crowd, asked = crowd_of(scheduler), 0
    for gap, what, *arguments in steps:
        await crowd.clock.run(gap)
        if isinstance(what, int):
            await crowd.queue(range(asked, asked + what))
            asked += what
        elif isinstance(what, str):
            getattr(crowd.limiter, what)(*arguments)
        else:
            crowd.limiter.observe(what)
        await turns(3)
    await crowd.clock.run(2000)
    return seconds(crowd)
