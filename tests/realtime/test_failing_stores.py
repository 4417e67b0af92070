"""Processes that share one limit while their store fails: it restarts, forgets, hangs, or another takes over.

As in test_processes.py, the best of a few rounds counts, beside what the machine makes of processes that share nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fleet import RATE, together
from helpers.local_store import Store
from helpers.rounds import Figures, check, floor, in_one_round, missing, orders, slack, until_true
from helpers.wire import wire

pytestmark = pytest.mark.slow

WAIT: dict[str, Any] = {"on_unavailable": "wait"}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as made:
        yield made


def test_a_store_restarted_empty_is_told_its_state(store: Store) -> None:
    events = (2.0, lambda workers: store.kill()), (3.0, lambda workers: store.start())
    check(store, orders(options=WAIT, seconds=6.0), *events, since=3.5)


@pytest.mark.parametrize("burst", [1, 300])
def test_a_store_that_forgets_everything_is_told_at_once(store: Store, burst: int) -> None:
    bound = 1.0 + (burst - 1) / RATE
    check(store, orders(options={"burst": burst}), (2.5, lambda workers: store.send("FLUSHALL")), most=1.05 * bound)


@pytest.mark.parametrize("seconds", [0.3, 1.5])
def test_a_store_that_hangs_is_waited_for(store: Store, seconds: float) -> None:
    """Connections stay open and nothing comes, for less than a call may take, and for longer. Nothing is booked twice."""
    with wire(store.port) as line:
        events = (1.5, lambda workers: setattr(line, "hangs", True)), (1.5 + seconds, lambda workers: setattr(line, "hangs", False))
        check(store, orders(url=f"redis://127.0.0.1:{line.port}/0", options=WAIT), *events, since=2.0 + seconds)


def follow(replica: Store, primary: Store) -> None:
    replica.send("REPLICAOF", "127.0.0.1", str(primary.port))
    until_true(lambda: "master_link_status:up" in replica.send("INFO", "replication"))


def test_a_replica_that_takes_over_is_told_what_it_has_missed() -> None:
    def measured() -> Figures:
        with Store() as primary, Store() as replica, wire(primary.port) as address:

            def fail(workers: object) -> None:
                primary.kill()
                replica.send("REPLICAOF", "NO", "ONE")
                address.target = replica.port

            shared = orders(url=f"redis://127.0.0.1:{address.port}/0", options=WAIT, seconds=6.0)
            shares = together(shared, replica, (0.2, lambda workers: follow(replica, primary)), (2.0, fail))
            machine = floor(replica)
            assert shares.errors == {}
            return {
                "missing": missing(shares.delivered(2.5), machine.delivered(), 0.97),
                "any 1 s": (shares.fullest(1.0), 1.05 + slack(machine, 1.0)),
            }

    in_one_round(measured)
