"""RedisBudget() with arguments that are wrong: an error at once that says what to write, and the store is never asked."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import redis

from aiorate import Budget, Limiter, SlidingWindow, TokenBucket
from aiorate.redis import RedisBudget, RedisLimiter

URL = "redis://localhost"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"client_or_url": "localhost"}, "begins with one of redis://"),
        ({"name": ""}, r"RedisBudget\(name\) must not be empty"),
        ({"name": "\ud800"}, "lone surrogate"),
        ({"slack": 0}, "at least 0.001 seconds; 0 was given"),
        ({"horizon": 0}, "more than 0 seconds"),
        ({"grace": -1}, r"RedisBudget\(grace\) must be 0 seconds or more"),
        ({"on_unavailable": "never"}, "must be one of raise, wait, local, open"),
        ({"on_unavailable": "local"}, "needs local_share"),
        ({"local_share": 0.5}, "is for on_unavailable='local'"),
        ({"on_unavailable": "local", "local_share": 2}, "at most 1; 2 was given"),
        ({"tokens": "many"}, "is not a rate"),
        ({"tokens": "0/s"}, "must be greater than 0"),
        ({"tokens": "1e-20/day"}, "takes longer than 317 years"),
        ({"tokens": TokenBucket("10/s", burst=5, initial=0)}, "the bucket in the store starts full"),
        ({"on_error": "retry"}, "must be 'keep' or 'refund'"),
        ({"max_waiting": -1}, "max_waiting"),
    ],
)
def test_a_wrong_value_is_an_error(changes: dict[str, Any], error: str) -> None:
    """In the constructor."""
    given = {"client_or_url": URL, "name": "x", "tokens": "10/s", **changes}

    with pytest.raises(ValueError, match=error):
        RedisBudget(given.pop("client_or_url"), given.pop("name"), **given)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"client_or_url": redis.Redis()}, "synchronous client"),
        ({"client_or_url": 7}, "takes a client of"),
        ({"name": 7}, "must be text, not int"),
        ({"tokens": SlidingWindow("10/s")}, r"RedisBudget\(tokens\) must be a rate such as '500/min', or a TokenBucket"),
        ({"tokens": Limiter("10/s")}, r"RedisBudget\(tokens\) must be a rate"),
        ({"tokens": RedisLimiter(URL, "y", "10/s")}, r"RedisBudget\(tokens\) must be a rate"),
        ({"tokens": TokenBucket}, r"RedisBudget\(tokens\) must be a rate"),
        ({"tokens": None}, r"RedisBudget\(tokens\) must be a rate"),
        ({"tokens": True}, r"RedisBudget\(tokens\) must be a rate"),
        ({"burst": 5}, r"TokenBucket\('200_000/min', burst=20_000\)"),
        ({"rate": "10/s"}, r"RedisBudget\(rate\)"),
        ({"max_concurrency": 5}, r"RedisBudget\(max_concurrency\)"),
        ({"max_wait": "10/s"}, "give it another name"),
        ({"shared": Limiter("10/s")}, r"shared"),
    ],
)
def test_a_value_of_another_kind_is_an_error(changes: dict[str, Any], error: str) -> None:
    """And so is an option of something else, which would be a dimension that nobody asked for."""
    given = {"client_or_url": URL, "name": "x", "tokens": "10/s", **changes}

    with pytest.raises(TypeError, match=error):
        RedisBudget(given.pop("client_or_url"), given.pop("name"), **given)


def test_no_dimension_is_an_error() -> None:
    """There would be nothing to limit; and they have names."""
    with pytest.raises(TypeError, match="at least one dimension"):
        RedisBudget(URL, "x")
    with pytest.raises(TypeError, match=r"dimensions by name, not '10/s'"):
        RedisBudget(URL, "x", "10/s")  # type: ignore[arg-type]


def test_it_is_a_budget() -> None:
    """Wherever one is taken."""
    budget = RedisBudget(URL, "x", requests="10/s", tokens=TokenBucket("100/s", burst=50))

    assert isinstance(budget, Budget)
    assert ("requests", "tokens") == budget.dimensions
    assert "aiorate:x" == budget.key
    assert "shared" == budget.statistics().state
    assert "requests=10/s, tokens=100/s burst 50" in repr(budget)
    assert {"requests": 3, "tokens": 50} == budget.reserve(requests=3, tokens=1000).amounts
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(budget)


def test_an_unused_budget_closes_without_a_store() -> None:
    """Nobody was asked."""

    async def main() -> None:
        await RedisBudget("redis://127.0.0.1:1", "x", tokens="10/s").aclose()

    asyncio.run(main())


def test_two_rates_under_one_name_are_an_error() -> None:
    """They would move one schedule by two rates. Equal limits may share a name, and so may dimensions that only one of them has."""
    first = RedisBudget(URL, "x", tokens="60/min", requests="5/s")
    alike = RedisBudget(URL, "x", tokens="1/s")
    RedisBudget(URL, "y", tokens="2/s")
    RedisBudget("redis://elsewhere", "x", tokens="2/s")

    for other in ("2/s", TokenBucket("1/s", burst=2)):
        with pytest.raises(ValueError, match=r"RedisBudget\(tokens\): a budget named 'x' has 1/s with no burst in this process"):
            RedisBudget(URL, "x", tokens=other)

    asyncio.run(first.aclose())
    asyncio.run(alike.aclose())
    RedisBudget(URL, "x", tokens="2/s")


def test_a_budget_that_nobody_holds_does_not_count() -> None:
    """Also where a cycle keeps it until the next collection."""
    cycle: list[object] = [RedisBudget(URL, "cycle", tokens="1/s")]
    cycle.append(cycle)
    del cycle

    RedisBudget(URL, "cycle", tokens="2/s")
