"""Limits as a list: the same list wherever a rate or a strategy is taken, and the same words where it is wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

import aiorate
from aiorate import AllOf, Budget, KeyedBudget, KeyedLimiter, Limiter, Rate, SlidingWindow, TokenBucket, TokenPool, WaitTooLong
from aiorate.redis import RedisBudget, RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

URL = "redis://127.0.0.1:1"  # nothing is asked of it

PLACES: dict[str, Callable[[Any], Any]] = {
    "Limiter": Limiter,
    "Limiter for the process": lambda limits: Limiter(limits, scope="process"),
    "factory": lambda limits: KeyedLimiter[str](lambda key: limits)["a"],
    "shared": lambda limits: KeyedLimiter[str](lambda key: "1000/s", shared=limits).shared,
    "Budget": lambda limits: Budget(requests=limits, tokens="1000/s"),
    "KeyedBudget": lambda limits: KeyedBudget[str](lambda key: Budget(requests=limits))["a"],
    "RedisLimiter": lambda limits: RedisLimiter(URL, "a", limits),
}


async def times(acquire: Callable[[], Any], count: int) -> list[float]:
    """Seconds until each of that many requests, made at once, is granted."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one() -> float:
        await acquire()
        return round(loop.time() - began, 3)

    return sorted(await asyncio.gather(*(one() for _ in range(count))))


async def test_a_list_is_taken_wherever_a_rate_is() -> None:
    for place, make in PLACES.items():
        for kind in (list, tuple):
            make(kind(["10/s", 5, Rate(500, 60), TokenBucket("300/min", burst=3)]))
        if place != "RedisLimiter":
            make([SlidingWindow("5/s"), aiorate.CalendarWindow("100/month", "UTC"), AllOf(TokenPool("1/s"))])


async def test_all_limits_of_a_list_hold() -> None:
    limits = [TokenBucket("10/s", burst=3), SlidingWindow("5/s")]
    listed, written = Limiter(limits), Limiter(AllOf(TokenBucket("10/s", burst=3), SlidingWindow("5/s")))
    rates, pools = Limiter(["10/s", "4/s"]), Limiter(AllOf(TokenPool("10/s"), TokenPool("4/s")))

    assert await times(listed.acquire, 12) == await times(written.acquire, 12)
    assert await times(rates.acquire, 8) == await times(pools.acquire, 8)
    assert repr(Limiter(["10/s"])) == repr(Limiter(AllOf(TokenPool("10/s"))))
    assert listed.bound(1) == 5


async def test_budget_takes_from_all_limits_of_a_dimension() -> None:
    budget = Budget(tokens=[TokenBucket("10/s", burst=50), SlidingWindow("60/min")], requests="100/s")

    async with budget.reserve(tokens=50, requests=1) as lease:
        lease.settle(tokens=20)
    async with budget.reserve(tokens=40, max_wait=2) as lease:
        assert lease.waited == pytest.approx(1)
    with pytest.raises(WaitTooLong) as raised:
        async with budget.reserve(tokens=1, max_wait=50):
            pass
    assert raised.value.wait == pytest.approx(59)


def refusal(call: Callable[[Any], object], value: Any) -> Exception | None:
    try:
        call(value)
    except (TypeError, ValueError) as error:
        return error
    return None


async def test_a_wrong_list_says_what_is_wrong() -> None:
    """In the same words, whether a store keeps the limit or not."""
    wrong: list[tuple[Any, type[Exception], str]] = [
        ([], ValueError, "at least one"),
        ((), ValueError, "at least one"),
        (["10/s", "5/m"], ValueError, r"Rate.parse\('5/m'\) is not a rate.*write 'min'"),
        (["10/month", "5/s"], ValueError, r"CalendarWindow\('1000/month', 'UTC'\)"),
        (["10/s", 0], ValueError, "greater than 0"),
        (["10/s", None], TypeError, "a rate.*not NoneType"),
        (["10/s", True], TypeError, "not bool"),
        ([TokenBucket, "5/s"], TypeError, "TokenBucket"),
        ([Limiter("1/s"), "2/s"], TypeError, "not Limiter"),
    ]
    for place, make in PLACES.items():
        for limits, error, words in wrong:
            refused = refusal(make, limits)
            assert type(refused) is error, (place, limits)
            assert re.search(words, str(refused)), (place, limits)


async def test_a_strategy_twice_in_a_list_is_refused() -> None:
    bucket = TokenBucket("5/s", burst=2)

    with pytest.raises(ValueError, match="given twice"):
        Limiter([bucket, bucket])


async def test_a_store_takes_a_list_and_no_all_of() -> None:
    with pytest.raises(TypeError, match=r"not AllOf.*\['10/s', '100/min'\]"):
        RedisLimiter(URL, "a", AllOf(TokenBucket("10/s", burst=1), TokenBucket("100/min", burst=1)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not list.*a dimension for each"):
        RedisBudget(URL, "a", requests=["10/s", "500/min"])  # type: ignore[arg-type]


async def test_a_spec_has_one_rate_and_a_list_several() -> None:
    limiter = Limiter(["10/s", "100/min"])
    with pytest.raises(RuntimeError, match=r"^this limit has several rates.*set_rate\(rate, member=0\)"):
        limiter.apply("10,1,stop")
    assert limiter.try_acquire()
