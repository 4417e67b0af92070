"""The demo's clients: they send requests for some seconds, half of them through httpx2 and half through aiohttp.

Both halves share one limiter, or have none. Every wait is noted, and the instant of every grant as the limiter saw it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx2

from aiorate import Limiter, LimiterClosed
from aiorate.aiohttp import middleware
from aiorate.http import hooks
from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiorate.schedulers.interface import Scheduler

__all__ = ["Load", "WatchedLimiter", "noting", "run_load"]


@dataclass(slots=True)
class Load:
    """The clients' results."""

    seconds: float
    began: int = 0
    """The instant (ns) at which the clients started."""
    answered: dict[str, int] = field(default_factory=lambda: {"httpx2": 0, "aiohttp": 0})
    """Answers by client."""
    errors: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of answers."""
        return sum(self.answered.values())


class WatchedLimiter(Limiter):
    """A limiter that remembers every wait (seconds) and the instant (ns) of every grant."""

    __slots__ = ("grants", "waits")

    def __init__(self, scheduler: Scheduler) -> None:
        self.waits: list[float] = []
        self.grants: list[int] = []
        super().__init__(noting(scheduler, self.grants))

    async def acquire(self, permits: int = 1, **options: Any) -> float:
        """As `Limiter.acquire`, and note the wait."""
        waited = await super().acquire(permits, **options)
        self.waits.append(waited)
        return waited

    def bound_ns(self, window: int) -> int | None:
        """The guarantee for a window of whole nanoseconds, exactly."""
        return self.bound(Fraction(window, NS_PER_SECOND))


def noting(scheduler: Scheduler, grants: list[int]) -> Scheduler:
    """The same scheduler, which from now on adds the instant of every grant to the list.

    The instant is the limiter's, not that of the return of `acquire`: the event loop lies between the two and may close up gaps.
    """
    kind = type(scheduler)

    def take(self: Scheduler, permits: int, now: int, since: int | None = None) -> int:
        at = kind.take(self, permits, now, since)
        if at <= now and self is scheduler:  # and not a copy, on which the limiter estimates waits
            grants.extend([now] * permits)
        return at

    def give_back(self: Scheduler, permits: int, now: int, taken: int | None = None) -> None:
        kind.give_back(self, permits, now, taken)
        if self is scheduler:
            end = len(grants) if taken is None else bisect_right(grants, taken)
            del grants[max(0, end - permits) : end]

    # A subclass that adds no slots has the same layout, so the object keeps its state and stays an instance of its class.
    scheduler.__class__ = type(kind.__name__, (kind,), {"__slots__": (), "take": take, "give_back": give_back})
    return scheduler


async def run_load(url: str, load: Load, clients: int, limiter: Limiter | None = None) -> None:
    """Keep ``clients`` busy for ``load.seconds``. Then requests in line end with LimiterClosed, and requests under way finish."""
    async with (
        httpx2.AsyncClient(event_hooks=hooks(limiter) if limiter else None, trust_env=False, timeout=60) as httpx_client,
        aiohttp.ClientSession(middlewares=[middleware(limiter)] if limiter else [], connector=aiohttp.TCPConnector(limit=0)) as session,
    ):

        async def by_httpx() -> None:
            (await httpx_client.get(url)).raise_for_status()

        async def by_aiohttp() -> None:
            async with session.get(url) as response:
                response.raise_for_status()
                await response.read()

        load.began = monotonic_ns()
        end = load.began + round(load.seconds * NS_PER_SECOND)
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                name, send = ("aiohttp", by_aiohttp) if number % 2 else ("httpx2", by_httpx)
                group.create_task(_client(load, name, send, end))
            if limiter is not None:
                await asyncio.sleep(load.seconds)
                await limiter.aclose()


async def _client(load: Load, name: str, send: Callable[[], Awaitable[None]], end: int) -> None:
    while monotonic_ns() < end:
        try:
            await send()
        except LimiterClosed:
            return
        except (httpx2.HTTPError, aiohttp.ClientError, OSError) as error:
            load.errors.append(f"{name}: {error!r}")
            return
        load.answered[name] += 1
