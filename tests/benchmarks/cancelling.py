"""The cost of a cancellation, and the permits that it loses.

* *waiters*: milliseconds from the first cancellation to the end of all tasks. The tasks stand in line at 1 per second and are
  cancelled in random order.
* *when granted*: cancellation at the worst moment, after the grant and before the task runs. At 200 per second, 25 callers ask
  again and again, and 25 others are cancelled at that moment.
* *served*: the permits that reached a caller, divided by the permits that the rate allows. It is a half if each such cancellation
  loses a permit.
* *lost*: the permits that each such cancellation costs, compared with a run of 50 callers without cancellations.

A library that polls is cancelled at its wake-ups. Most of these grant nothing, so it has little to lose. Windows of whole seconds
(limits) let whole bursts through, so a short run shows more than the rate allows.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Failed, Measured, Plan, alternate, in_tens, run_in
from benchmarks.subjects import BareFutures, Subject

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator

NAME = "cancelling"
TITLE = "Cancellation: a storm of it, and the permits it loses"

RATE = 200
CALLERS = 50
TIMEOUT = 20


async def storm(subject: Subject, waiters: int) -> float:
    """Milliseconds until that many waiters are gone."""
    calls = subject.make(1, 1)
    assert calls.acquire is not None
    if not isinstance(calls.limiter, BareFutures):
        await calls.acquire()  # the permit in hand
    tasks = [asyncio.ensure_future(calls.acquire()) for _ in range(waiters)]
    for _ in range(5):
        await asyncio.sleep(0)
    random.Random(waiters).shuffle(tasks)
    begin = perf_counter()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    took = perf_counter() - begin
    await subject.close(calls)
    return 1_000 * took


class Doomed:
    """Awaits an object, and cancels its own task when the future behind that object is done, before the task runs."""

    def __init__(self, awaitable: Awaitable[object], struck: Callable[[], None]) -> None:
        self._awaitable = awaitable
        self._struck = struck

    def __await__(self) -> Generator[Any, Any, object]:
        task = asyncio.current_task()
        hit = False

        def strike(future: asyncio.Future[object]) -> None:
            nonlocal hit
            if not hit and not future.cancelled() and task is not None:
                hit = True
                self._struck()
                task.cancel()

        inner = self._awaitable.__await__()
        step: Callable[[Any], Any] = inner.send
        argument: Any = None
        while True:
            try:
                waits_for = step(argument)
            except StopIteration as end:
                return end.value
            if asyncio.isfuture(waits_for):
                # Added before the task's own wake-up, because callbacks run in the order in which they were added.
                waits_for.add_done_callback(strike)
            try:
                argument = yield waits_for
                step = inner.send
            except BaseException as error:
                argument, step = error, inner.throw


@dataclass(frozen=True, slots=True)
class Served:
    """The result of a run in which half of the callers were cancelled at the moment of their grant."""

    ratio: float
    lost: float


async def rush(subject: Subject, seconds: float, doomed: int) -> tuple[float, int]:
    """Permits per second that reached a caller, and the number of cancellations, with ``doomed`` of the callers cancelled."""
    calls = subject.make(RATE, 1)
    assert calls.acquire is not None
    acquire = calls.acquire
    await acquire()
    served = struck = 0
    tasks: set[asyncio.Task[None]] = set()

    async def caller() -> None:
        nonlocal served
        while True:
            await acquire()
            served += 1

    def strike() -> None:
        nonlocal struck
        struck += 1

    async def one_doomed() -> None:
        nonlocal served
        await Doomed(acquire(), strike)
        served += 1

    def replace(task: asyncio.Task[None] | None = None) -> None:
        if task is not None:
            tasks.discard(task)
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it
        if going:
            fresh = asyncio.create_task(one_doomed())
            fresh.add_done_callback(replace)
            tasks.add(fresh)

    going = True
    begin = perf_counter()
    # In turns, so that every second caller in line is doomed.
    for place in range(CALLERS):
        if place % 2 and place // 2 < doomed:
            replace()
        else:
            tasks.add(asyncio.create_task(caller()))
    await asyncio.sleep(seconds)
    took, through, hits = perf_counter() - begin, served, struck
    going = False
    left = list(tasks)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await subject.close(calls)
    return through / took, hits


async def served(subject: Subject, seconds: float) -> Served:
    """Run once without cancellations and once with half of the callers cancelled."""
    calm, _ = await rush(subject, seconds, 0)
    rate, struck = await rush(subject, seconds, CALLERS // 2)
    return Served(rate / RATE, (calm - rate) * seconds / struck if struck else 0.0)


CASES: tuple[tuple[str, str, Callable[[Served], float]], ...] = (
    ("served", "served/allowed", lambda served: served.ratio),
    ("lost", "permits a cancellation", lambda served: served.lost),
)


def run(plan: Plan) -> Iterator[Measured]:
    """Storms for each length of the line, then cancellations at the grant."""
    loop = plan.loops[0]
    waits = [subject for subject in plan.subjects if subject.name == "floor: bare future"]
    subjects = plan.of("aiorate", "peer")
    plan = plan.at_most(3)
    for waiters in plan.pick((100,), (1_000, 10_000), (1_000, 10_000, 100_000)):
        case = f"{in_tens(waiters)} waiters"
        storms = {(case, each.name): partial(run_in, loop, partial(storm, each, waiters), TIMEOUT) for each in (*waits, *subjects)}
        for (_, name), results in alternate(plan, storms).items():
            yield Measured.of(NAME, loop, name, case, "ms", results)

    seconds = plan.pick(0.2, 1.0, 2.0)
    rushes = {("when granted", each.name): partial(run_in, loop, partial(served, each, seconds), TIMEOUT) for each in subjects}
    for (_, name), outcomes in alternate(plan, rushes).items():
        for what, unit, figure in CASES:
            values = (outcome if isinstance(outcome, Failed) else figure(outcome) for outcome in outcomes)
            yield Measured.of(NAME, loop, name, f"when granted: {what}", unit, values)
