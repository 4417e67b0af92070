"""Processes at unlike distances from a real store, and one that is cut off from it: worker processes, and a wire that is long or hangs.

As in test_processes.py, the best of a few rounds counts, beside what the machine makes of processes that share nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers.fleet import Order, Shares, together
from helpers.local_store import Store
from helpers.rounds import Figures, in_one_round
from helpers.wire import wire

pytestmark = pytest.mark.slow

SETTLED = 4.0  # seconds after which shares count


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as made:
        yield made


def of_each(shares: Shares, since: float, until: float) -> list[int]:
    """How many permits each process was granted, from one second to another."""
    begin, end = (shares.begin + round(seconds * 1e9) for seconds in (since, until))
    return [sum(begin <= instant < end for instant in grants) for grants in shares.grants]


@pytest.mark.parametrize(("rate", "trip"), [(50.0, 0.2), (200.0, 0.05), (1000.0, 0.02), (1000.0, 0.2)])
def test_a_process_far_away_has_the_share_of_the_others(store: Store, rate: float, trip: float) -> None:
    """It had 0.90 of 50/s at 200 ms, 0.87 of 200/s at 50 ms, 0.48 of 1000/s at 20 ms, and 0.13 of 1000/s at 200 ms."""
    seconds = SETTLED + (10.0 if rate < 100 else 5.0)

    def measured() -> Figures:
        with wire(store.port, trip / 2) as long:
            near = Order(store.url, rate, seconds=seconds, options={"on_unavailable": "wait"})
            far = replace(near, url=f"redis://127.0.0.1:{long.port}/0")
            shares = together([far, near, near, near], store)
        alone = together([Order("", rate, "floor", {"processes": 4}, seconds=seconds)] * 4, store)
        assert shares.errors == {}
        counts = of_each(shares, SETTLED, seconds)
        delivered, machine = (each.delivered(SETTLED) for each in (shares, alone))
        return {
            "off a quarter": (max(abs(count / sum(counts) - 0.25) for count in counts), 0.07),
            "missing": (1.0 - delivered / min(machine, 1.0), 0.05),
        }

    in_one_round(measured)


@pytest.mark.parametrize(
    ("outages", "grace"), [([(1.0, 5.0)], 1.0), ([(1.0 + 2 * each, 2.5 + 2 * each) for each in range(5)], 0.2)], ids=["once", "flapping"]
)
def test_local_permits_of_a_process_cut_off_are_paid_back(store: Store, outages: list[tuple[float, float]], grace: float) -> None:
    """Two processes of which one was cut off from 1 to 5 s were granted 1.15 to 1.42 of the rate until 9 s."""
    rate, begin, end = 300.0, outages[0][0], outages[-1][1]
    end = max(end + 1.0, 2 * end - begin) if len(outages) == 1 else end + 1.5
    options: dict[str, Any] = {"on_unavailable": "local", "local_share": 0.5, "grace": grace}

    def measured() -> Figures:
        with wire(store.port) as line:
            near = Order(store.url, rate, seconds=end, options=options)
            cut_off = replace(near, url=f"redis://127.0.0.1:{line.port}/0")
            hangs = [(at, lambda _: setattr(line, "hangs", True)) for at, _ in outages]
            flows = [(at, lambda _: setattr(line, "hangs", False)) for _, at in outages]
            shares = together([cut_off, near], store, *hangs, *flows)
        assert shares.errors == {}
        local = of_each(shares, *outages[0])[0]
        return {
            "of the rate": (shares.delivered(begin, end), 1.05),
            "missing": (0.7 - shares.delivered(begin, end), 0.0),
            "no local permits": (1.0 - local, 0.0),
        }

    in_one_round(measured)
