"""The subjects of the benchmarks: the strategies of aiorate, and the floors, below which no cost can be. `peers` has the others.

``make(rate, burst)`` makes a limiter for a rate per second and a number of permits at once. It is called inside a running loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import aiorate

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

__all__ = ["AIORATE", "FLOORS", "BareFutures", "Calls", "Subject", "closed", "few", "limited", "rate_of"]


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a limiter; None: it has no such call."""

    acquire: Callable[[], Awaitable[object]] | None = None  # waits for one permit
    context: AbstractAsyncContextManager[object] | None = None  # waits for one permit in each ``async with``
    attempt: Callable[[], object] | None = None  # takes one permit or none, and never waits
    attempt_async: Callable[[], Awaitable[object]] | None = None  # the same, awaited
    close: Callable[[], object] | None = None  # stops threads and timers; may return an awaitable
    limiter: object = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A limiter to measure."""

    name: str
    family: str  # "aiorate", "peer" or "floor"
    distribution: str  # the one whose version is reported
    make: Callable[[float, int], Calls]

    async def close(self, calls: Calls) -> None:
        """Stop the threads and timers of its limiter."""
        await closed(calls)


async def closed(calls: Calls) -> None:
    """Stop the threads and timers behind the calls."""
    left = calls.close() if calls.close else None
    if isinstance(left, Awaitable):
        await left


def rate_of(rate: float) -> aiorate.Rate:
    """The exact rate behind a float: 66.66666666666667 is 200 per 3 s."""
    return aiorate.Rate(Fraction(rate).limit_denominator(1_000_000))


def few(rate: float, burst: int) -> bool:
    """Whether the burst is at most 10 ms worth of permits, as in the scenarios with a load."""
    return burst <= max(1.0, rate / 100)


def limited(scheduler: aiorate.Scheduler, *, precise: bool = False) -> Calls:
    """The calls of a limiter."""
    limiter = aiorate.Limiter(scheduler, precise=precise)
    return Calls(limiter.acquire, limiter, limiter.try_acquire, limiter=limiter)


def _past(rate: float, burst: int) -> int | None:
    """An instant since which that many permits are earned; None: the first call begins the schedule."""
    return None if burst == 1 else time.monotonic_ns() - round(burst / rate * 1e9)


def _pool(rate: float, burst: int) -> aiorate.Scheduler:
    if few(rate, burst):
        return aiorate.TokenPool(rate_of(rate))
    return aiorate.TokenPool(rate_of(rate), pool=round(burst / rate * 1e9), start=_past(rate, burst))


def _window(rate: float, burst: int) -> aiorate.Scheduler:
    return aiorate.SlidingWindow(aiorate.Rate(burst, burst / Fraction(rate).limit_denominator(1_000_000)))


STRATEGIES: dict[str, Callable[[float, int], aiorate.Scheduler]] = {
    "TokenPool": _pool,
    "TokenBucket": lambda rate, burst: aiorate.TokenBucket(rate_of(rate), burst),
    "BurstCompensation": lambda rate, burst: aiorate.BurstCompensation(rate_of(rate), 1.0),
    "TicksAccumulator": lambda rate, burst: aiorate.TicksAccumulator(rate_of(rate), start=_past(rate, burst)),
    "SlidingWindow": _window,
    "SmoothBursty": lambda rate, burst: aiorate.SmoothBursty(rate_of(rate), max_stored=burst, start=_past(rate, burst)),
}


def of_aiorate(name: str, *, precise: bool = False) -> Subject:
    """A strategy by its name, with the kernel's timer or with the loop's."""
    strategy = STRATEGIES[name]
    label = f"aiorate {name}, precise" if precise else f"aiorate {name}"
    return Subject(label, "aiorate", "aiorate", lambda rate, burst: limited(strategy(rate, burst), precise=precise))


AIORATE: tuple[Subject, ...] = tuple(of_aiorate(name) for name in STRATEGIES)


class BareFutures:
    """A future for each waiter and nothing else: the least cost of waiting."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    async def acquire(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        await future

    def let_go(self, begin: int = 0, end: int | None = None) -> None:
        """Resolve the futures from one place of the line up to another."""
        for future in self.waiting[begin:end]:
            if not future.done():
                future.set_result(None)


class _EmptyContext:
    __slots__ = ()

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *error: object) -> None:
        return None


async def _empty() -> None:
    return None


async def _clock() -> int:
    return time.monotonic_ns()


def _plain() -> None:
    return None


def _bare(rate: float, burst: int) -> Calls:
    futures = BareFutures()
    return Calls(futures.acquire, limiter=futures)


# The ratios of a table are to the first floor that has a figure in the column.
FLOORS: tuple[Subject, ...] = (
    Subject("floor: empty coroutine", "floor", "", lambda rate, burst: Calls(_empty)),
    Subject("floor: empty coroutine + clock", "floor", "", lambda rate, burst: Calls(_clock)),
    Subject("floor: empty async with", "floor", "", lambda rate, burst: Calls(context=_EmptyContext())),
    Subject("floor: plain call", "floor", "", lambda rate, burst: Calls(attempt=_plain)),
    Subject("floor: bare future", "floor", "", _bare),
)
