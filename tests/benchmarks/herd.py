"""Thousands of tasks that ask at once: the processor's time for each, from the creation of the first to the end of the last.

* *waiting*: no permit is left, and all wait; until the last has asked.
* *refused*: no permit is left, and each is refused at once: by `acquire(max_wait=1)`, or by a peer's call that does not wait.
* *granted at once*: there is a permit for each.
* *at 300 000 a second*: all wait for their permits, which come faster than the processor can resume the tasks.

The floor of all four is the same number of tasks, each of which awaits its own future: in the first three until the last has begun
to wait, in the fourth until one timer a millisecond has resolved all of them. More tasks take more memory, which alone makes each
of them dearer: the floor shows by how much. A limiter that cannot hold that many permits has no figure for *granted at once*, and
one that cannot refuse has none for *refused*. Peers answer without letting the loop turn; aiorate lets it turn
every 10 ms, and a task that waits for that costs a future.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import process_time
from typing import TYPE_CHECKING

import aiorate
from benchmarks.drain import BARE, cost_of_line
from benchmarks.measure import NO_CALL, Failed, Measured, Plan, alternate, in_tens, part, run_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from benchmarks.subjects import Calls, Subject

__all__ = ["NAME", "TITLE", "run"]

NAME = "herd"
TITLE = "Herd: thousands of tasks at once"
TIMEOUT = 20.0
IDLE = 0.1  # seconds without a task that goes on: all grants at once are over
RATE = 300_000
DAY = 86_400

WAITING, REFUSED, GRANTED, DRAIN = (
    "CPU us a task, waiting",
    "CPU us a task, refused",
    "CPU us a task, granted at once",
    f"CPU us a grant, at {in_tens(RATE)} a second",
)


def run(plan: Plan) -> Iterator[Measured]:
    """The three answers, and the drain, for each number of tasks."""
    herds = plan.pick((100,), (10_000, 40_000), (10_000, 20_000, 40_000))
    drains = plan.pick((100,), (10_000, 100_000), (10_000, 100_000))
    bare = [subject for subject in plan.of("floor") if subject.name == BARE]
    subjects = (*bare, *plan.of("aiorate", "peer"))
    for loop in plan.loops:
        for unit in (WAITING, REFUSED, GRANTED):
            for tasks in herds:
                case = f"{in_tens(tasks)} tasks"
                jobs = {(loop, unit, case, each.name): _herd(loop, each, unit, tasks) for each in subjects}
                for (_, _, _, name), costs in alternate(plan, jobs).items():
                    yield Measured.of(NAME, loop, name, case, unit, costs)
        for tasks in drains:
            case = f"{in_tens(tasks)} tasks"
            drained = {(loop, case, each.name): cost_of_line(loop, each, tasks, tasks / RATE) for each in subjects}
            for (_, _, name), values in alternate(plan, drained).items():
                yield Measured.of(NAME, loop, name, case, DRAIN, part(values, 1))


def _herd(loop: str, subject: Subject, unit: str, tasks: int) -> Callable[[], float]:
    """Microseconds of the processor for each task."""

    async def measure() -> float:
        waits = unit == WAITING or subject.name == BARE
        calls = subject.make(tasks / DAY, tasks) if unit == GRANTED else subject.make(1 / DAY, 1)
        asked = answered = 0
        over = asyncio.get_running_loop().create_future()
        call = _call(calls, refused=unit == REFUSED and not waits)

        async def ask() -> None:
            nonlocal asked, answered
            asked += 1
            if waits and asked == tasks:
                over.set_result(None)
            with suppress(aiorate.WaitTooLong):
                await call()
            answered += 1
            if not waits and answered == tasks:
                over.set_result(None)

        made: list[asyncio.Future[None]] = []
        try:
            if unit != GRANTED and calls.acquire is not None and subject.name != BARE:
                await calls.acquire()  # the permit that it begins with
            cpu = process_time()
            made += [asyncio.ensure_future(ask()) for _ in range(tasks)]
            while not over.done():
                before = asked + answered
                await asyncio.wait([over], timeout=IDLE)
                if asked + answered == before:
                    raise Failed("some waited")
            return 1e6 * (process_time() - cpu) / tasks
        finally:
            for task in made:
                task.cancel()
            if made:
                await asyncio.wait(made)
            await subject.close(calls)

    return lambda: run_in(loop, measure, TIMEOUT)


def _call(calls: Calls, refused: bool) -> Callable[[], Awaitable[object]]:
    if refused and isinstance(calls.limiter, aiorate.Limiter):
        limiter = calls.limiter
        return lambda: limiter.acquire(max_wait=1)
    call = calls.attempt_async if refused else calls.acquire
    if call is None:
        raise Failed(NO_CALL)
    return call
