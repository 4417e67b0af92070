"""A store that fails over, is full, or comes back and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any

import pytest
import redis.asyncio
import valkey.asyncio
from helpers.driving import LONG, one_loop, until
from helpers.stores import RealServer, TimedClient
from helpers.wire import wire
from redis.exceptions import ConnectionError as NoConnection

from aiorate import EngineUnavailable, Rate
from aiorate.redis import RedisBudget, RedisLimiter
from aiorate.redis.outage import Outage

SECOND = 1_000_000_000


class WrappedRedis(redis.asyncio.Redis):
    """A client class of the user's, whose connection pool is used."""


class WrappedValkey(valkey.asyncio.Valkey):
    """The same for valkey-py."""


POLICIES: dict[str, dict[str, Any]] = {
    "raise": {},
    "wait": {"on_unavailable": "wait"},
    "local": {"on_unavailable": "local", "local_share": 0.5},
    "open": {"on_unavailable": "open"},
}


SOURCES: dict[str, Any] = {
    "url": str,
    "redis-py": redis.asyncio.Redis.from_url,
    "valkey-py": valkey.asyncio.Valkey.from_url,
    "redis-py, its own connections": WrappedRedis.from_url,
    "valkey-py, its own connections": WrappedValkey.from_url,
    "redis-py, one connection": lambda url: redis.asyncio.Redis.from_url(url, single_connection_client=True),
}


class Pair:
    """A primary, its replica, and an address that leads to the primary until it is moved."""

    def __init__(self, primary: RealServer, replica: RealServer, address: Any) -> None:
        self.primary, self.replica, self.address = primary, replica, address
        self.url = f"redis://127.0.0.1:{address.port}/0"

    async def demote(self) -> None:
        """Promote the replica. The primary follows it, answers READONLY, and keeps its connections open."""
        await until(lambda: "master_link_status:up" in self.replica.send("INFO", "replication"))
        self.replica.send("REPLICAOF", "NO", "ONE")
        self.primary.send("REPLICAOF", "127.0.0.1", self.replica.port)

    def move(self) -> None:
        """Lead new connections to the former replica."""
        self.address.target = self.replica.port


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    with RealServer() as primary, RealServer() as replica, wire(primary.port) as address:
        primary.send("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        replica.send("REPLICAOF", "127.0.0.1", primary.port)
        yield Pair(primary, replica, address)


@one_loop
@pytest.mark.parametrize("source", SOURCES)
async def test_a_failover_ends_when_the_address_moves(source: str) -> None:
    """ReadOnlyError has lost its code, so it counted as a refusal, and the connection to the old server stayed open for ever.

    Within the grace no policy raises an error.
    """
    async with pair() as servers, asyncio.timeout(LONG):
        client = SOURCES[source](servers.url)
        limiters = [RedisLimiter(client, name, "1000/s", grace=LONG, **options) for name, options in POLICIES.items()]
        await asyncio.gather(*[limiter.acquire() for limiter in limiters])
        await servers.demote()
        waiting = [asyncio.create_task(limiter.acquire()) for limiter in limiters for _ in range(30)]
        await until(lambda: servers.primary.calls() > 8)
        servers.move()
        await asyncio.gather(*waiting)

        assert servers.replica.calls() > 0
        for limiter in limiters:
            await limiter.aclose()
        if client is not servers.url:
            await client.aclose()


@one_loop
@pytest.mark.parametrize("policy", POLICIES)
async def test_failover_longer_than_the_grace_ends_too(policy: str) -> None:
    """The policy holds from the end of the grace until the address has moved; under "wait" callers see nothing of it."""
    async with pair() as servers, asyncio.timeout(LONG):
        limiter = RedisLimiter(servers.url, "x", "1000/s", grace=0.02, **POLICIES[policy])
        await limiter.acquire()
        await servers.demote()
        stop, errors = asyncio.Event(), []

        async def ask() -> None:
            while not stop.is_set():
                try:
                    await limiter.acquire()
                except EngineUnavailable as error:
                    errors.append(str(error))
                await asyncio.sleep(0.001)

        asking = [asyncio.create_task(ask()) for _ in range(3)]
        await until(lambda: limiter.statistics().state == "degraded")
        await until(lambda: policy != "raise" or errors)
        servers.move()
        await until(lambda: limiter.statistics().state == "shared")
        granted = limiter.statistics().granted
        await until(lambda: limiter.statistics().granted > granted + 100)
        stop.set()
        await asyncio.gather(*asking)

        assert {"raise": True}.get(policy, False) is bool(errors)
        assert all("the store answers with an error: READONLY You can't write against a read only replica" in error for error in errors)
        await limiter.aclose()


@one_loop
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("setting", [("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0")], ids=lambda setting: setting[0])
async def test_a_store_that_is_full_is_an_outage(setting: tuple[str, str, str], policy: str) -> None:
    """OutOfMemoryError has lost its code too. A server that recovers serves again, and within the grace no caller saw an error."""
    name, bad, good = setting
    with RealServer() as server:
        limiter = RedisLimiter(server.url, "x", "1000/s", grace=LONG, **POLICIES[policy])
        await limiter.acquire()
        server.send("CONFIG", "SET", name, bad)
        waiting = [asyncio.create_task(limiter.acquire()) for _ in range(100)]
        await until(lambda: server.calls() > 5)
        server.send("CONFIG", "SET", name, good)
        async with asyncio.timeout(LONG):
            await asyncio.gather(*waiting)

        assert "shared" == limiter.statistics().state
        await limiter.aclose()


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("seconds", [0.5, 5])
@pytest.mark.parametrize("policy", POLICIES)
async def test_refusal_after_an_outage_ends_the_outage(store: RealServer, policy: str, seconds: float) -> None:
    """A restart with another password was an outage for ever: "open" granted all, and "raise" named the wrong reason."""
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


def test_local_permits_are_charged_after_a_refusal() -> None:
    """The refusal ends the outage, but the store still has to hear of the permits."""
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


@one_loop
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_budget_goes_on_after_a_failover(policy: str) -> None:
    """The new primary may lack the last writes: the process tells it what it knows, and no estimate is granted twice."""
    async with pair() as servers, asyncio.timeout(LONG):
        budget = RedisBudget(servers.url, "x", requests="1000/s", tokens="100_000/s", grace=LONG, **POLICIES[policy])

        async def one() -> None:
            async with budget.reserve(tokens=100) as lease:
                lease.settle(tokens=50)

        await asyncio.gather(*[one() for _ in range(20)])
        await servers.demote()
        waiting = [asyncio.create_task(one()) for _ in range(50)]
        await until(lambda: servers.primary.calls() > 8)
        servers.move()
        await asyncio.gather(*waiting)

        assert servers.replica.calls() > 0
        assert 70 == budget.statistics().granted
        assert "shared" == budget.statistics().state
        await budget.aclose()
