"""Budgets through random histories, and from one event loop to the next: no dimension ever exceeds its bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy

from helpers.calls import Calls
from helpers.driving import SECOND, others, turns
from helpers.samples import examples, sampled
from helpers.strategies import EACH
from hypothesis import given
from hypothesis import strategies as st

import aiorate
from aiorate import Budget, TokenBucket
from aiorate.testing import ManualClock


def test_leases_may_outlive_an_event_loop() -> None:
    """A lease of a loop that has ended is settled in the next one, and its receipt is still exact."""
    tokens = TokenBucket("10/h", burst=100)
    budget = Budget(tokens=tokens)
    old = budget.reserve(tokens=50)

    async def one() -> None:
        await old.__aenter__()

    async def two() -> None:
        async with budget.reserve(tokens=10):
            old.settle(tokens=0)
            assert tokens.receipts
        assert not tokens.receipts

    asyncio.run(one())
    asyncio.run(two())

    assert budget.available("tokens") == 90


class Used:
    """The permits that were used of one dimension, and when."""

    def __init__(self, factory: Callable[[], aiorate.Scheduler]) -> None:
        self.scheduler = factory()
        self.largest = 1
        self.grants: list[list[int]] = []  # instant, amount

    def most_in(self, window: int) -> int:
        """The most permits granted within any window of that many ns."""
        return max(
            (sum(amount for instant, amount in self.grants if begin <= instant < begin + window) for begin, _ in self.grants), default=0
        )


PAIRS = st.sampled_from([name for name in EACH if EACH[name]().bound(1) is not None])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "settle first", "settle last", "settle", "refund", "error", "cancel"]),
        st.integers(0, 9),
        st.integers(0, 9),
        st.sampled_from([0, 0, 1, SECOND // 20, SECOND // 7, SECOND // 3, SECOND, 3 * SECOND]),
    ),
    max_size=40,
)


@sampled
@examples(150)
@given(first=PAIRS, second=PAIRS, steps=STEPS)
def test_usage_never_exceeds_the_bound_of_any_dimension(first: str, second: str, steps: list[tuple[str, int, int, int]]) -> None:
    """The bounds hold after any sequence of reservations, settlements, refunds and cancellations."""

    async def main() -> None:
        clock = ManualClock()
        dimensions = {"one": Used(EACH[first]), "two": Used(EACH[second])}
        schedulers = {name: used.scheduler for name, used in dimensions.items()}
        budget = Budget(**schedulers, clock=clock, on_error="refund")
        calls = Calls(budget, clock)
        entries: dict[int, dict[str, list[int]]] = {}
        asked = 0

        def note() -> None:
            for name, at in calls.granted.items():
                if name not in entries:
                    entries[name] = {}
                    for place, amount in calls.leases[name].amounts.items():
                        dimensions[place].largest = max(dimensions[place].largest, amount)
                        entries[name][place] = [at, amount]
                        dimensions[place].grants.append(entries[name][place])

        for does, one, two, gap in steps:
            await clock.run(gap / SECOND)
            note()
            inside = [name for name in calls.granted if not calls.tasks[name].done()]
            if does == "ask":
                calls.ask(asked, one=one, two=two)
                asked += 1
            elif does == "cancel":
                waiting = [name for name, task in calls.tasks.items() if not task.done() and name not in calls.granted]
                if waiting:
                    calls.tasks[waiting[one % len(waiting)]].cancel()
            elif inside:
                name = inside[0 if "first" in does else -1 if "last" in does else one % len(inside)]
                used = {"one": one, "two": two} if "settle" in does else {"one": 0, "two": 0}
                for place, amount in used.items():
                    entries[name][place][1] = min(amount, entries[name][place][1])  # the excess is a debt
                if "settle" in does:
                    await calls.end(name, **used)
                else:
                    await calls.end(name, error=OSError()) if does == "error" else await calls.end(name, **used)
            await turns(3)
        note()
        for name in list(calls.granted):
            await calls.end(name)
        for task in calls.tasks.values():
            task.cancel()
        await asyncio.gather(*calls.tasks.values(), return_exceptions=True)

        for used in dimensions.values():
            assert not used.scheduler.receipts
            for window in (1, SECOND // 10, SECOND, 3 * SECOND, 10 * SECOND):
                bound = used.scheduler.bound_when_late(window, used.largest, SECOND // 50)
                assert bound is None or used.most_in(window) <= bound
        assert (budget.waiting, clock.timers, others()) == (0, 0, set())

    asyncio.run(main())


@sampled
@examples(150)
@given(
    name=st.sampled_from(["TokenBucket", "TokenBucket-paced", "TokenPool", "SlidingWindow", "CalendarWindow"]),
    steps=st.lists(
        st.tuples(st.sampled_from(["ask", "ask", "settle"]), st.integers(0, 9), st.sampled_from([0, 1, SECOND // 9, SECOND])), max_size=30
    ),
)
def test_settling_equals_having_reserved_the_amount_used(name: str, steps: list[tuple[str, int, int]]) -> None:
    """No permit is lost or created: a scheduler that was asked for the amounts used has the same level at the end."""

    async def main() -> None:
        clock, scheduler = ManualClock(), EACH[name]()
        knew = deepcopy(scheduler)
        knew.peek(1, 0)  # its schedule begins with the other's
        budget = Budget(work=scheduler, clock=clock)
        assert budget.delay() == 0.0
        taken: list[tuple[int, aiorate.Lease, int]] = []
        most = scheduler.max_permits or 2
        for does, number, gap in [*steps, *[("settle", 3, 0)] * 30]:
            clock.advance(gap / SECOND)
            if does == "ask" and budget.delay(work=1 + number % most) == 0.0:
                lease = await budget.reserve(work=1 + number % most).__aenter__()
                taken.append((clock.now(), lease, -1))
            elif does == "settle":
                still = [place for place, (_, _, used) in enumerate(taken) if used < 0]
                if still:
                    place = still[number % len(still)]
                    at, lease, _ = taken[place]
                    used = number % (lease.amounts["work"] + 1)
                    lease.settle(work=used)
                    taken[place] = at, lease, used
        for at, _, used in taken:
            if used:
                assert knew.take(used, at) <= at
        clock.advance(0.2)

        assert knew.available(clock.now()) == scheduler.available(clock.now())
        assert knew.peek(1, clock.now()) == scheduler.peek(1, clock.now())
        assert not scheduler.receipts

    asyncio.run(main())
