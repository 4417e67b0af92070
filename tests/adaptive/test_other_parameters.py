"""Servers with other parameters than those of the table, on which the rule was not tuned: most of what they allow is used all the same.

The thresholds leave room: they say that no kind is lost, and `python docs/make_figures.py adaptive` how good each is.
"""

from __future__ import annotations

from typing import Any

import pytest
from helpers.adaptive import kinds, servers, table

pytestmark = pytest.mark.slow

# What is changed of a kind, and of the client.
OTHERS: dict[str, tuple[str, dict[str, float], dict[str, Any]]] = {
    "7/s": ("slow", {"limit": 7, "burst": 1}, {}),
    "37/s, falls and rises": ("bucket", {"limit": 37, "burst": 3}, {}),
    "250/s, falls and rises": ("bucket", {"limit": 250, "burst": 25, "seconds": 30}, {}),
    "800/s": ("fast", {"limit": 800, "burst": 80}, {}),
    "falls to a twentieth": ("bucket", {"fall": 0.05, "rise": 1}, {}),
    "burst of two seconds": ("slow", {"limit": 100, "burst": 200, "seconds": 120}, {}),
    "window of 3 s": ("window1", {"limit": 40, "period": 3}, {}),
    "window of 7 s": ("window1", {"limit": 40, "period": 7, "seconds": 126}, {}),
    "window of 10 s that names its end": ("window10", {"hint": 1}, {}),
    "sliding window of 0.5 s": ("sliding", {"limit": 40, "period": 0.5}, {}),
    "Retry-After of 2 s": ("retry1", {"after": 2, "limit": 30}, {}),
    "Retry-After of 17 s": ("retry30", {"after": 17, "limit": 30}, {}),
    "50 places": ("concurrency", {"places": 50, "seconds": 20}, {}),
    "counts refused requests too": ("slow", {"limit": 100, "burst": 10, "seconds": 120, "counts": 1}, {}),
    "heavy jitter": ("bucket", {}, {"jitter": "heavy"}),
    "range from 1/s to 10000/s": ("bucket", {}, {"lowest": 1, "highest": 10_000}),
    "not told how long answers took": ("bucket", {}, {"took": False}),
    "a neighbour with most of it": ("neighbour", {"limit": 37, "takes": 0.8, "burst": 3}, {}),
    "a strict bucket": ("bucket", {}, {"strategy": "strict"}),
    "a bucket of 20": ("bucket", {}, {"strategy": "bucket20"}),
    "fewer refusals": ("bucket", {}, {"refused": 0.005}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_most_is_used_with_other_parameters(name: str) -> None:
    """At 20 and 120 ms, from a tenth and ten times the limit."""
    kind, changed, options = OTHERS[name]
    chosen = table.cells(["AdaptiveRate"], [kind], [0.02, 0.12], [0.1, 10.0], (0,), changed, **options)

    seen = table.summary([table.simulate(cell)[0] for cell in chosen])

    assert seen.share > 0.6
    assert seen.share_worst > 0.4
    assert seen.refused < 6
    assert seen.refused_worst < 12


@pytest.mark.parametrize("round_trip", [0.001, 0.8])
def test_near_and_far_servers(round_trip: float) -> None:
    """From a millisecond away to the other side of the world, and back."""
    chosen = table.cells(["AdaptiveRate"], ["bucket"], [round_trip])

    seen = table.summary([table.simulate(cell)[0] for cell in chosen])

    assert seen.share > 0.6
    assert seen.refused < 6


def test_a_large_share_of_refusals_lowers_no_rate() -> None:
    """It pays for climbs; the rate stays close to what the server gives."""
    for refused in (0.5, 0.9):
        cell = table.cells(["AdaptiveRate"], ["slow"], [0.05], [1.0], refused=refused, changed={"limit": 20, "seconds": 120})[0]
        assert table.simulate(cell)[0].figures.share > 0.85


def test_long_sliding_window_is_found_from_below() -> None:
    """It refuses seconds after a climb was too high, and then gives as slowly as the climb began: the next climbs are slower."""
    cell = table.cells(["AdaptiveRate"], ["sliding"], [0.05], [0.1], changed={"period": 5, "limit": 60, "seconds": 400})[0]

    seen = table.simulate(cell)[0].figures

    assert seen.share > 0.6
    assert seen.refused < 8


def test_a_window_of_permits_finds_that_of_the_server() -> None:
    """The limiter need not be a pool."""
    cell = table.cells(["AdaptiveRate"], ["window1"], [0.05], [1.0], strategy="window")[0]

    seen = table.simulate(cell)[0].figures

    assert seen.share > 0.6
    assert seen.refused < 8


def test_limit_that_halves_each_second_is_followed() -> None:
    """From 1000/s down to 2/s; then there is something to use again."""
    server = servers.Bucket(servers.Steps(*((second, max(2, 1000 * 0.5**second)) for second in range(12))), 5)
    cell = table.cells(["AdaptiveRate"], ["bucket"], [0.05], [1.0], (0,), {"limit": 1000}, lowest=1, highest=10_000)[0]
    halving = kinds.Kind(server, 60, 1000)

    seen = table.simulate(cell, halving)[0].figures

    assert seen.share > 0.4
    assert seen.refused < 12
    assert seen.end < 4


def test_queue_before_a_server_is_not_kept_full() -> None:
    """Answers come later near the limit, which is no reason to ask for less than it."""
    cell = table.cells(["AdaptiveRate"], ["bucket"], [0.05], [1.0])[0]

    seen = table.simulate(cell, kinds.queue())[0].figures

    assert seen.share > 0.8
    assert seen.refused < 4


def test_demand_that_stops_and_comes_back() -> None:
    """Nothing is lost in the time between, and nothing runs away."""
    cell = table.cells(["AdaptiveRate"], ["bucket"], [0.05], [1.0])[0]
    wants = servers.Steps((0, 150), (40, 0), (80, 150), (120, 0), (160, 150))
    coming = kinds.Kind(servers.Bucket(100, 10), 200, 100, (kinds.Spec(demand=wants),))

    seen = table.simulate(cell, coming)[0].figures

    assert seen.share > 0.75
    assert seen.refused < 5


@pytest.mark.parametrize("every", [3, 15, 40])
def test_demand_that_switches_between_above_and_below_the_limit(every: float) -> None:
    """What is wanted is served, late where it has to be."""
    cell = table.cells(["AdaptiveRate"], ["bucket"], [0.05], [1.0])[0]

    seen = table.simulate(cell, kinds.bursts(every=every))[0].figures

    assert seen.share > 0.85
    assert seen.refused < 4
