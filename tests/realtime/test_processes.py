"""Processes that share one limit through a real store, and what goes wrong meanwhile. All figures come from recorded grants.

What a machine makes of processes that share nothing, each with its part of the rate, is measured beside each run: the floor.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from aiorate._bench.processes import RATE, Shares, alone, out_of_reach, together
from aiorate._bench.wire import wire
from aiorate._bench.worker import Order
from aiorate._demo.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

WAIT: dict[str, Any] = {"on_unavailable": "wait"}
LEASE: dict[str, Any] = {"lease": 0.05, "horizon": 0.05}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as made:
        yield made


def orders(count: int = 4, **changes: Any) -> list[Order]:
    return [Order(**{"url": "", "rate": RATE, "seconds": 5.0, **changes})] * count


def floor(store: Store, seconds: float = 5.0, count: int = 4) -> Shares:
    """What the machine makes of the same processes where they share nothing."""
    return together(orders(count, subject="floor", options={"processes": count}, seconds=seconds), store)


def slack(machine: Shares, window: float) -> float:
    """By how much the machine alone closes grants up."""
    return max(0.0, machine.fullest(window) - 1.0)


@pytest.mark.parametrize(("options", "calls"), [({}, 0.15), (LEASE, 0.06)], ids=["exact", "lease"])
def test_four_processes_share_a_rate(store: Store, options: dict[str, Any], calls: float) -> None:
    """All of it, evenly in time and among them, with few calls to the store."""
    shares, machine = together(orders(options=options), store), floor(store)

    assert shares.errors == {}
    assert shares.delivered() >= 0.99 * machine.delivered()
    assert shares.fullest(1.0) <= 1.01 + options.get("lease", 0.0) + slack(machine, 1.0)
    assert shares.fullest(0.1) <= 1.15 + 10 * options.get("lease", 0.0) + slack(machine, 0.1)
    assert shares.calls / len(shares.all) <= calls
    assert shares.evenness >= 0.9 * machine.evenness


@pytest.mark.parametrize("clock", [5.0, -5.0])
def test_a_wrong_wall_clock_changes_nothing(store: Store, clock: float) -> None:
    """Only durations cross the wire."""
    wrong = orders(3) + orders(1, clock=clock)

    shares, machine = together(wrong, store), floor(store)

    assert shares.delivered() >= 0.99 * machine.delivered()
    assert shares.fullest(1.0) <= 1.01 + slack(machine, 1.0)
    assert shares.evenness >= 0.9 * machine.evenness


def test_callers_that_give_up_cost_no_permit(store: Store) -> None:
    """The slot of one that is gone is its neighbour's."""
    shares = together(orders(tasks=25, rate=100.0, timeout=0.2, seconds=6.0), store)

    assert shares.delivered() >= 0.98
    assert shares.delivered(3.0) >= 0.98


def test_a_store_that_comes_back_empty_is_told_what_it_has_forgotten(store: Store) -> None:
    """No error, the rate again within half a second, and nothing granted twice."""
    events = (2.0, lambda workers: store.kill()), (3.0, lambda workers: store.start())

    shares, machine = together(orders(options=WAIT, seconds=6.0), store, *events), floor(store)

    assert shares.errors == {}
    assert shares.delivered(3.5) >= 0.97 * machine.delivered()
    assert shares.fullest(1.0) <= 1.01 + slack(machine, 1.0)


@pytest.mark.parametrize("burst", [1, 300])
def test_a_store_that_forgets_everything_is_told_at_once(store: Store, burst: int) -> None:
    """A flush, or a failover to a replica that had heard nothing."""
    options = {"burst": burst, "horizon": 0.02}

    shares = together(orders(options=options), store, (2.5, lambda workers: store.send("FLUSHALL")))
    machine = floor(store)

    most = (1.0 + (burst - 1) / RATE) * 1.05 + slack(machine, 1.0)
    assert shares.errors == {}
    assert shares.fullest(1.0) <= most


def test_the_others_go_on_when_a_busy_process_is_killed(store: Store) -> None:
    """What it had booked lapses, and that is little."""
    shares = together(orders(), store, (2.0, lambda workers: workers[0].send_signal(signal.SIGKILL)))
    machine = floor(store, count=3)

    assert len(shares.grants) == 3
    assert shares.delivered(2.02, 2.27) >= 0.9 * min(1.0, machine.delivered())


def test_each_process_gets_the_same_however_many_tasks_it_has(store: Store) -> None:
    """A process is a client, not its tasks."""
    shares = together(orders(1, tasks=150) + orders(3, tasks=15), store)

    total = len(shares.all)
    assert [pytest.approx(0.25, abs=0.05)] * 4 == [len(each) / total for each in shares.grants]


def test_a_store_that_is_far_away_costs_no_rate(store: Store) -> None:
    """50 ms there and back: slots are booked ahead of time."""
    with wire(store.port, 0.025) as long:
        far = [Order(f"redis://127.0.0.1:{long.port}/0", RATE, seconds=5.0)] * 4
        shares = together(far, store)

        assert shares.delivered(0.5) >= 0.97
        assert long.connections <= 2 * len(far)


def test_a_process_is_faster_than_any_peer(store: Store) -> None:
    """Callers do not talk to the store: eight times as fast, and fifty times with a lease."""
    peers = max(out_of_reach(store, name, {}, 1.5) for name in ("limits-fixed", "limits-moving", "pyrate-limiter", "throttled-py"))

    assert out_of_reach(store, "aiorate", {}, 1.5) >= 8 * peers
    assert out_of_reach(store, "aiorate", LEASE, 1.5) >= 50 * peers


@pytest.mark.asyncio(loop_scope="function")
async def test_one_task_alone_waits_little_longer_than_for_a_script_that_does_nothing(store: Store) -> None:
    """There is one call to the store for each permit then, and with a lease hardly any."""
    bare = min([await alone(store.url, "", {}, 2_000) for _ in range(3)])
    exact = min([await alone(store.url, "aiorate", {}, 2_000) for _ in range(3)])
    leased = min([await alone(store.url, "aiorate", LEASE, 2_000) for _ in range(3)])

    assert exact <= 1.5 * bare
    assert leased <= 0.05 * bare
