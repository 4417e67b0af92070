"""Budgets and `max_concurrency` under trio: the same instants, the same order, and nothing lost to a cancelled scope."""

from __future__ import annotations

import pytest
import trio
from helpers.driving import SECOND
from helpers.under_trio import now, run, settled

from aiorate import Budget, Limiter, TokenBucket


@pytest.mark.parametrize(
    ("cancel", "expected"),
    [
        ("nobody", {"a": 1.0, "b": 2.0, "c": 3.0}),
        ("waiting", {"a": 1.0, "c": 2.0}),
        ("granted", {"a": 1.0, "b": 1.5, "c": 1.5}),  # too late: it runs, and is cancelled inside
        ("inside", {"a": 1.0, "b": 2.0, "c": 2.5}),
        ("shared", {"b": 1.0, "c": 2.0}),
    ],
)
def test_a_cancelled_scope_loses_no_permit(cancel: str, expected: dict[str, float]) -> None:
    """The next request moves up from one cancelled in line, granted but not run, inside the block, or first in the shared line."""

    async def main() -> None:
        shared = Limiter(TokenBucket("10/s", burst=100))
        budget = Budget(calls=TokenBucket("1/s", burst=2), tokens=shared, on_error="refund")
        granted: dict[str, int] = {}
        scopes = {name: trio.CancelScope() for name in "abc"}
        over = trio.Event()

        async def call(name: str, amount: int) -> None:
            with scopes[name]:
                async with budget.reserve(tokens=amount) as lease:
                    granted[name] = now()
                    await over.wait()
                    lease.settle(tokens=amount // 2)

        assert shared.try_acquire(100)
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(call, name, 10)
                await settled()
            if cancel == "waiting":
                scopes["b"].cancel()
            elif cancel == "shared":
                scopes["a"].cancel()
            await trio.sleep(1.5)
            if cancel == "granted":
                shared.refund(10)  # b is granted, and its task has not run
                scopes["b"].cancel()
            await trio.sleep(1)
            if cancel == "inside":
                scopes["b"].cancel()
            await trio.sleep(3)
            over.set()

        assert expected == {name: at / SECOND for name, at in granted.items()}
        assert (budget.waiting, shared.statistics().waiting) == (0, 0)
        kept = len(granted) - (cancel in ("granted", "inside"))
        assert shared.statistics().granted == 100 + 5 * kept - (10 if cancel == "granted" else 0)

    run(main)


def test_at_most_max_concurrency_are_inside() -> None:
    async def main() -> tuple[int, list[float]]:
        limiter = Limiter(TokenBucket("10/s", burst=1), max_concurrency=3)
        inside = most = 0
        began = []

        async def work(number: int) -> None:
            nonlocal inside, most
            with trio.move_on_after(0.5 if number % 5 == 4 else 100):
                async with limiter:
                    began.append(trio.current_time())
                    inside += 1
                    most = max(most, inside)
                    try:
                        await trio.sleep(1)
                    finally:
                        inside -= 1

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(work, number)
                await settled()
        counts = limiter.statistics()
        assert (counts.granted, counts.cancelled, counts.waiting, counts.available) == (10, 2, 0, 1)
        return most, began

    most, began = run(main)

    assert most == 3
    assert [round(at, 9) for at in began] == [0.0, 0.1, 0.2, 1.0, 1.1, 1.2, 2.0, 2.1, 2.2, 3.0]
