"""To drive limiters by hand: a clock that moves from timer to timer, tasks that note their grants, single iterations of a loop."""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from aiorate import Limiter
from aiorate.testing import ManualClock
from helpers.platforms import KERNEL_TIMERS

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiorate

SECOND = 1_000_000_000
LONG = 120  # seconds: what has not happened by then never will, even on a slow machine

one_loop = pytest.mark.asyncio(loop_factories=["asyncio"])
"""For tests in which only a ManualClock passes time: they have the same result on any loop, so one is enough."""


class SteppedClock(ManualClock):
    """A ManualClock that can be moved to its next timer."""

    def __init__(self, start_ns: int = 0) -> None:
        super().__init__(start_ns)
        self._set: list[_Timer] = []

    def call_at(self, instant: int, callback: Callable[[], None]) -> Any:
        timer = _Timer(self._set, instant, callback)
        timer.handle = super().call_at(instant, timer)
        return timer

    @property
    def next_timer(self) -> int | None:
        """The instant of the next timer; None if there is none."""
        return min((timer.instant for timer in self._set), default=None)

    def fire(self) -> bool:
        """Fire the next timer, at its instant, before any task runs; False if there is none."""
        instant = self.next_timer
        if instant is not None:
            self.set(max(instant, self.now()))
        return instant is not None

    def forget(self) -> None:
        """Drop all timers, like the loop that they belonged to."""
        for timer in list(self._set):
            timer.cancel()


class _Timer:
    handle: Any

    def __init__(self, timers: list[_Timer], instant: int, callback: Callable[[], None]) -> None:
        self.timers, self.instant, self.callback = timers, instant, callback
        timers.append(self)

    def __call__(self) -> None:
        self.timers.remove(self)
        self.callback()

    def cancel(self) -> None:
        if self in self.timers:
            self.timers.remove(self)
        self.handle.cancel()


async def turns(count: int) -> None:
    """Let everything that is ready run, ``count`` times."""
    for _ in range(count):
        await asyncio.sleep(0)


class Crowd:
    """Tasks that each acquire once; ``granted`` has the instant of each grant, by name, in the order in which the tasks ran."""

    def __init__(self, limiter: aiorate.Limiter, clock: ManualClock) -> None:
        self.limiter = limiter
        self.clock = clock
        self.tasks: dict[Any, asyncio.Task[float]] = {}
        self.granted: dict[Any, int] = {}

    def ask(self, name: Any, permits: int = 1, **options: Any) -> asyncio.Task[float]:
        """Start a task that acquires."""
        self.tasks[name] = task = asyncio.ensure_future(self._one(name, permits, options))
        return task

    async def queue(self, names: Any, permits: int = 1) -> None:
        """Start a task for each name, and let them join the line in that order."""
        for name in names:
            self.ask(name, permits)
        await turns(3)

    @property
    def pending(self) -> list[Any]:
        """The names of tasks that have neither run nor been cancelled, in order of arrival."""
        return [name for name, task in self.tasks.items() if not task.done() and not task.cancelling()]

    async def _one(self, name: Any, permits: int, options: dict[str, Any]) -> float:
        waited = await self.limiter.acquire(permits, **options)
        self.granted[name] = self.clock.now()
        return waited


def crowd_of(scheduler: aiorate.Scheduler | str, **options: Any) -> Crowd:
    clock = SteppedClock()
    return Crowd(Limiter(scheduler, clock=clock, **options), clock)


def in_ms(crowd: Crowd) -> list[int]:
    return [at * 1000 // SECOND for at in crowd.granted.values()]


def others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


def alive(*kinds: type) -> int:
    """The number of objects of exactly these classes."""
    gc.collect()
    return sum(type(each) in kinds for each in gc.get_objects())


def descriptors() -> int:
    gc.collect()
    return _open_descriptors()


def _open_descriptors() -> int:
    if not KERNEL_TIMERS:
        return 0
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of this listing
            count += "timerfd" in os.readlink(f"/proc/self/fd/{fd}")
    return count


async def until(reached: Callable[[], object]) -> None:
    """Return when ``reached()`` is true; TimeoutError if it never is. In real time a slow machine allows no other assumption."""
    async with asyncio.timeout(LONG):
        while not reached():
            await asyncio.sleep(0.001)


async def all_closed() -> None:
    """Return when all kernel timers are closed."""
    await until(lambda: not _open_descriptors())


async def made_to_wait(limiter: aiorate.Limiter) -> None:
    """Make a request that has to wait, even on a slow machine, and return when it is granted."""
    rate = limiter.rate
    limiter.set_rate("1/h")
    while limiter.try_acquire():
        pass
    task = asyncio.ensure_future(limiter.acquire())
    await turns(3)
    assert not task.done()
    limiter.set_rate(rate)
    await task
