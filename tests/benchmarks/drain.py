"""Many tasks, one permit each: the time until the last is served, and the processor's time for each grant.

*Paced*: all tasks ask at once, at a rate that serves the last of them 1.5 s later. ``wall/ideal`` is the time taken divided by
that time. It may be below 1, because 10 ms worth of permits are granted at once. The processor's time counts all threads, from the
creation of the tasks to their end. It has a remark where ``wall/ideal`` is more than a tenth off the floor's, because the same work
is cheaper in fewer turns of the loop. The floor is the same number of tasks, each of which awaits its own future. One timer a
millisecond resolves the futures over the same time.

*Let go*: the rate is 1 per second while the tasks come, and then 10 million per second, so that all are served as fast as
possible. This shows the cost of standing in line and of waking up alone. It needs a rate that can change while tasks wait, so it
compares aiorate with the floor, whose futures are all resolved at once.

A run of more than 20 s is stopped and not repeated.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import aiorate
from benchmarks.measure import Measured, Plan, alternate, in_tens, part, run_in
from benchmarks.subjects import BareFutures, Calls, Subject

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = ["BARE", "NAME", "TITLE", "cost_of_line", "run"]

NAME = "drain"
TITLE = "Drain: a line of waiters"
TIMEOUT = 20.0
BARE = "floor: bare future"
WIDE = 10_000_000

WALL, COST, LET_GO = "wall/ideal", "CPU us a grant, paced", "CPU us a grant, let go"


def run(plan: Plan) -> Iterator[Measured]:
    """Paced and let go, for each length of the line."""
    seconds = plan.pick(0.1, 1.5, 1.5)
    shut = plan.pick(0.05, 1.0, 1.0)
    lengths = plan.pick((100,), (100, 1_000, 10_000), (100, 1_000, 10_000, 100_000))
    bare = [subject for subject in plan.of("floor") if subject.name == BARE]
    for loop in plan.loops:
        for waiters in lengths:
            case = f"{in_tens(waiters)} waiters"
            paced = {(loop, case, each.name): cost_of_line(loop, each, waiters, seconds) for each in (*bare, *plan.of("aiorate", "peer"))}
            floor = 1.0
            for (_, _, name), values in alternate(plan, paced).items():
                wall = Measured.of(NAME, loop, name, case, WALL, part(values, 0))
                if wall.samples and name == BARE:
                    floor = wall.median
                missed = wall.samples and abs(wall.median - floor) > 0.1 * floor
                yield wall
                yield Measured.of(NAME, loop, name, case, COST, part(values, 1), f"at {wall.median:.2f}" if missed else "")
            let_go = {(loop, f"{case} let go", each.name): _let_go(loop, each, waiters, shut) for each in (*bare, *plan.of("aiorate"))}
            for (_, _, name), costs in alternate(plan, let_go).items():
                yield Measured.of(NAME, loop, name, case, LET_GO, costs)


def cost_of_line(loop: str, subject: Subject, waiters: int, seconds: float) -> Callable[[], tuple[float, float]]:
    """The time taken over the ideal time, and microseconds of the processor for each grant."""

    async def measure() -> tuple[float, float]:
        rate = waiters / seconds
        calls = subject.make(rate, max(1, round(rate / 100)))
        pacer: Awaitable[None] | None = None
        try:
            wall, cpu = perf_counter(), process_time()
            tasks = _stand(calls, waiters)
            if isinstance(calls.limiter, BareFutures):
                pacer = asyncio.ensure_future(_pace(calls.limiter, rate))
            await asyncio.wait(tasks)
            wall, cpu = perf_counter() - wall, process_time() - cpu
            _look(tasks)
            return wall / seconds, 1e6 * cpu / waiters
        finally:
            if pacer is not None:
                await pacer
            await subject.close(calls)

    return lambda: run_in(loop, measure, TIMEOUT)


async def _pace(futures: BareFutures, rate: float) -> None:
    """Resolve the futures that are due, once a millisecond."""
    begin, done = perf_counter(), 0
    while True:
        due = int((perf_counter() - begin) * rate)
        futures.let_go(done, due)
        done = min(due, len(futures.waiting))
        if done and done == len(futures.waiting):
            return
        await asyncio.sleep(0.001)


def _let_go(loop: str, subject: Subject, waiters: int, shut: float) -> Callable[[], float]:
    """Microseconds of the processor for each grant, from the creation of the tasks to their end."""

    async def measure() -> float:
        calls = subject.make(1 / shut, 1)
        if calls.attempt is not None:
            calls.attempt()  # the permit that it begins with
        cpu = process_time()
        tasks = _stand(calls, waiters)
        await asyncio.sleep(0)
        if isinstance(calls.limiter, BareFutures):
            calls.limiter.let_go()
        elif isinstance(calls.limiter, aiorate.Limiter):
            calls.limiter.set_rate(WIDE)
        await asyncio.wait(tasks)
        cpu = process_time() - cpu
        _look(tasks)
        return 1e6 * cpu / waiters

    return lambda: run_in(loop, measure, TIMEOUT)


def _stand(calls: Calls, waiters: int) -> list[asyncio.Future[object]]:
    acquire = calls.acquire
    assert acquire is not None
    return [asyncio.ensure_future(acquire()) for _ in range(waiters)]


def _look(tasks: list[asyncio.Future[object]]) -> None:
    """Raise the error of a task, if there is one."""
    for task in tasks:
        task.result()
