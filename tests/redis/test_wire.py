"""Real connections: clients, URLs, servers that refuse, answer garbage, die, or never answer.

What is said of time here holds on any machine: never early, the bound, and that it comes at all.
"""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio
import valkey.asyncio
from helpers.driving import LONG, others
from helpers.stores import RealServer, fake_server

from aiorate import EngineUnavailable, KeyedBudget, KeyedLimiter
from aiorate.redis import RedisBudget, RedisLimiter

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.asyncio


class Wrapped(redis.asyncio.Redis):
    """A client of the user's: what it does with commands is its own business, so they go through it."""


CLIENTS: dict[str, Callable[[str], Any]] = {
    "redis-py": redis.asyncio.Redis.from_url,
    "redis-py, text": lambda url: redis.asyncio.Redis.from_url(url, decode_responses=True),
    "redis-py, RESP2": lambda url: redis.asyncio.Redis.from_url(url, protocol=2),
    "redis-py, one connection in all": lambda url: redis.asyncio.Redis.from_url(url, max_connections=1),
    "redis-py, one connection for all": lambda url: redis.asyncio.Redis.from_url(url, single_connection_client=True),
    "redis-py, a subclass": Wrapped.from_url,
    "valkey-py": valkey.asyncio.Valkey.from_url,
    "url": lambda url: url,
    "valkey url": lambda url: url.replace("redis://", "valkey://"),
}


def ours() -> list[asyncio.Task[Any]]:
    """The tasks that ask a store."""
    return [task for task in others() if task.get_name() == "aiorate-redis"]


async def test_every_kind_of_client_works(store: RealServer) -> None:
    """As it is: nothing of it is changed, and a client that was given is not closed. A script that is not loaded, or flushed, is sent."""
    for name, made in CLIENTS.items():
        store.send("FLUSHALL")
        store.send("SCRIPT", "FLUSH")
        store.send("CONFIG", "RESETSTAT")
        source = made(store.url)
        limiter, budget = RedisLimiter(source, "x", "1000/s"), RedisBudget(source, "y", requests="1000/s", tokens="100_000/s")
        began = monotonic_ns()
        await asyncio.gather(*[limiter.acquire() for _ in range(20)])
        assert monotonic_ns() - began >= 19_000_000, name
        assert 1 == store.calls("eval"), name
        assert 1 <= store.calls("evalsha") <= 20, name
        for _ in range(2):
            store.send("SCRIPT", "FLUSH")
            await limiter.acquire()
        assert 3 == store.calls("eval"), name
        async with budget.reserve(tokens=10) as lease:
            lease.settle(tokens=5)
        await limiter.aclose()
        await budget.aclose()
        assert not ours(), name
        assert isinstance(source, str) or await source.ping(), name
        if not isinstance(source, str):
            await source.aclose()


async def test_a_server_that_answers_garbage_or_nothing_is_an_outage() -> None:
    """Something else listens on that port. Nothing is granted for it, and nobody hangs."""
    for reply in (b"+OK\r\n", b"$5\r\nhello\r\n", b":1\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\xff\r\n", b"", None):

        async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: bytes | None = reply) -> None:
            if reply is None:
                await asyncio.Event().wait()
            while await reader.read(65536) and reply:
                writer.write(reply * 8)
                await writer.drain()

        async with fake_server(garbage) as url:
            limiter = RedisLimiter(url, "x", "10/s", grace=0.02)
            with pytest.raises(EngineUnavailable):
                await limiter.acquire()
            await limiter.aclose()
            assert not ours(), reply


async def test_budgets_and_limiters_of_a_client_go_in_one_call(store: RealServer) -> None:
    """Whatever their scripts. A server that has lost these hears each once, not once for each key."""
    client = redis.asyncio.Redis.from_url(store.url)
    budgets = KeyedBudget(lambda key: RedisBudget(client, f"budget:{key}", requests="1000/s", tokens="100_000/s"))
    limiters = KeyedLimiter(lambda key: RedisLimiter(client, f"limiter:{key}", "1000/s"))

    async def one(key: int) -> None:
        async with budgets.reserve(key, tokens=3):
            await limiters.acquire(key)

    async with asyncio.timeout(LONG):
        await asyncio.gather(*[one(key) for key in range(50)])
    assert store.calls("eval") <= 20
    assert 1 == sum("evalsha" in line or "cmd=eval" in line for line in store.send("CLIENT", "LIST").splitlines())
    await budgets.aclose()
    await limiters.aclose()
    await client.aclose()
