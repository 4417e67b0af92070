"""The fair queue by itself: shares, order, flows that come and go, the copy for a rehearsal."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from helpers.samples import examples, sampled
from helpers.turns import furthest
from hypothesis import given
from hypothesis import strategies as st

from aiorate.waiting.fair_queue import FairQueue, Flow


class Backlog:
    """Flows that always have a request."""

    def __init__(self, weights: list[int], sizes: list[int], seed: int = 0) -> None:
        self.random, self.sizes = Random(seed), sizes
        self.queue: FairQueue[tuple[int, int]] = FairQueue()
        self.flows = [Flow(weight) for weight in weights]
        for number in self.random.sample(range(len(weights)), len(weights)):
            self.ask(number)

    def ask(self, number: int) -> None:
        permits = self.random.choice(self.sizes)
        self.queue.join(self.flows[number], permits, (number, permits))

    def serve(self) -> tuple[int, int]:
        """Grant the next request; its flow asks again at once."""
        found = self.queue.first()
        assert found is not None
        flow, (number, permits) = found
        self.queue.grant(flow)
        self.ask(number)
        return number, permits


@sampled
@examples(300)
@given(
    weights=st.lists(st.one_of(st.integers(1, 5), st.integers(1, 1000)), min_size=2, max_size=20),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
)
def test_shares_follow_weights_over_any_hundred_grants(weights: list[int], sizes: list[int], seed: int) -> None:
    """Within one largest request for two flows, within two for more."""
    backlog = Backlog(weights, sizes, seed)

    grants = [backlog.serve() for _ in range(400)]

    assert furthest(grants, dict(enumerate(weights))) <= max(sizes) * (1 if len(weights) == 2 else 2)


@pytest.mark.parametrize("weights", [[1] * 7, [1, 2, 3, 4, 5, 6]])
def test_shares_do_not_drift(weights: list[int]) -> None:
    """No rounding error adds up in 20 000 grants."""
    backlog = Backlog(weights, [1, 2, 5, 11])
    got = [0] * len(weights)
    for _ in range(20_000):
        number, permits = backlog.serve()
        got[number] += permits

    share = Fraction(sum(got), sum(weights))
    assert max(abs(mine - share * weight) for mine, weight in zip(got, weights, strict=True)) <= 11


def test_flows_of_equal_weight_go_in_order_of_arrival() -> None:
    queue: FairQueue[int] = FairQueue()
    sizes = [50, 1, 7, 1000, 3]
    for number, permits in enumerate(sizes):
        queue.join(Flow(1), permits, number)

    order: list[int] = []
    while (found := queue.first()) is not None:
        queue.grant(found[0])
        order.append(found[1])

    assert order == [0, 1, 2, 3, 4]


def test_a_flow_that_withdraws_and_returns_has_lost_nothing() -> None:
    """As often as it likes, as long as no permit is granted in between."""
    queue: FairQueue[str] = FairQueue()
    one, two = Flow(1), Flow(1)
    queue.join(one, 10, "one")
    queue.join(two, 10, "two")
    queue.grant(one)
    queue.join(one, 10, "one")
    for _ in range(1000):
        queue.leave(two)
        queue.join(two, 10, "two")

    assert queue.first() == (two, "two")
    assert queue.length == 2


def test_a_flow_that_exchanges_its_request_keeps_its_place() -> None:
    """Among equals too: a line whose first request changes must not stand behind all others each time. A grant ends that."""
    queue: FairQueue[str] = FairQueue()
    one, two = Flow(1), Flow(1)
    queue.join(one, 10, "one")
    queue.join(two, 10, "two")
    queue.leave(one)
    queue.join(one, 20, "other")

    assert queue.first() == (one, "other")

    queue.grant(one)
    queue.join(one, 10, "one")
    assert queue.first() == (two, "two")


def test_a_flow_that_was_away_gets_no_credit_for_it() -> None:
    """It is served as a new one would be: it does not hold up the others for what it did not want."""
    queue: FairQueue[int] = FairQueue()
    busy, away = Flow(1), Flow(1)
    queue.join(away, 1, 0)
    queue.grant(away)
    queue.join(busy, 1, 1)
    for _ in range(100):
        queue.grant(busy)
        queue.join(busy, 1, 1)
    order: list[int] = []
    queue.join(away, 1, 0)
    for _ in range(6):
        found = queue.first()
        assert found is not None
        queue.grant(found[0])
        queue.join(*found[:1], 1, found[1])
        order.append(found[1])

    assert sorted(order[:2]) == sorted(order[2:4]) == sorted(order[4:]) == [0, 1]


def test_a_flow_that_was_served_ahead_waits_when_it_returns() -> None:
    """Leaving the line for a moment between two requests brings nothing beyond its share."""
    queue: FairQueue[str] = FairQueue()
    steady, hasty = Flow(1), Flow(1)
    queue.join(steady, 1, "steady")
    order: list[str] = []
    for _ in range(20):
        if not hasty.number:
            queue.join(hasty, 1, "hasty")
        found = queue.first()
        assert found is not None
        queue.grant(found[0])
        order.append(found[1])
        if found[0] is steady:
            queue.join(steady, 1, "steady")

    assert order.count("hasty") == 10


def test_a_request_of_zero_permits_takes_turns_too() -> None:
    """A budget that takes nothing of the first dimension would hold up the others as long as it asks."""
    queue: FairQueue[str] = FairQueue()
    none, some = Flow(1), Flow(1)
    queue.join(none, 0, "none")
    queue.join(some, 1, "some")
    order: list[str] = []
    for _ in range(6):
        found = queue.first()
        assert found is not None
        queue.grant(found[0])
        queue.join(found[0], found[1] == "some", found[1])
        order.append(found[1])

    assert order == ["none", "some"] * 3


def test_one_huge_request_does_not_spoil_the_order_for_good() -> None:
    """By the largest of a size class that is long gone, the lightest of many flows would be served last again and again."""
    weights = [1, 2, 3, 5, 8, 13, 21, 34]
    backlog = Backlog(weights, [1])
    backlog.sizes = [1000]
    backlog.serve()
    backlog.sizes = [1]
    for _ in range(200_000):  # until the others have caught up
        backlog.serve()

    grants = [backlog.serve() for _ in range(300)]

    assert {permits for _, permits in grants} == {1}
    assert furthest(grants, dict(enumerate(weights))) <= 2


@sampled
@examples(100)
@given(weights=st.lists(st.integers(1, 20), min_size=1, max_size=12), steps=st.integers(0, 60), seed=st.integers(0, 2**32))
def test_a_copy_names_the_order_that_follows_and_changes_nothing(weights: list[int], steps: int, seed: int) -> None:
    backlog = Backlog(weights, [1, 3, 20], seed)
    for _ in range(steps):
        backlog.serve()

    copy, _ = backlog.queue.rehearse(32)
    orders: list[list[tuple[int, int]]] = []
    for queue in (copy, backlog.queue):
        order: list[tuple[int, int]] = []
        while (found := queue.first()) is not None:
            queue.grant(found[0])
            order.append(found[1])
        orders.append(order)

    assert orders[0] == orders[1]
    assert len(orders[0]) == len(weights)


def test_withdrawn_requests_leave_nothing_behind() -> None:
    """100 000 of them, of which the queue keeps a few entries for each flow."""
    queue: FairQueue[int] = FairQueue()
    flows = [Flow(1) for _ in range(10)]
    for flow in flows:
        queue.join(flow, 1, 0)
    for number in range(100_000):
        queue.leave(flows[number % 10])
        queue.join(flows[number % 10], 1, number)

    assert queue.length == 10
    assert len(queue.requests()) == 10
    entries = sum(len(getattr(queue, name)) for name in ("_ready", "_early", "_ahead", "_idle"))
    assert entries < 100
