"""Keys of a cluster of two primaries or more: one would accept a script that touches a key it does not declare."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from helpers.driving import one_loop, until
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
