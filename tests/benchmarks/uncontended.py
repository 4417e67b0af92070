"""The cost of a call that need not wait: nanoseconds for each turn of a loop in one task, with nothing subtracted.

* *acquire()*: awaited at 10 million, at 1 million and at 1000 permits a second. At 1000, the interval between two permits is far
  longer than a call, so each grant needs its own computation. Every limiter starts with a million permits, more than are
  taken, so no call need wait. A limiter that keeps no permits in store has no figure.
* *async with* and *try*, the call that never waits: measured at 1 million a second.
* *await try*: the same for libraries whose call must be awaited even though it never waits.

*Through the loop* is the remark for a call that suspends the task although it need not wait. aiorate lets the loop turn
once in 10 ms of calls, which is part of its figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from time import perf_counter_ns
from types import FunctionType

from benchmarks.measure import NO_CALL, Failed, Measured, Plan, alternate, part, run_in
from benchmarks.subjects import Calls, Subject

__all__ = ["NAME", "TITLE", "run"]

NAME = "uncontended"
TITLE = "Uncontended: a call that need not wait"
BURST = 1_000_000
TIMEOUT = 30.0
_PROBES = 20
_WAITS_NS = 200_000  # a call that takes as long on the average has waited

Timed = Callable[[Calls, int], Coroutine[object, object, int]]


async def _acquire(calls: Calls, count: int) -> int:
    acquire = calls.acquire
    assert acquire is not None
    begin = perf_counter_ns()
    for _ in range(count):
        await acquire()
    return perf_counter_ns() - begin


async def _context(calls: Calls, count: int) -> int:
    context = calls.context
    assert context is not None
    begin = perf_counter_ns()
    for _ in range(count):
        async with context:
            pass
    return perf_counter_ns() - begin


async def _attempt(calls: Calls, count: int) -> int:
    attempt = calls.attempt
    assert attempt is not None
    begin = perf_counter_ns()
    for _ in range(count):
        attempt()
    return perf_counter_ns() - begin


async def _attempt_async(calls: Calls, count: int) -> int:
    attempt = calls.attempt_async
    assert attempt is not None
    begin = perf_counter_ns()
    for _ in range(count):
        await attempt()
    return perf_counter_ns() - begin


# The column, the rate, the name of the call, and the function that times it.
CASES: tuple[tuple[str, float, str, Timed], ...] = (
    ("acquire(), 10 000 000/s", 10_000_000, "acquire", _acquire),
    ("acquire(), 1 000 000/s", 1_000_000, "acquire", _acquire),
    ("acquire(), 1000/s", 1_000, "acquire", _acquire),
    ("async with", 1_000_000, "context", _context),
    ("try", 1_000_000, "attempt", _attempt),
    ("await try", 1_000_000, "attempt_async", _attempt_async),
)


def run(plan: Plan) -> Iterator[Measured]:
    """Every subject with the call: a loop of about 50 ms in each round."""
    subjects = [subject for subject in plan.subjects if subject.name != "floor: bare future"]
    for loop in plan.loops:
        jobs: dict[tuple[str, str, str], Callable[[], tuple[float, bool]]] = {}
        for case, rate, call, timed in CASES:
            for subject in subjects:
                if subject.family != "floor" or _has(subject, call):
                    jobs[loop, case, subject.name] = _job(plan, loop, subject, rate, call, timed)
        for (_, case, name), values in alternate(plan, jobs).items():
            remark = "through the loop" if True in part(values, 1) else ""
            yield Measured.of(NAME, loop, name, case, "ns", part(values, 0), remark)


async def _turned(timed: Timed, calls: Calls) -> bool:
    """Whether the loop turned during one call."""
    turned = asyncio.Event()
    handle = asyncio.get_running_loop().call_soon(turned.set)
    await timed(calls, 1)
    handle.cancel()
    return turned.is_set()


def _has(subject: Subject, call: str) -> bool:
    return getattr(subject.make(1.0, 1), call) is not None


def _job(plan: Plan, loop: str, subject: Subject, rate: float, call: str, function: Timed) -> Callable[[], tuple[float, bool]]:
    nanoseconds = plan.pick(1e6, 2e7, 5e7)
    # Each subject has its own copy of the loop, because the interpreter adapts code to the functions that it calls.
    timed: Timed = FunctionType(function.__code__.replace(), function.__globals__)

    async def measure() -> tuple[float, bool]:
        calls = subject.make(rate, BURST)
        try:
            if getattr(calls, call) is None:
                raise Failed(NO_CALL)
            # The lesser of two, because the first also imports, and the machine may be busy.
            each = min([await timed(calls, _PROBES) / _PROBES for _ in range(2)])
            if each > _WAITS_NS:
                raise Failed("waits")
            turns = [await _turned(timed, calls) for _ in range(3)]
            count = min(BURST // 2, max(_PROBES, int(nanoseconds / each)))
            return await timed(calls, count) / count, any(turns)
        finally:
            await subject.close(calls)

    return lambda: run_in(loop, measure, TIMEOUT)
