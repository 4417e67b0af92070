"""The public names as type checkers see them. Checked by mypy and pyright, and never run.

A line that ignores an error is a mistake that both must report: mypy is strict, and pyright is told here, to complain of a comment that
ignores nothing.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, assert_type

import aiohttp
import httpx
import httpx2

from aiorate import (
    AllOf,
    Budget,
    BurstCompensation,
    BurstRatio,
    CalendarWindow,
    Clock,
    KeyedBudget,
    KeyedLimiter,
    Lease,
    Limiter,
    Rate,
    RateSpec,
    Scheduler,
    SlidingWindow,
    Slot,
    SmoothBursty,
    SmoothWarmingUp,
    Statistics,
    TicksAccumulator,
    TokenBucket,
    TokenPool,
    Waited,
    WaitTooLong,
)
from aiorate.adaptive import AdaptiveRate
from aiorate.aiohttp import middleware
from aiorate.asgi import RateLimitMiddleware, client_address
from aiorate.http import Feedback, blocking_hooks, hooks, limit_transport
from aiorate.otel import instrument
from aiorate.redis import RedisBudget, RedisLimiter
from aiorate.testing import ManualClock, VirtualLoop, check_scheduler, reset_limiters, simulate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, MutableMapping

    from fastapi import FastAPI
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

# Every strategy is a Scheduler, and a ManualClock is a Clock.
strategies: list[Scheduler] = [
    TokenPool("10/s", burst_ratio=1.5),
    TicksAccumulator(10),
    BurstCompensation(Rate(10), strictness=0.5),
    BurstRatio(10.5, ratio=Fraction(3, 2)),
    SmoothBursty("10/s", max_stored=3),
    SmoothWarmingUp("10/s", warmup=Decimal("0.5")),
    TokenBucket("10/s", burst=5, initial=0),
    SlidingWindow(Rate(100, timedelta(minutes=1))),
    CalendarWindow("10000/day", "UTC"),
    CalendarWindow("10000/month", "UTC"),
    AllOf(TokenBucket("10/s", burst=5), SlidingWindow("100/min")),
]
clock: Clock = ManualClock()
limiter = Limiter("100/s", catch_up=0, max_waiting=5, precise=False, clock=clock, name="typed")
Limiter("1/s", catch_up=timedelta(milliseconds=5))
limiter.bound(timedelta(minutes=1))
limiter.pause(timedelta(seconds=1))
limiter.pause("1s")  # type: ignore[arg-type]  # seconds or a timedelta
KeyedLimiter[str](lambda key: "1/s", idle=timedelta(minutes=5))
ManualClock().advance(timedelta(seconds=1))
SmoothWarmingUp("1/s", warmup=timedelta(seconds=3))
assert_type(Feedback(429, pause=timedelta(seconds=1)).pause, float | None)
for strategy in strategies:
    assert_type(Limiter(strategy), Limiter)
assert_type(Limiter(["10/s", 500, Rate(5), TokenBucket("500/min", burst=10)]), Limiter)
assert_type(Limiter(("10/s", SlidingWindow("500/min")), scope="process"), Limiter)
assert_type(Limiter([TokenBucket("10/s", burst=5), SlidingWindow("100/min")]), Limiter)
Limiter([limiter, limiter])  # type: ignore[list-item]  # rates and strategies
Limiter({"10/s", "500/min"})  # type: ignore[arg-type]  # a set has no order for member=
Limiter()  # type: ignore[call-arg]  # a rate is missing
Limiter(100, 60)  # type: ignore[call-arg]  # Rate(100, 60) is meant
Limiter("10/s", burst=5)  # type: ignore[call-arg]  # a burst belongs to a strategy
Limiter(TokenBucket)  # type: ignore[arg-type]  # a class has no rate yet


class EveryOther(Scheduler):
    """A custom strategy: the rest of the interface has defaults."""

    def __init__(self, inner: Scheduler) -> None:
        self.inner = inner
        self.rate = inner.rate

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        """Take twice the permits of the inner one."""
        return self.inner.take(2 * permits, now, since)

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        """As `take`."""
        return self.inner.peek(2 * permits, now, 2 * ahead)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """As `take`."""
        self.inner.give_back(2 * permits, now, taken)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Set the rate of the inner one."""
        self.inner.set_rate(rate, now)

    def lag(self, now: int) -> int:
        """Return that of the inner one."""
        return self.inner.lag(now)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """Return half of the inner one's."""
        inner = self.inner.bound(window, 2 * largest)
        return None if inner is None else inner // 2


assert_type(Limiter(EveryOther(TokenPool(10))).scheduler, Scheduler)


@limiter
async def fetch(number: int, *, text: str = "") -> bytes:
    """A decorated coroutine function keeps its signature."""
    return bytes(number) + text.encode()


@limiter.of(5)
async def walk(number: int) -> AsyncIterator[str]:
    """So does an async generator function."""
    yield str(number)


kept: Callable[[int], Coroutine[Any, Any, bytes]] = fetch


# What keys share may be a function of the key.
teams = KeyedLimiter[int](lambda team: "10/s", shared=limiter)
users = KeyedLimiter[str](lambda user: TokenBucket("1/s", burst=5), shared=lambda user: teams[len(user)])
by_name = KeyedLimiter[str](lambda user: assert_type(user, str), weight=lambda user: len(assert_type(user, str)))
assert_type(by_name, KeyedLimiter[str])
declared: KeyedLimiter[str] = KeyedLimiter(lambda user: assert_type(user, str), shared=lambda user: by_name[assert_type(user, str)])
declared_budgets: KeyedBudget[int] = KeyedBudget(lambda team: Budget(requests=assert_type(team, int)))
some = KeyedLimiter[str](lambda user: 5, shared=lambda user: users[user] if user else None)
KeyedLimiter[str](lambda user: "1/s", shared=lambda user: "5/s")  # type: ignore[arg-type, return-value]
assert_type(users["ann"], Limiter)
listed = KeyedLimiter[str](lambda user: ["1/s", TokenBucket("10/min", burst=5)], shared=["10/s", "500/min"])
company = Budget(tokens=["1000/s", "20_000/min"], requests="5/s")
budgets = KeyedBudget[int](lambda team: Budget(requests="1/s", tokens=TokenBucket(5, 5), shared=company), shared=None)
people = KeyedBudget[str](lambda user: Budget(requests="1/s"), shared=lambda user: budgets[len(user)] if user else None)
KeyedBudget[str](lambda user: Budget(requests=assert_type(user, str)))
KeyedBudget[str](lambda user: "1/s")  # type: ignore[arg-type, return-value]
assert_type(people["ann"], Budget)
assert_type(people.reserve("ann", tokens=5, max_wait=1, on_error="refund"), Lease)
assert_type(people.shared, Budget | None)


async def asking() -> None:
    """Calls that wait, and what they return."""
    assert_type(await limiter.acquire(3, max_wait=0.5), float)
    assert_type(limiter.try_acquire(), bool)
    async with limiter as waited:
        assert_type(waited, float)
    async with limiter.of(3) as waited:
        assert_type(waited, float)
    async for slot in limiter.slots():
        assert_type(slot, Slot)
        assert_type(slot.lag, float)
    assert_type(await fetch(1, text="x"), bytes)
    async for piece in walk(3):
        assert_type(piece, str)
    try:
        await limiter.acquire()
    except WaitTooLong as error:
        assert_type(error.wait, float)
    await limiter.aclose()


def steering() -> None:
    """Calls that change a limiter or look at it."""
    limiter.set_rate("5/s")
    limiter.set_rate(Rate(5), member=0)
    limiter.reset()
    limiter.pause(0.5)
    limiter.resume()
    limiter.refund(1)
    limiter.charge(1)
    limiter.apply("12000,1.1,start")
    limiter.apply(RateSpec.parse("12000"))
    assert_type(limiter.rate, Rate)
    assert_type(limiter.lag, float)
    assert_type(limiter.delay(5), float)
    assert_type(limiter.bound(60, largest=2), int | None)
    assert_type(limiter.statistics(), Statistics)
    assert_type(limiter.statistics().paused_until, float | None)
    assert_type(Rate.parse("3/250ms").permits, int)


def helpers() -> None:
    """Names for tests."""
    assert_type(simulate(TokenPool("10/s"), [0, (0, 3)]), list[int])
    assert_type(VirtualLoop().time(), float)
    check_scheduler(lambda: TokenBucket("10/s", burst=2), examples=10)


async def clients() -> None:
    """Arguments of HTTP clients, and their results."""
    per_host = {"https://api.example.com:443": limiter}
    # A transport of the same package, but not of the same class.
    assert_type(limit_transport(httpx2.AsyncHTTPTransport(), limiter), httpx2.AsyncBaseTransport)
    assert_type(limit_transport(httpx.AsyncHTTPTransport(), per_host), httpx.AsyncBaseTransport)
    assert_type(
        limit_transport(limit_transport(httpx2.MockTransport(lambda request: httpx2.Response(200)), limiter), limiter),
        httpx2.AsyncBaseTransport,
    )
    async with httpx2.AsyncClient(transport=limit_transport(httpx2.AsyncHTTPTransport(), limiter)):
        pass
    async with httpx.AsyncClient(
        transport=limit_transport(httpx.AsyncHTTPTransport(), limiter, key=None, cost=lambda request: 2, max_wait=2)
    ):
        pass
    assert_type(limit_transport(httpx2.HTTPTransport(), limiter), httpx2.BaseTransport)
    with httpx.Client(transport=limit_transport(httpx.HTTPTransport(), limiter)), httpx2.Client(event_hooks=blocking_hooks(limiter)):
        pass
    limit_transport(httpx2.AsyncClient(), limiter)  # type: ignore[type-var]
    async with httpx2.AsyncClient(event_hooks=hooks(limiter, cost=lambda request: len(request.url.path))):
        pass
    async with httpx.AsyncClient(event_hooks=hooks(per_host, key=str, max_wait=0.5)):
        pass
    async with aiohttp.ClientSession(middlewares=[middleware(limiter, cost=lambda request: 1 if request.method == "GET" else 5)]):
        pass


def across_threads() -> None:
    limiter = Limiter("10/s", scope="process")
    assert_type(limiter, Limiter)
    assert_type(limiter.acquire_blocking(2, max_wait=1.5), float)
    with limiter as waited, limiter.of(5) as waited_too:
        assert_type((waited, waited_too), tuple[float, float])

    keyed = KeyedLimiter[str](lambda key: "1/s", scope="process")
    assert_type(keyed.acquire_blocking("a", 2, max_wait=1), float)
    with keyed("a") as of_key, Budget(requests="1/s", scope="process").reserve() as lease:
        assert_type((of_key, lease.waited), tuple[float, float])

    @limiter
    def plain(name: str, *, size: int = 1) -> bytes:
        return b""

    assert_type(plain("a", size=2), bytes)
    Limiter("10/s", scope="loop")
    Limiter("10/s", scope="thread")  # type: ignore[arg-type]


def observation(meters: MeterProvider, tracers: TracerProvider, url: str) -> None:
    def on_wait(waited: Waited) -> None:
        assert_type(waited.seconds, float)
        assert_type(waited.permits, int | Mapping[str, int])
        assert_type((waited.name, waited.limited_by), tuple[str | None, str | None])

    limiter = Limiter("10/s", on_wait=on_wait)
    keyed = KeyedLimiter[str](lambda key: "1/s", on_wait=print, name="users")
    budget = Budget(requests="1/s", on_wait=on_wait)
    budgets = KeyedBudget[str](lambda key: Budget(requests="1/s"), on_wait=on_wait, name="users")
    stored = RedisLimiter(url, "api", "10/s", on_wait=on_wait)
    booked = RedisBudget(url, "llm", tokens="10/s", on_wait=on_wait)
    assert_type(limiter.watch(on_wait), Callable[[], None])
    assert_type(keyed.watch(print), Callable[[], None])
    assert_type((limiter.name, keyed.name, budget.name), tuple[str | None, str | None, str | None])
    assert_type(instrument(limiter, keyed, budget, budgets, stored, booked), Callable[[], None])
    assert_type(instrument(limiter, meter_provider=meters, tracer_provider=tracers), Callable[[], None])
    instrument(AdaptiveRate(limiter, "1/s", "10/s"), limiter)
    instrument("10/s")  # type: ignore[arg-type]
    Limiter("10/s", on_wait="print")  # type: ignore[arg-type]


def serving(app: FastAPI, limiter: Limiter, keyed: KeyedLimiter[str], budget: Budget) -> None:
    async def account(scope: MutableMapping[str, Any]) -> str | None:
        return client_address(scope) or None

    assert_type(RateLimitMiddleware(app, limiter).would_refuse, int)
    RateLimitMiddleware(RateLimitMiddleware(app, keyed), limiter, key=account, dry_run=True)
    app.add_middleware(RateLimitMiddleware, limiter=keyed, key=lambda scope: scope["client"])
    RateLimitMiddleware(app, budget)  # type: ignore[arg-type]


def fixtures(reset: Callable[..., None], users: KeyedLimiter[str], teams: KeyedBudget[int]) -> None:
    """What the fixtures of aiorate.testing are in a test."""
    reset(Limiter("10/s"), Budget(requests="10/s"), users, teams)
    reset()


reset_limiters([Limiter("10/s")])  # type: ignore[arg-type]
given: Callable[..., None] = reset_limiters
