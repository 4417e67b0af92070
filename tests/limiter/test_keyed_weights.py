"""KeyedLimiter(weight=): which weights are accepted, and when the function is called."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import SteppedClock, one_loop, turns

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.errors import kind_of


class Broken(Exception):
    """Raised by a weight function."""


@pytest.mark.parametrize("weight", [1, "2", {"a": 1}.items(), 0.5])
def test_weight_must_be_a_function(weight: Any) -> None:
    with pytest.raises(TypeError, match=r"KeyedLimiter\(weight\) must be a function of the key"):
        KeyedLimiter(lambda key: "1/s", shared="10/s", weight=weight)


def test_weight_needs_a_shared_limit() -> None:
    with pytest.raises(ValueError, match=r"KeyedLimiter\(weight\): only keys that share a limit have weights.*Add shared="):
        KeyedLimiter(lambda key: "1/s", weight=lambda key: 1)


@pytest.mark.parametrize(
    ("weight", "error"),
    [
        *[(wrong, TypeError) for wrong in (True, 1.0, "3", None, [1], "x" * 10**6)],
        *[(wrong, ValueError) for wrong in (0, -1, -(10**30), -(10**5000))],
    ],
    ids=kind_of,
)
def test_bad_weight_names_the_key_and_spends_nothing(weight: Any, error: type[Exception]) -> None:
    """The key is not kept either, and may be used once the function returns a number."""
    shared = Limiter(TokenBucket("10/s", burst=1))
    answers = [weight, 2]
    keyed = KeyedLimiter[str](lambda key: "100/s", shared=shared, weight=lambda key: answers.pop(0))

    with pytest.raises(error, match=r"KeyedLimiter\(weight\) for 'alice': the function must return a whole number") as caught:
        keyed.try_acquire("alice")

    assert len(str(caught.value)) < 300
    assert len(keyed) == 0
    assert shared.statistics().granted == 0
    assert keyed.try_acquire("alice")


def test_error_of_the_function_reaches_the_caller() -> None:
    made: list[str] = []

    def factory(key: str) -> str:
        made.append(key)
        return "10/s"

    def weight(key: str) -> int:
        raise Broken

    keyed = KeyedLimiter[str](factory, shared="10/s", weight=weight)

    with pytest.raises(Broken):
        asyncio.run(keyed.acquire("alice"))

    assert (made, len(keyed)) == ([], 0)


def test_async_weight_function_is_refused() -> None:
    async def weight(key: str) -> int:
        return 1

    keyed = KeyedLimiter[str](lambda key: "10/s", shared="10/s", weight=weight)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="the function must return a whole number"):
        keyed.try_acquire("alice")


@one_loop
async def test_weight_is_asked_once_for_each_key_that_is_kept() -> None:
    """Again only after the key was evicted."""
    clock = SteppedClock()
    asked: list[str] = []

    def weight(key: str) -> int:
        asked.append(key)
        return 3

    shared = Limiter(TokenBucket("10/s", burst=1), clock=clock)
    keyed = KeyedLimiter[str](lambda key: Limiter(TokenBucket("100/s", burst=9), clock=clock), shared=shared, weight=weight)
    tasks = [asyncio.ensure_future(keyed.acquire(key)) for key in "aabbab"]
    await turns(3)
    await clock.run(2)
    assert all(task.done() for task in tasks)
    assert asked == ["a", "b"]

    assert keyed.evict() == 2
    assert keyed.try_acquire("a")

    assert asked == ["a", "b", "a"]


def test_weight_is_asked_where_shared_is_a_function_of_the_key() -> None:
    shared = Limiter(TokenBucket("10/s", burst=5))
    keyed = KeyedLimiter[str](lambda key: "100/s", shared=lambda key: shared if key == "a" else None, weight=len)

    assert keyed.try_acquire("a")
    assert keyed.try_acquire("bb")

    assert shared.statistics().granted == 1


@one_loop
async def test_weight_of_any_size_is_accepted() -> None:
    clock = SteppedClock()
    shared = Limiter(TokenBucket("1/s", burst=1), clock=clock)
    keyed = KeyedLimiter[int](lambda key: Limiter(TokenBucket("100/s", burst=9), clock=clock), shared=shared, weight=lambda key: key)
    assert shared.try_acquire()
    granted: list[int] = []

    async def ask(key: int) -> None:
        await keyed.acquire(key)
        granted.append(key)

    tasks = [asyncio.ensure_future(ask(key)) for key in (1, 1, 1, 10**5000, 10**5000, 10**5000)]
    await turns(3)
    await clock.run(7)

    assert all(task.done() for task in tasks)
    assert granted.index(1) < 4
    assert granted[-1] == 1
