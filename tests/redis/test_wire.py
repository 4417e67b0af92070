"""Real connections: clients, URLs, servers that refuse, answer garbage, die or never answer, and clusters. Nothing is early; all ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic_ns
from typing import Any

import pytest
import redis.asyncio
import valkey.asyncio
from helpers.driving import LONG, others, until
from helpers.stores import RealServer, fake_server, port_of_cluster
from helpers.wire import wire
from redis.asyncio.cluster import RedisCluster

from aiorate import EngineUnavailable, KeyedBudget, KeyedLimiter, WaitTooLong
from aiorate.redis import RedisBudget, RedisLimiter

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


# Clusters.


@contextmanager
def cluster(*slots: range) -> Iterator[list[RealServer]]:
    """A primary for each range, that know of each other soon. One that is down does not keep the others from answering."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                RealServer(
                    *("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "500"),
                    port=port_of_cluster(),
                )
            )
            for _ in slots
        ]
        for epoch, (node, its) in enumerate(zip(nodes, slots, strict=True), 1):
            node.send("CLUSTER", "ADDSLOTS", *its)
            node.send("CLUSTER", "SET-CONFIG-EPOCH", epoch)
            if node is not nodes[0]:
                nodes[0].send("CLUSTER", "MEET", "127.0.0.1", node.port)
        yield nodes


async def complete(nodes: list[RealServer]) -> None:
    """Return when each node knows all others, and all slots."""
    for hint in ("cluster_state:ok", f"cluster_known_nodes:{len(nodes)}"):
        await until(lambda hint=hint: all(hint in node.send("CLUSTER", "INFO") for node in nodes))


async def test_keys_of_all_slots_are_served(running: RealServer) -> None:
    """A limiter is one key, and so is a budget whatever its dimensions: each is on one node, and all are asked for in one go."""
    with cluster(range(8192), range(8192, 16384)) as nodes:
        await complete(nodes)
        client = RedisCluster.from_url(nodes[0].url)
        limiters = KeyedLimiter(lambda key: RedisLimiter(client, f"key:{key}", "1000/s", on_unavailable="wait"))
        budgets = KeyedBudget(lambda key: RedisBudget(client, f"b:{key}", requests="1000/s", tokens="9000/s", on_unavailable="wait"))

        async def one(key: int) -> None:
            await limiters.acquire(key)
            async with budgets.reserve(key, tokens=9) as lease:
                lease.settle(tokens=1)

        for _ in range(2):
            await asyncio.gather(*[one(key) for key in range(20) for _ in range(3)])
        assert all(node.calls() for node in nodes)
        await limiters.aclose()
        await budgets.aclose()
        await client.aclose()


# A wrong password, a store far away, and one that swallows what it is sent.


class Own(redis.asyncio.Redis):
    """As `Wrapped`, with the retries that the constructor of redis-py has by default."""


def clients_at(port: int, **login: Any) -> dict[str, Any]:
    """Every kind of client that may be given."""
    at = {"host": "127.0.0.1", "port": port, **login}
    credentials = f":{login['password']}@" if login else ""
    return {
        "url": f"redis://{credentials}127.0.0.1:{port}/0",
        "redis-py": redis.asyncio.Redis(**at),
        "redis-py, from_url": redis.asyncio.Redis.from_url(f"redis://{credentials}127.0.0.1:{port}/0"),
        "redis-py, a pool": redis.asyncio.Redis(connection_pool=redis.asyncio.ConnectionPool(**at)),
        "redis-py, one connection": redis.asyncio.Redis(single_connection_client=True, **at),
        "redis-py, a subclass": Own(**at),
        "valkey-py": valkey.asyncio.Valkey(**at),
    }


async def test_a_wrong_password_is_a_refusal_with_every_client(running: RealServer) -> None:
    """redis-py repeats it until the call is given up, so it counted as an outage: "open" granted all, and "wait" waited for ever."""
    with RealServer() as server, RealServer("--cluster-enabled", "yes", port=port_of_cluster()) as node:
        for each in (server, node):
            each.send("CONFIG", "SET", "requirepass", "right")
        for login in ({"password": "wrong"}, {}):
            sources = clients_at(server.port, **login) | {"cluster": RedisCluster(host="127.0.0.1", port=node.port, **login)}
            for name, source in sources.items():
                plain = name in ("url", "redis-py")
                for policy, scope in [("open", "loop"), ("wait", "loop"), *([("open", "process")] if plain else [])]:
                    options: Any = {"on_unavailable": policy, "scope": scope, "grace": 0.01 if policy == "open" else 3600}
                    limiter, budget = RedisLimiter(source, "x", "10/s", **options), RedisBudget(source, "y", tokens="10/s", **options)
                    with pytest.raises(EngineUnavailable, match="the store refuses"):
                        await limiter.acquire()
                    with pytest.raises(EngineUnavailable, match="the store refuses"):
                        await budget.reserve(tokens=1).__aenter__()
                    await limiter.aclose()
                    await budget.aclose()
                if not isinstance(source, str):
                    await source.aclose()


async def test_a_store_far_away_is_no_outage_at_the_first_call(store: RealServer) -> None:
    """Each answer while it connects is a sign of life. There are half a dozen, each of which takes 0.4 s here."""

    async def first(name: str, source: Any) -> None:
        limiter = RedisLimiter(source, name, "100/s")
        assert await limiter.acquire() >= 0.4, name
        assert "shared" == limiter.statistics().state, name
        await limiter.aclose()
        if not isinstance(source, str):
            await source.aclose()

    store.send("SCRIPT", "FLUSH")
    with wire(store.port, 0.2) as long:
        await asyncio.gather(*[first(*each) for each in clients_at(long.port).items()])


async def test_max_wait_of_0_is_answered_within_a_second_by_a_store_that_swallows(store: RealServer) -> None:
    with wire(store.port) as line:
        for scope in ("loop", "process"):
            limiter = RedisLimiter(f"redis://127.0.0.1:{line.port}/0", scope, "100/s", on_unavailable="wait", scope=scope)  # type: ignore[arg-type]
            await limiter.acquire()
            line.hangs = True
            for pause in (0.0, 0.3, 0.6):
                await asyncio.sleep(pause)
                began = monotonic_ns()
                with pytest.raises(WaitTooLong):
                    await limiter.acquire(max_wait=0)
                assert monotonic_ns() - began <= 1_500_000_000, (scope, pause)  # half a second for a busy machine
            line.hangs = False
            await limiter.aclose()
