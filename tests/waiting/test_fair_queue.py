"""The fair queue by itself: shares, order, flows that come and go."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from helpers.turns import furthest

from aiorate._tree.fair_queue import FairQueue, Flow


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
        _, (number, permits) = granted(self.queue)
        self.ask(number)
        return number, permits


def granted(queue: FairQueue[tuple[int, int]]) -> tuple[Flow, tuple[int, int]]:
    found = queue.first()
    assert found is not None
    queue.grant(found[0])
    return found


def test_shares_do_not_drift() -> None:
    """No rounding error adds up in 20 000 grants."""
    for weights in ([1] * 7, [1, 2, 3, 4, 5, 6]):
        backlog = Backlog(weights, [1, 2, 5, 11])
        got = [0] * len(weights)
        for _ in range(20_000):
            number, permits = backlog.serve()
            got[number] += permits

        share = Fraction(sum(got), sum(weights))
        assert max(abs(mine - share * weight) for mine, weight in zip(got, weights, strict=True)) <= 11, weights


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


def test_a_request_of_zero_permits_takes_turns_too() -> None:
    """A budget that takes nothing of the first dimension would hold up the others as long as it asks."""
    queue: FairQueue[tuple[int, int]] = FairQueue()
    flows, order = [Flow(1), Flow(1)], []
    for number in (0, 1):
        queue.join(flows[number], number, (number, number))
    for _ in range(6):
        number = granted(queue)[1][0]
        order.append(number)
        queue.join(flows[number], number, (number, number))  # the first asks for nothing each time

    assert order == [0, 1] * 3


def test_one_huge_request_does_not_spoil_the_order_for_good() -> None:
    """By the largest of a size class that is long gone, the lightest of many flows would be served last again and again."""
    weights = [1, 2, 3, 5, 8, 13]
    backlog = Backlog(weights, [1])
    backlog.sizes = [300]
    backlog.serve()
    backlog.sizes = [1]
    for _ in range(40_000):  # until the others have caught up
        backlog.serve()

    grants = [backlog.serve() for _ in range(300)]

    assert {permits for _, permits in grants} == {1}
    assert furthest(grants, dict(enumerate(weights))) <= 2
