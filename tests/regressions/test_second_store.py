"""Defects found by the second attack: numbers 1, 8, 18, 19 and 30. What a store answers, and what of it users are told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from helpers.driving import one_loop
from helpers.stores import RealServer, TimedClient

from aiorate import EngineUnavailable
from aiorate.redis import RedisLimiter

if TYPE_CHECKING:
    pass

POLICIES: dict[str, dict[str, Any]] = {
    "raise": {},
    "wait": {"on_unavailable": "wait"},
    "local": {"on_unavailable": "local", "local_share": 0.5},
    "open": {"on_unavailable": "open"},
}


async def outcome(limiter: RedisLimiter, seconds: float) -> str:
    """``granted``, the text of the error, or ``waiting`` if it is neither after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await limiter.acquire()
    except EngineUnavailable as error:
        return str(error)
    except TimeoutError:
        return "waiting"
    return "granted"


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("value", ["aiorate/2 1800000000000000 0 0", "aiorate/2 7 1800000000000000 0 0 5", "aiorate/2 {}"])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_value_of_another_release_is_an_outage(store: RealServer, value: str, policy: str) -> None:
    """Number 19: a later release with one number in front made older processes grant at once, and one more word was WRONGTYPE.

    Within the grace it is waited for, and after it the policy decides, as in any outage. The value is left alone.
    """
    store.send("SET", "aiorate:x", value)
    limiter = RedisLimiter(TimedClient(store), "x", "10/s", **POLICIES[policy])

    assert "waiting" == await outcome(limiter, 0.9)
    later = await outcome(limiter, 60.0)
    assert {"raise": "answers with an error", "wait": "waiting", "local": "granted", "open": "granted"}[policy] in later
    if policy == "raise":
        assert "VERSION the key aiorate:x was written by another release of aiorate, as aiorate/2; this release reads aiorate/1." in later
    assert value == store.send("GET", "aiorate:x")
    await limiter.aclose()


@one_loop
async def test_processes_go_on_once_the_other_release_is_gone(store: RealServer) -> None:
    """Number 19: the outage ends with the value, without a restart."""
    store.send("SET", "aiorate:x", "aiorate/2 1800000000000000 0 0", "PX", 300)
    limiter = RedisLimiter(store.url, "x", "1000/s", on_unavailable="wait")
    await limiter.acquire()

    assert store.send("GET", limiter.key).startswith("aiorate/1 ")
    await limiter.aclose()
