"""Processes that share a RedisBudget through a real store. All figures come from recorded reservations.

The best of a few rounds counts, where other programs keep the machine busy; see rounds.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.local_store import Store
from helpers.reservations import Order, together
from helpers.rounds import Figures, floor, in_one_round, missing, slack

pytestmark = pytest.mark.slow

SLACK = 0.005


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as made:
        yield made


def bound(rate: float, largest: int, window: float) -> float:
    """The most of a dimension without a burst."""
    return largest + rate * (window + max(SLACK, 0.5 * largest / rate))


CASES = {  # requests and tokens per second, estimates, seconds in all, and from when on everything is in its stride
    "fast, by requests": (500, 200_000, (200, 600), 5.0, 1.0),
    "fast, by tokens": (500, 100_000, (400, 1_200), 6.0, 1.5),
    "slow, by requests": (10, 8_000, (200, 600), 20.0, 2.0),
}


@pytest.mark.parametrize("case", CASES)
def test_four_processes_share_a_budget(store: Store, case: str) -> None:
    """All of the tighter dimension, evenly, within both bounds, and with one call for five reservations at most."""
    requests, tokens, estimates, seconds, stride = CASES[case]
    dimensions = {"requests": f"{requests}/s", "tokens": f"{tokens}/s"}
    order = Order(store.url, dimensions, estimates, seconds, hold=0.03 if requests > 100 else 0.2)

    def measured() -> Figures:
        shares, machine = together(store, order), floor(store, seconds=3.0)
        late = slack(machine, 1.0)  # by which the machine alone closes grants up
        most, used = shares.fullest(1.0), shares.sums(stride, seconds)
        use = max(used[0] / requests, used[1] / tokens) / (seconds - stride)
        reserved = [len(each) for each in shares.grants]
        return {
            "unused": missing(use, machine.delivered(), 0.95),
            "requests in any 1 s": (most[0] / bound(requests, 1, 1.0), 1.01 + late),
            # Where tokens are the tighter dimension, those that are used vary about half of the estimates.
            "tokens in any 1 s": (most[1] / bound(tokens, estimates[1], 1.0), late + (1.01 if "requests" in case else 1.06)),
            "calls per reservation": (shares.calls / len(shares.all), 0.2),
            "unevenness": (1.0 - min(reserved) / max(reserved), 0.3),
        }

    in_one_round(measured)


def test_a_killed_process_loses_what_it_had_booked(store: Store) -> None:
    """Its bookings lapse, and its open estimates stand: a part of a second, and then the others have all of it."""
    dimensions = {"requests": "500/s", "tokens": "1_000_000/s"}
    order = Order(store.url, dimensions, (200, 600), seconds=5.0)

    def measured() -> Figures:
        shares = together(store, order, event=(2.0, lambda workers: workers[0].kill()))
        assert len(shares.grants) == 3
        return {
            "unused in the second after": (1.0 - shares.sums(2.0, 3.0)[0] / 500, 0.1),
            "unused later": (1.0 - shares.sums(3.0, 5.0)[0] / 1000, 0.05),
        }

    in_one_round(measured)
