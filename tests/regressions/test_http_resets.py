"""A server that says at what instant its bucket is full, in milliseconds or whole seconds, with a Date in whole seconds."""

from __future__ import annotations

import asyncio
import random
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from math import ceil, floor

import pytest
from helpers.transcripts import S

from aiorate import Budget, KeyedLimiter, Limiter, Rate, TokenBucket
from aiorate.http import Feedback, Quota, read_feedback
from aiorate.schedulers.capped import Capped
from aiorate.testing import ManualClock, VirtualLoop

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
OUTPUT = "anthropic-ratelimit-output-tokens"
ROUNDED = {"floor": floor, "round": round, "ceil": ceil}


def written(instant: datetime, how: str) -> str:
    """An instant as a reset: ``ms``, or in whole seconds."""
    if how in ROUNDED:
        instant = datetime.fromtimestamp(ROUNDED[how](instant.timestamp()), UTC)
    return instant.isoformat(timespec="milliseconds" if how == "ms" else "seconds").replace("+00:00", "Z")


def headers(left: float, size: int, full_in: float, at: datetime, how: str) -> dict[str, str]:
    return {
        "Date": format_datetime(at.replace(microsecond=0), usegmt=True),
        f"{OUTPUT}-limit": str(size),
        f"{OUTPUT}-remaining": str(max(0, int(left))),
        f"{OUTPUT}-reset": written(at + timedelta(seconds=full_in), how),
    }


class Server:
    """A bucket that fills in ``fill`` seconds. It takes the estimate of a call, and what was not used comes back with the answer."""

    size = 8000

    def __init__(self, fill: float, began: datetime, how: str, level: float = 1.0) -> None:
        self.rate = self.size / fill
        self.left = self.size * level
        self.began, self.how = began, how
        self.seen = 0.0
        self.used = self.calls = self.refused = 0

    def refill(self) -> float:
        now = asyncio.get_running_loop().time()
        self.left = min(self.size, self.left + (now - self.seen) * self.rate)
        self.seen = now
        return now

    async def answer(self, most: int, used: int, takes: float) -> Feedback | None:
        self.refill()
        self.calls += 1
        self.refused += self.left < most
        self.left -= most
        await asyncio.sleep(takes)
        now = self.refill()
        self.left = min(self.size, self.left + most - used)
        self.used += used
        full_in = (self.size - self.left) / self.rate
        if not self.how:
            return None
        return read_feedback(200, headers(self.left, self.size, full_in, self.began + timedelta(seconds=now), self.how))


@cache
def play(seed: int, fill: float, how: str, own: float = 1.0, level: float = 0.2) -> tuple[float, float]:
    """The part of the server's limit that is used, and the part of the calls for which the server had too little.

    Workers call as often as a budget lets them, whose rate is ``own`` times that of the server. ``how`` may be empty: no headers.
    """
    chance = random.Random(seed)
    server = Server(fill, NOON + timedelta(seconds=chance.random()), how, level)
    budget = Budget(output_tokens=TokenBucket(Rate(int(server.size * own), per=fill), burst=1600))
    takes, seconds = min(3.0, fill / 20), 3 * fill + 10

    async def work() -> None:
        while server.seen < seconds:
            async with budget.reserve(output_tokens=200) as lease:
                await asyncio.sleep(0.01 * chance.random())
                budget.observe(await server.answer(200, 80, takes * chance.uniform(0.5, 1.5)))
                lease.settle(output_tokens=80)

    async def main() -> None:
        workers = [asyncio.create_task(work()) for _ in range(min(60, int(2 * server.rate * takes / 80) + 5))]
        await asyncio.wait(workers, timeout=seconds)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    return server.used / (min(1600, server.size * level) + server.rate * seconds), server.refused / server.calls


@pytest.mark.parametrize(
    ("reset", "date", "read"),
    [
        ("2026-11-20T12:00:05.300Z", True, (5.3, 1.0)),
        ("2026-11-20T12:00:05Z", True, (5.0, 2.0)),
        ("2026-11-20T12:00:05.300Z", False, (5.3, 0.0)),
        ("2026-11-20T12:00:05Z", False, (5.0, 1.0)),
        ("6m0s", True, (360.0, 0.0)),
        ("300ms", True, (0.3, 0.0)),
        ("5", True, (5.0, 0.0)),
        ("2026-11-20T11:00:00Z", True, (0.0, 2.0)),
        ("Fri, 20 Nov 2026 12:00:05 GMT", True, (5.0, 2.0)),
        ("in a while", True, (None, 0.0)),
    ],
)
def test_the_error_of_a_reset_is_read(reset: str, date: bool, read: tuple[float | None, float]) -> None:
    """Each instant in whole seconds adds one; a duration has none."""
    sent = headers(4000, 8000, 5.0, NOON, "ms") | {f"{OUTPUT}-reset": reset}
    if not date:
        del sent["Date"]

    feedback = read_feedback(200, sent, now=NOON.timestamp())

    assert feedback is not None
    quota = feedback.quotas[0]
    assert (None if quota.reset is None else round(quota.reset, 6), quota.reset_error) == read


@pytest.mark.parametrize("error", [-1.0, float("nan"), "1"])
def test_an_error_that_is_none_is_refused(error: float) -> None:
    budget = Budget(tokens="10/s")
    quota = Quota("tokens", 10, 5, 5.0, full_at_reset=True, unit="tokens", reset_error=error)

    with pytest.raises((TypeError, ValueError), match=r"observe\(\): the error of a quota's reset"):
        budget.observe(Feedback(200, quotas=(quota,)))


def held(left: int, full_in: int, error: int) -> Capped:
    capped = Capped(TokenBucket("1000000/s", burst=1_000_000))
    capped.refill("tokens", left, 60, full_in, 0, 0, error)
    return capped


@pytest.mark.parametrize(
    ("full_in", "error", "lefts"),
    [
        (60 * S, 2 * S, [0, 1, 60]),  # known within a tenth: as it was said
        (10 * S, S, [0, 6, 60]),
        (9 * S, S, [0, 7, 60]),  # the shortest that it can be
        (2 * S, S, [0, 60, 60]),
    ],
)
def test_a_bucket_fills_as_fast_as_a_rough_time_allows(full_in: int, error: int, lefts: list[int]) -> None:
    assert lefts == [held(0, full_in, error).left(at) for at in (0, S, 60 * S)]


@pytest.mark.parametrize(("full_in", "error"), [(S, S), (S // 2, S), (2 * S, 2 * S), (0, S)])
def test_a_bucket_that_may_be_full_already_holds_nothing(full_in: int, error: int) -> None:
    assert held(0, full_in, error).left(0) is None


@pytest.mark.parametrize(
    ("left", "full_in", "later"),
    [
        (0, 30 * S, 2),  # known within a tenth: it counts
        (54, 6 * S, 55),  # 6 in 5 to 7 s: the rate of 1 per second is possible, and stays
        (30, 4 * S, 36),  # 30 in 3 to 5 s: at least 6 per second
        (59, 5 * S, 59),  # 1 in 4 to 6 s: at most 1 in 4 s
        (59, S // 2, 60),  # 1 in up to 1.5 s: possible, and stays
        (30, S // 2, 50),  # 30 in up to 1.5 s: at least 20 per second
        (60, 0, 60),  # a full bucket tells no rate
    ],
)
def test_a_rough_time_moves_a_rate_that_is_impossible(left: int, full_in: int, later: int) -> None:
    """To the nearer end of what is possible; before, the bucket fills at 1 per second."""
    capped = held(0, 60 * S, 0)

    assert capped.refill("tokens", left, 60, full_in, 60 * S, 60 * S, S)

    assert (left, later) == (capped.left(60 * S), capped.left(61 * S))


def rough(left: int, unit: str = "requests") -> Feedback:
    """``left`` of 60, and full in 5 s, or 4 or 6."""
    return Feedback(200, quotas=(Quota(unit, 60, left, 5.0, full_at_reset=True, unit=unit, reset_error=1.0),))


def test_the_error_of_a_reset_reaches_every_limit() -> None:
    """20 of 60 in 4 s: 5 per second, not 4. A limiter, a key, a dimension, one that is shared, and one of a shared budget."""
    clock = ManualClock()
    fast = TokenBucket("1000/s", burst=1000)
    limiter, shared = Limiter(deepcopy(fast), clock=clock), Limiter(deepcopy(fast), clock=clock)
    keyed = KeyedLimiter(lambda key: Limiter(deepcopy(fast), clock=clock))
    own, above = Budget(tokens=deepcopy(fast), clock=clock), Budget(tokens=deepcopy(fast), clock=clock)
    with_limiter, with_budget = (
        Budget(calls=deepcopy(fast), requests=shared, clock=clock),
        Budget(calls=deepcopy(fast), shared=above, clock=clock),
    )

    limiter.observe(rough(40))
    keyed.observe("key", rough(40))
    own.observe(rough(40, "tokens"))
    with_limiter.observe(rough(40))
    with_budget.observe(rough(40, "tokens"))

    assert [limiter.delay(45), keyed["key"].delay(45), own.delay(tokens=45)] == [1.0, 1.0, 1.0]
    assert [with_limiter.delay(requests=45), with_budget.delay(tokens=45)] == [1.0, 1.0]


def test_a_bucket_that_fills_within_a_second_is_used_fully() -> None:
    """8000 in 0.6 s, 200 calls at once. Resets of a second too long made the rate a tenth of the server's: 29 s instead of 3.5 s."""
    starts: list[float] = []

    async def main() -> None:
        server = Server(0.6, NOON, "ms")
        budget = Budget(output_tokens=TokenBucket(Rate(40_000, per=3), burst=4000))

        async def call() -> None:
            async with budget.reserve(output_tokens=400) as lease:
                starts.append(asyncio.get_running_loop().time())
                budget.observe(await server.answer(400, 250, 0.05))
                lease.settle(output_tokens=250)

        await asyncio.gather(*(call() for _ in range(200)))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())

    assert max(starts) < (200 * 250 - 4000) / (40_000 / 3) / 0.9


HISTORIES = [(0, 0.6), (1, 2.0), (2, 8.0)]
MANY = [pytest.param(seed, fill, marks=pytest.mark.slow) for seed in range(3, 8) for fill in (0.6, 2.0, 5.0, 20.0, 60.0)]


@pytest.mark.parametrize("how", ["ms", "floor", "round", "ceil"])
@pytest.mark.parametrize(("seed", "fill"), HISTORIES + MANY)
def test_nearly_all_of_the_limit_is_used_with_any_resets(seed: int, fill: float, how: str) -> None:
    """A budget at the server's rate follows the headers, and is as fast as without them. No call finds too little."""
    most, _ = play(seed, fill, "")
    part, refused = play(seed, fill, how)

    assert most > 0.94
    assert part >= 0.9 * most
    assert refused == 0


@pytest.mark.parametrize("how", ["ms", "floor", "round", "ceil"])
@pytest.mark.parametrize(("seed", "fill"), [(1, 60.0), *(pytest.param(seed, 60.0, marks=pytest.mark.slow) for seed in range(3, 10))])
def test_a_budget_twice_as_fast_follows_a_bucket_of_a_minute(seed: int, fill: float, how: str) -> None:
    """A bucket that is nearly empty takes a minute to fill, so a second is little. The first calls know nothing of the server."""
    part, refused = play(seed, fill, how, own=2.0, level=0.2)

    assert part >= 0.9
    assert refused <= 0.05
