"""Processes that share one limit through a real store, which may fail. All figures come from recorded grants; see rounds.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fleet import RATE, together
from helpers.local_store import Store
from helpers.rounds import Figures, check, floor, in_one_round, missing, orders, slack, until_true
from helpers.wire import wire

pytestmark = pytest.mark.slow


LEASE: dict[str, Any] = {"lease": 0.05, "horizon": 0.05}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as made:
        yield made


@pytest.mark.parametrize(("options", "calls"), [({}, 0.15), (LEASE, 0.06)], ids=["exact", "lease"])
def test_four_processes_share_a_rate(store: Store, options: dict[str, Any], calls: float) -> None:
    lease = options.get("lease", 0.0)
    check(store, orders(options=options), part=0.99, most=1.01 + lease, tenth=1.15 + 10 * lease, calls=calls, even=0.9)


def test_four_processes_share_a_budget(store: Store) -> None:
    """By its tighter dimension, which are the requests, since half of the estimated tokens come back."""
    check(store, orders(subject="budget"), part=0.95, most=1.02, calls=0.2, even=0.7)


def test_requests_for_several_permits_have_the_whole_rate_too(store: Store) -> None:
    """They gather slots, and a caller that asks for ten at a time gets as much as those that ask for one."""
    same = {"tasks": 20, "seconds": 4.0}
    workers = orders(2, permits=10, **same) + orders(2, permits=1, **same)
    check(store, workers, most=1.01 + 10 / RATE, tenth=1.15 + 10 / (0.1 * RATE), even=0.7, machine=same)


@pytest.mark.parametrize(("seconds", "tasks", "part", "options"), [(0.05, 50, 0.97, {}), (0.2, 100, 0.9, {"grace": 5.0})])
def test_a_store_that_answers_late_costs_no_rate(store: Store, seconds: float, tasks: int, part: float, options: dict[str, Any]) -> None:
    """Slots are booked ahead of time, for as many waiters as come while a call is under way.

    A connection and its first answer take five times as long, which does not count as an outage.
    """
    with wire(store.port, seconds / 2) as long:
        check(store, orders(url=f"redis://127.0.0.1:{long.port}/0", tasks=tasks, options=options), part=part, since=2.0)


def test_the_others_go_on_when_a_busy_process_is_killed(store: Store) -> None:
    def measured() -> Figures:
        shares = together(orders(seconds=3.0), store, (2.0, lambda workers: workers[0].kill()))
        machine = floor(store, seconds=3.0, count=3)
        assert len(shares.grants) == 3
        assert shares.errors == {}
        return {"missing": missing(shares.delivered(2.0, 2.25), machine.delivered(2.0, 2.25), 0.9)}

    in_one_round(measured)


# The store restarts, forgets, hangs, or another takes over.


WAIT: dict[str, Any] = {"on_unavailable": "wait"}


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
