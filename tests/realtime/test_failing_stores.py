"""Processes that share one limit while their store fails: it restarts, forgets, hangs, or another takes over; and a cluster.

As in test_processes.py, the best of a few rounds counts, beside what the machine makes of processes that share nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from helpers.fleet import RATE, together
from helpers.local_store import Store
from helpers.rounds import Figures, floor, in_one_round, missing, orders, slack, until_true
from helpers.stores import port_of_cluster
from helpers.wire import wire

from aiorate.redis import RedisLimiter

pytestmark = pytest.mark.slow

WAIT: dict[str, Any] = {"on_unavailable": "wait"}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as made:
        yield made


def test_a_store_restarted_empty_is_told_its_state(store: Store) -> None:
    """No error, the rate again within half a second, and nothing granted twice."""

    def measured() -> Figures:
        events = (2.0, lambda workers: store.kill()), (3.0, lambda workers: store.start())
        shares, machine = together(orders(options=WAIT, seconds=6.0), store, *events), floor(store)
        assert shares.errors == {}
        return {
            "missing": missing(shares.delivered(3.5), machine.delivered(), 0.97),
            "any 1 s": (shares.fullest(1.0), 1.01 + slack(machine, 1.0)),
        }

    in_one_round(measured)


@pytest.mark.parametrize("burst", [1, 300])
def test_a_store_that_forgets_everything_is_told_at_once(store: Store, burst: int) -> None:
    """A flush, or a failover to a replica that had heard nothing."""

    def measured() -> Figures:
        shares = together(orders(options={"burst": burst}), store, (2.5, lambda workers: store.send("FLUSHALL")))
        machine = floor(store)
        assert shares.errors == {}
        bound = 1.0 + (burst - 1) / RATE
        return {
            "missing": missing(shares.delivered(), machine.delivered(), 0.97),
            "any 1 s": (shares.fullest(1.0), 1.05 * bound + slack(machine, 1.0)),
        }

    in_one_round(measured)


def test_a_replica_that_takes_over_is_told_what_it_has_missed(store: Store) -> None:
    """The primary dies, its replica is promoted, and the address leads there."""

    def measured() -> Figures:
        with Store() as primary, Store() as replica, wire(primary.port) as address:

            def follow(workers: object) -> None:
                replica.send("REPLICAOF", "127.0.0.1", str(primary.port))
                until_true(lambda: "master_link_status:up" in replica.send("INFO", "replication"))

            def fail(workers: object) -> None:
                primary.kill()
                replica.send("REPLICAOF", "NO", "ONE")
                address.target = replica.port

            shared = orders(url=f"redis://127.0.0.1:{address.port}/0", options=WAIT, seconds=6.0)
            shares, machine = together(shared, replica, (0.2, follow), (2.0, fail)), floor(replica)
            assert shares.errors == {}
            return {
                "missing": missing(shares.delivered(2.5), machine.delivered(), 0.97),
                "any 1 s": (shares.fullest(1.0), 1.05 + slack(machine, 1.0)),
            }

    in_one_round(measured)


@pytest.mark.parametrize(("policy", "away"), [("raise", 0.3), ("raise", 2.0), ("wait", 2.0), ("local", 2.0), ("open", 2.0)])
def test_a_primary_that_is_demoted_is_left_for_its_replica(policy: str, away: float) -> None:
    """It lives on and answers READONLY, so connections to it stay open. Within a second of the move all processes share the new one."""
    options: dict[str, Any] = {"on_unavailable": policy, **({"local_share": 0.25} if policy == "local" else {})}
    moved = 2.0 + away

    def measured() -> Figures:
        with Store() as primary, Store() as replica, wire(primary.port) as address:

            def follow(workers: object) -> None:
                replica.send("REPLICAOF", "127.0.0.1", str(primary.port))
                until_true(lambda: "master_link_status:up" in replica.send("INFO", "replication"))

            def demote(workers: object) -> None:
                replica.send("REPLICAOF", "NO", "ONE")
                primary.send("REPLICAOF", "127.0.0.1", str(replica.port))

            def move(workers: object) -> None:
                address.target = replica.port

            shared = orders(url=f"redis://127.0.0.1:{address.port}/0", options=options, seconds=moved + 3.0)
            shares, machine = together(shared, replica, (0.2, follow), (2.0, demote), (moved, move)), floor(replica)
            assert set(shares.errors) <= ({"EngineUnavailable"} if policy == "raise" and away > 1 else set())
            late = [instant for instant in shares.all if instant >= shares.begin + round((moved + 1.0) * 1e9)]
            return {
                "missing": missing(shares.delivered(moved + 1.0), machine.delivered(), 0.97),
                "any 1 s, once it moved": (replace(shares, grants=[late]).fullest(1.0), 1.05 + slack(machine, 1.0)),
            }

    in_one_round(measured)


@contextmanager
def cluster() -> Iterator[list[Store]]:
    """Two primaries, each with half of the slots."""
    buses = [port_of_cluster(), port_of_cluster()]
    first, second = (
        Store(*("--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-announce-ip", "127.0.0.1")) for bus in buses
    )
    with first, second:
        first.send("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
        second.send("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
        first.send("CLUSTER", "MEET", "127.0.0.1", str(second.port), str(buses[1]))
        for each in (first, second):
            until_true(partial(_is_whole, each))
        yield [first, second]


def _is_whole(store: Store) -> bool:
    state = store.send("CLUSTER", "INFO")
    return "cluster_state:ok" in state and "cluster_known_nodes:2" in state


def owner(nodes: list[Store], name: str) -> Store:
    """Of the two, the one that holds the limiter of that name."""
    return nodes[int(nodes[0].send("CLUSTER", "KEYSLOT", f"aiorate:{name}")) >= 8192]


def test_a_cluster_of_two_primaries_serves_a_limit() -> None:
    """The client is told one of them, and the limiter is on the other."""

    def measured() -> Figures:
        with cluster() as nodes:
            holder = owner(nodes, "bench")
            (other,) = (node for node in nodes if node is not holder)
            shared = orders(2, url=other.url, options={"client": "redis-py cluster"}, seconds=3.0)
            shares, machine = together(shared, holder), floor(holder, seconds=3.0, count=2)
            assert shares.errors == {}
            assert shares.calls > 0
            return {
                "missing": missing(shares.delivered(0.5), machine.delivered(0.5), 0.97),
                "any 1 s": (shares.fullest(1.0), 1.01 + slack(machine, 1.0)),
                "unevenness": missing(shares.evenness, machine.evenness, 0.9),
            }

    in_one_round(measured)


def test_one_client_of_a_cluster_serves_limits_on_both_primaries() -> None:
    """One call for both would have to go to two servers."""
    from redis.asyncio.cluster import RedisCluster

    async def main(nodes: list[Store]) -> list[list[float]]:
        names = [next(name for name in map(str, range(100)) if owner(nodes, name) is node) for node in nodes]
        client = RedisCluster.from_url(nodes[0].url)
        limiters = [RedisLimiter(client, name, "200/s") for name in names]
        granted: list[list[float]] = [[], []]
        loop = asyncio.get_running_loop()

        async def ask(place: int) -> None:
            for _ in range(20):
                await limiters[place].acquire()
                granted[place].append(loop.time())

        await asyncio.gather(*(ask(place) for place in (0, 1) for _ in range(5)))
        for limiter in limiters:
            await limiter.aclose()
        await client.aclose()
        return granted

    with cluster() as nodes:
        granted = asyncio.run(main(nodes))

        for each, node in zip(granted, nodes, strict=True):
            assert len(each) == 100
            assert each[-1] - each[0] >= 0.99 * 99 / 200 - 0.01
            assert node.calls() > 0


@pytest.mark.parametrize("seconds", [0.3, 1.5])
def test_a_store_that_hangs_is_waited_for(store: Store, seconds: float) -> None:
    """Connections stay open and nothing comes, for less than a call may take, and for longer. Nothing is booked twice."""

    def measured() -> Figures:
        with wire(store.port) as line:
            events = (1.5, lambda workers: setattr(line, "hangs", True)), (1.5 + seconds, lambda workers: setattr(line, "hangs", False))
            shared = orders(url=f"redis://127.0.0.1:{line.port}/0", options=WAIT)
            shares, machine = together(shared, store, *events), floor(store)
            assert shares.errors == {}
        return {
            "missing": missing(shares.delivered(2.0 + seconds), machine.delivered(), 0.97),
            "any 1 s": (shares.fullest(1.0), 1.01 + slack(machine, 1.0)),
        }

    in_one_round(measured)
