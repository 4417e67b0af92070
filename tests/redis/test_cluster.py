"""Keys of a cluster of two primaries or more: one would accept a script that touches a key it does not declare."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from helpers.driving import one_loop, until
from helpers.forks import program
from helpers.stores import RealServer, port_of_cluster
from redis.asyncio.cluster import RedisCluster

from aiorate import KeyedBudget, KeyedLimiter
from aiorate.redis import RedisBudget, RedisLimiter

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = one_loop


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


@pytest.mark.slow
async def test_a_node_that_is_killed_keeps_only_its_keys_waiting(running: RealServer) -> None:
    """Each node has its own task that asks, because a client tries a node that is down again and again.

    In a separate process, because the client loses connections as it reads the map of the cluster again.
    """
    with cluster(range(5000), range(8192, 16384), range(5000, 8192)) as nodes:
        await complete(nodes)
        assert "100 False degraded\n" == program(NODE_DOWN, PORTS=[node.port for node in nodes])


NODE_DOWN = """
import itertools, logging
import redis
from redis.asyncio.cluster import RedisCluster
from aiorate.redis import RedisBudget, RedisLimiter

logging.disable()  # that the store does not answer


async def main():
    client = RedisCluster.from_url(f"redis://127.0.0.1:{PORTS[0]}/0")
    await client.initialize()

    def limiter_on(port):
        names = map("n{}".format, itertools.count())
        name = next(name for name in names if client.get_node_from_key(f"aiorate:{name}").port == port)
        return RedisLimiter(client, name, "200/s", on_unavailable="wait")

    alive, dead = limiter_on(PORTS[0]), limiter_on(PORTS[1])
    await asyncio.gather(alive.acquire(), dead.acquire())
    redis.Redis(port=PORTS[1]).shutdown(nosave=True)
    waiting = asyncio.create_task(dead.acquire())
    while dead.statistics().state != "degraded":
        await asyncio.sleep(0.01)
    before = alive.statistics().granted
    await asyncio.gather(*[alive.acquire() for _ in range(100)])
    print(alive.statistics().granted - before, waiting.done(), dead.statistics().state)
    waiting.cancel()
    await asyncio.wait([waiting])
    await alive.aclose()
    await dead.aclose()
    await client.aclose()


asyncio.run(main())
"""
