"""Defects found by the second attack: numbers 1 and 6. A store that comes back from an outage and refuses."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from helpers.stores import RealServer, TimedClient
from redis.exceptions import ConnectionError as NoConnection

from aiorate import EngineUnavailable, Rate
from aiorate.redis import RedisLimiter
from aiorate.redis.outage import Outage

if TYPE_CHECKING:
    pass

SECOND = 1_000_000_000
POLICIES: dict[str, dict[str, Any]] = {
    "raise": {},
    "wait": {"on_unavailable": "wait"},
    "local": {"on_unavailable": "local", "local_share": 0.5},
    "open": {"on_unavailable": "open"},
}


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("seconds", [0.5, 5])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_store_that_refuses_after_an_outage_is_heeded(store: RealServer, policy: str, seconds: float) -> None:
    """Number 1: a restart with another password was an outage for ever: "open" granted all, and "raise" named the wrong reason."""
    client = TimedClient(store)
    limiter = RedisLimiter(client, "x", "10/s", **POLICIES[policy])
    client.error = NoConnection("it is restarted")
    asking = [asyncio.create_task(limiter.acquire()) for _ in range(200)]
    await asyncio.sleep(seconds)
    store.send("SET", limiter.key, "of another program")
    client.error = None

    for _ in range(50):
        await asyncio.sleep(0.1)
        if limiter.statistics().state == "shared":
            break
    for _ in range(20):
        with pytest.raises(EngineUnavailable, match="the store refuses: WRONGTYPE"):
            await limiter.acquire()
        await asyncio.sleep(0.1)
    store.send("DEL", limiter.key)
    async with asyncio.timeout(60):
        await limiter.acquire()
    await asyncio.gather(*asking, return_exceptions=True)
    await limiter.aclose()


def test_what_was_granted_locally_is_charged_after_a_refusal() -> None:
    """Number 6: the refusal ends the outage, and the store has yet to hear of the permits."""
    outage = Outage("local", SECOND, [Rate.parse("10/s")], [1], Fraction(1, 2))
    for begin in (0, 10 * SECOND):
        outage.failed(begin, OSError("gone"))
        beyond = outage.over(begin + SECOND, 0)
        assert beyond is not None
        beyond.spend(3, 0)
        assert 2 * SECOND == outage.refused(begin + 2 * SECOND)
    assert outage.concerns_answer

    assert (0, 5) == outage.ended(30 * SECOND, 2)
    assert not outage.concerns_answer
