"""Keys of a cluster of two primaries: one would accept a script that touches a key it does not declare."""

from __future__ import annotations

import asyncio

from helpers.driving import one_loop, until
from helpers.stores import RealServer, port_of_cluster
from redis.asyncio.cluster import RedisCluster

from aiorate import KeyedLimiter
from aiorate.redis import RedisLimiter

pytestmark = one_loop


async def test_keys_of_all_slots_are_served(running: RealServer) -> None:
    """A limiter is one key, so each is on one node, and all are asked for in one go."""
    with (
        RealServer("--cluster-enabled", "yes", port=port_of_cluster()) as first,
        RealServer("--cluster-enabled", "yes", port=port_of_cluster()) as second,
    ):
        nodes = first, second
        for node, slots in ((first, range(8192)), (second, range(8192, 16384))):
            node.send("CLUSTER", "ADDSLOTS", *slots)
        second.send("CLUSTER", "SET-CONFIG-EPOCH", 2)
        first.send("CLUSTER", "MEET", "127.0.0.1", second.port)
        await until(lambda: all("cluster_state:ok" in node.send("CLUSTER", "INFO") for node in nodes))
        await until(lambda: all("cluster_known_nodes:2" in node.send("CLUSTER", "INFO") for node in nodes))

        client = RedisCluster.from_url(first.url)
        keyed = KeyedLimiter(lambda key: RedisLimiter(client, f"key:{key}", "1000/s"))
        for _ in range(2):
            await asyncio.gather(*[keyed.acquire(key) for key in range(20) for _ in range(3)])
        kept = [int(node.send("DBSIZE")) for node in nodes]
        assert 20 == sum(kept)
        assert all(kept)
        await keyed.aclose()
        await client.aclose()
