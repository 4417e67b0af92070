"""AdaptiveRate against models of servers: the table over round trips and starts, and servers on whose parameters it was not tuned.

The figures are the same on any machine; `python docs/make_figures.py adaptive` prints them.
"""

from __future__ import annotations

from typing import Any

import pytest
from helpers.adaptive import servers, table

pytestmark = pytest.mark.slow

# The least share of what was allowed and the most refused (%), as means over the cells and in the worst of them.
BOUNDS: dict[str, tuple[float, float, float, float]] = {
    "bucket": (0.90, 0.72, 1.9, 5),
    "window1": (0.88, 0.66, 3, 7),
    "window10": (0.93, 0.85, 6, 11),
    "sliding": (0.90, 0.78, 2, 5),
    "concurrency": (0.78, 0.60, 1.8, 6),
    "varied": (0.62, 0.5, 2.3, 7),
    "neighbour": (0.86, 0.70, 2.8, 6),
    "retry1": (0.80, 0, 1.2, 100),
    "retry30": (0.72, 0, 0.6, 100),
    "retry89": (0.60, 0, 0.6, 100),
    "equal": (0.93, 0, 3.5, 100),
    "late": (0.93, 0, 3.5, 100),
    "apart": (0.93, 0, 3.5, 100),
    "equal1": (0.88, 0.75, 6, 10),
    "equal10": (0.93, 0.85, 5, 10),
    "slow": (0.80, 0, 6, 100),
    "fast": (0.88, 0, 3, 100),
    "unlimited": (0, 0, 0, 0),
    "demand": (0, 0, 100, 100),
}
FAIR = {"equal": 0.92, "late": 0.88, "apart": 0.65, "equal1": 0.8, "equal10": 0.65}  # Jain's index, as a mean


@pytest.mark.parametrize("kind", servers.KINDS)
def test_most_of_what_is_allowed_is_used(kind: str) -> None:
    """At the cost of few refusals."""
    share, share_worst, refused, refused_worst = BOUNDS[kind]
    seen = table.summary([table.simulate(cell)[0] for cell in table.cells(["AdaptiveRate"], [kind])])

    assert seen.share >= share
    assert seen.share_worst >= share_worst
    assert seen.refused <= refused
    assert seen.refused_worst <= refused_worst
    assert (seen.jain or 1) >= FAIR.get(kind, 0)
    if kind == "bucket":  # changes are found in time, from every start and at every distance
        assert seen.fall is not None
        assert seen.fall <= 10
        assert seen.rise is not None
        assert seen.rise <= 25
    if kind == "unlimited":  # the ceiling is reached from 1 % of it
        assert seen.reached <= 20
    if kind == "demand":  # 20/s under a limit of 100/s do not raise the rate much
        assert seen.top < 200


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
    """At 20 ms, from a tenth and ten times the limit."""
    kind, changed, options = OTHERS[name]
    chosen = table.cells(["AdaptiveRate"], [kind], [0.02], [0.1, 10.0], changed, **options)

    seen = table.summary([table.simulate(cell)[0] for cell in chosen])

    assert seen.share > 0.6
    assert seen.share_worst > 0.4
    assert seen.refused < 6
    assert seen.refused_worst < 12


@pytest.mark.parametrize("round_trip", [0.001, 0.8])
def test_near_and_far_servers(round_trip: float) -> None:
    """From a millisecond away to the other side of the world, and back."""
    seen = table.summary([table.simulate(cell)[0] for cell in table.cells(["AdaptiveRate"], ["bucket"], [round_trip])])

    assert seen.share > 0.6
    assert seen.refused < 6


def test_servers_of_other_forms() -> None:
    """Each with the least share and the most refused (%)."""
    halving = servers.Steps(*((second, max(2, 1000 * 0.5**second)) for second in range(12)))  # down to 2/s
    coming = servers.Steps((0, 150), (40, 0), (80, 150), (120, 0), (160, 150))
    outage = servers.Steps((0, 100), (60, 0), (180, 100))
    long_window = {"period": 5, "limit": 60, "seconds": 400}  # it refuses seconds after a climb was too high
    rows: list[tuple[float, float, dict[str, Any], servers.Kind | None]] = [
        (0.85, 100, {"refused": 0.5, "kinds": ["slow"], "changed": {"limit": 20, "seconds": 120}}, None),
        (0.85, 100, {"refused": 0.9, "kinds": ["slow"], "changed": {"limit": 20, "seconds": 120}}, None),
        (0.6, 8, {"kinds": ["sliding"], "starts": [0.1], "changed": long_window}, None),
        (0.6, 8, {"kinds": ["window1"], "strategy": "window"}, None),
        (0.4, 12, {"changed": {"limit": 1000}, "lowest": 1, "highest": 10_000}, servers.Kind(servers.Bucket(halving, 5), 60, 1000)),
        (0.8, 4, {}, servers.Kind(servers.Queue(100, 50), 120, 100)),
        (0.75, 5, {}, servers.wanting(coming, 200)),
        *((0.85, 4, {}, bursts(every)) for every in (3, 15, 40)),
        (0.65, 4, {"lowest": 2}, servers.Kind(servers.Bucket(outage, 10), 300, 100)),
        # Each refused request prolongs the penalty, so that only ever rarer ones find its end.
        (0.2, 2, {"lowest": 2}, servers.Kind(servers.Penalty(100, 10, 3, prolongs=True), 600, 100)),
        (0.1, 2, {"lowest": 2}, servers.Kind(servers.Penalty(100, 10, 5, prolongs=True), 600, 100)),
        (0.002, 30, {"lowest": 2}, servers.Kind(servers.Penalty(100, 10, 60, prolongs=True), 900, 100)),
    ]
    for row, (share, refused, options, kind) in enumerate(rows):
        (cell,) = table.cells(["AdaptiveRate"], **{"kinds": ["bucket"], "round_trips": [0.05], "starts": [1.0], **options})
        seen = table.simulate(cell, kind)[0]
        assert seen.share > share, row
        assert seen.refused < refused, row
        assert seen.end < 4 or options.get("lowest") != 1, row


def bursts(every: int) -> servers.Kind:
    """Demand that switches between 1.5 and 0.2 of the limit."""
    return servers.wanting(servers.Steps(*((n * every, 20 if n % 2 else 150) for n in range(180 // every))), 180)
