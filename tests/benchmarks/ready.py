"""A permit that is available at once: its CPU time, as a multiple of the CPU time of a floor that is measured before and after it.

* The floor of ``await acquire()`` and ``try_acquire()`` is to await an empty coroutine, and that of ``async with`` is an empty one.
* *1 caller*; *100 callers*: tasks that let the loop turn after every 256 calls.
* *in use*: one limiter that can store a million permits. Half of them are taken first, so no call finds the store full or empty.
* *full*: every call finds the bucket or pool full. 32 limiters that store 10 ms worth of permits (the pool: as many as by default)
  are called in laps, so each has earned a permit since its last call. At 1 000 000/s that takes a microsecond, and a lap takes
  longer. At 1000/s a lap of 64 begins every 1.1 ms, after a lap of 64 others that loads the code into the caches, and the floor is
  measured between the laps. The figure is the median of those laps that began in time: on a busy machine the process has to stop.
* *full, mean*: the mean of all laps. After 5 ms or more, a limiter looks whether the loop has turned, here in one lap of five, and
  more often on a busy machine. The median hides that, and the mean shows it.
* *dearest/cheapest*: over all rates, states and strategies of one call, without the means.
* For comparison: a coroutine that only reads the clock, whose cost depends on the machine, and a limiter that reads none.
* *CPU a permit* and *delivered*: the hundred workers of *sustained* for a second, between two seconds of asynciolimiter's leaky
  bucket, which is the floor here. The limiter with a pool is ``Limiter(rate)``.

All ratios are of figures of one process. ``AIORATE_PURE=1`` in the environment measures aiorate without its compiled part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from statistics import mean, median
from time import perf_counter_ns, thread_time_ns
from types import FunctionType
from typing import Any

import aiorate
from benchmarks.measure import Failed, Measured, Plan, alternate, in_tens, part, run_in
from benchmarks.peers import PEERS
from benchmarks.subjects import FLOORS, Calls, Subject
from benchmarks.sustained import hundred_workers

__all__ = ["NAME", "TITLE", "filled", "half_used", "plain", "run"]

NAME = "ready"
TITLE = "Ready: a permit that is available at once"
STRATEGIES = ("aiorate TokenBucket", "aiorate TokenPool")
COMPARED = ("floor: empty coroutine + clock", "asynciolimiter-leaky")
SLOW, FAST = 1_000, 1_000_000
CALLERS = (1, 100)
TURN = 256  # calls of a task before it lets the loop turn
RING = 32  # calls of a lap
LONG_RING = 64  # calls of a lap that is timed alone
STORE = 1_000_000
TIMEOUT = 60.0
SLOW_FULL = f"{in_tens(SLOW)}/s full"
MEAN = ", mean"
RATIO, SPREAD = "x its floor", "dearest/cheapest"
CPU, DELIVERED = "CPU a permit, x the leaky bucket's", "delivered, x the leaky bucket's"

_TURNS = 100  # of all tasks in one measurement
_LAP_NS = 1_100_000  # longer than the interval between two permits at 1000/s
_FILLING = 0.004  # seconds. The default pool holds two permits at 1000/s, and begins with one

Laps = Callable[[Sequence[Any], int], Coroutine[object, object, None]]
Limiters = Callable[[], Coroutine[object, object, list[Calls]]]
Job = Callable[[], tuple[float, float]]


async def _acquire(ring: Sequence[Any], laps: int) -> None:
    for _ in repeat(None, laps):
        for acquire in ring:
            await acquire()


async def _context(ring: Sequence[Any], laps: int) -> None:
    for _ in repeat(None, laps):
        for context in ring:
            async with context:
                pass


async def _attempt(ring: Sequence[Any], laps: int) -> None:
    for _ in repeat(None, laps):
        for attempt in ring:
            attempt()


@dataclass(frozen=True, slots=True)
class Call:
    """A call, its floor, and the loops around both."""

    name: str
    laps: Laps
    of: Callable[[Calls], Any]
    floor_laps: Laps
    empty: Any


_EMPTY = {subject.name: subject.make(1.0, 1) for subject in FLOORS}
_COROUTINE = (_acquire, _EMPTY["floor: empty coroutine"].acquire)
_CONTEXT = (_context, _EMPTY["floor: empty async with"].context)
CALLS = (
    Call("await acquire()", _acquire, lambda calls: calls.acquire, *_COROUTINE),
    Call("async with", _context, lambda calls: calls.context, *_CONTEXT),
    Call("try_acquire()", _attempt, lambda calls: calls.attempt, *_COROUTINE),
)


def run(plan: Plan) -> Iterator[Measured]:
    """The calls, and then the hundred workers, in every loop."""
    strategies = [each for each in plan.of("aiorate") if each.name in STRATEGIES]
    for loop in plan.loops:
        found = []
        for call in CALLS:
            for callers in CALLERS:
                for each in _call(plan, loop, strategies, call, callers):
                    found.append(each)
                    yield each
        yield from _spread(loop, found)
        yield from _workers(plan, loop, strategies)


def _call(plan: Plan, loop: str, strategies: Sequence[Subject], call: Call, callers: int) -> Iterator[Measured]:
    repeats = plan.pick(1, 3, 7)
    case = f"{call.name}, {callers} caller{'s' * (callers > 1)}"
    jobs: dict[tuple[str, str, str], Job] = {}
    for each in strategies:
        jobs[loop, case, f"{each.name}, {SLOW_FULL}"] = _spaced(loop, call, callers, each)
        jobs[loop, case, f"{each.name}, {in_tens(SLOW)}/s in use"] = _dense(loop, call, callers, half_used(each, SLOW), repeats)
        jobs[loop, case, f"{each.name}, {in_tens(FAST)}/s full"] = _dense(loop, call, callers, filled(each, FAST), repeats)
        jobs[loop, case, f"{each.name}, {in_tens(FAST)}/s in use"] = _dense(loop, call, callers, half_used(each, FAST), repeats)
    for each in plan.subjects:
        if each.name in COMPARED and call.of(each.make(SLOW, STORE)) is not None:
            jobs[loop, case, each.name.removeprefix("floor: ")] = _dense(loop, call, callers, plain(each), repeats)
    for (_, _, name), values in alternate(plan, jobs).items():
        yield Measured.of(NAME, loop, name, case, RATIO, part(values, 0))
        if name.endswith(SLOW_FULL):
            yield Measured.of(NAME, loop, f"{name}{MEAN}", case, RATIO, part(values, 1))


def _spread(loop: str, found: Iterable[Measured]) -> Iterator[Measured]:
    """For each call and number of callers, the dearest figure divided by the cheapest."""
    medians: dict[str, list[float]] = {}
    for each in found:
        if each.samples and each.subject.startswith("aiorate") and not each.subject.endswith(MEAN):
            medians.setdefault(each.case, []).append(each.median)
    for case, figures in medians.items():
        yield Measured(NAME, loop, "aiorate", case, SPREAD, (max(figures) / min(figures),))


def half_used(subject: Subject, rate: int) -> Limiters:
    """One limiter for all calls of a lap, which is neither full nor empty for half a second at least."""

    async def make() -> list[Calls]:
        calls = subject.make(rate, STORE)
        limiter: Any = calls.limiter
        if not (limiter.try_acquire() and limiter.try_acquire(STORE // 2)):
            raise Failed("no store to take from")
        return [calls] * RING

    return make


def plain(subject: Subject) -> Limiters:
    """A limiter of another library with as large a store, or a floor."""

    async def make() -> list[Calls]:
        return [subject.make(SLOW, STORE)] * RING

    return make


def filled(subject: Subject, rate: int, count: int = RING) -> Limiters:
    """As many limiters, a different one for each call of a lap, all of them full."""

    async def make() -> list[Calls]:
        ring = [subject.make(rate, rate // 100) for _ in range(count)]
        for calls in ring:
            assert calls.acquire is not None
            await calls.acquire()
        await asyncio.sleep(_FILLING)
        return ring

    return make


def _dense(loop: str, call: Call, callers: int, limiters: Limiters, repeats: int) -> Job:
    """Floor, figure, floor, figure, and so on to a floor. The median ratio, twice."""
    laps, floor_laps = _copy(call.laps), _copy(call.floor_laps)
    empty = [call.empty] * RING

    async def measure() -> tuple[float, float]:
        ratios = []
        before = await _cost(floor_laps, empty, callers)
        for _ in range(repeats):
            ring = await limiters()
            figure = await _cost(laps, [call.of(calls) for calls in ring], callers)
            _check_use(ring)
            after = await _cost(floor_laps, empty, callers)
            ratios.append(2 * figure / (before + after))
            before = after
        return median(ratios), median(ratios)

    return lambda: run_in(loop, measure, TIMEOUT)


def _check_use(ring: Sequence[Calls]) -> None:
    """Raise if the one limiter of a lap has become full or empty. Several are full after each lap."""
    limiter = ring[0].limiter
    if ring[0] is ring[-1] and isinstance(limiter, aiorate.Limiter) and not 0 < limiter.statistics().available < STORE:
        raise Failed("full or empty")


async def _cost(laps: Laps, ring: Sequence[Any], callers: int) -> float:
    """Nanoseconds of the processor for the calls of all tasks. Making the tasks does not count."""
    gate = asyncio.get_running_loop().create_future()

    async def caller() -> None:
        await gate
        for _ in range(_TURNS // callers):
            await laps(ring, TURN // RING)
            await asyncio.sleep(0)

    tasks = [asyncio.ensure_future(caller()) for _ in range(callers)]
    await laps(ring, 1)  # the first is slower
    await asyncio.sleep(0)
    begin = thread_time_ns()
    gate.set_result(None)
    await asyncio.wait(tasks)
    cost = thread_time_ns() - begin
    for task in tasks:
        task.result()
    return _positive(cost)


def _spaced(loop: str, call: Call, callers: int, subject: Subject) -> Job:
    """A lap every 1.1 ms, and the floor in between: the median and the mean of the laps, divided by the median floor."""
    laps, floor_laps = _copy(call.laps), _copy(call.floor_laps)
    empty = [call.empty] * LONG_RING

    async def measure() -> tuple[float, float]:
        ring, others = [[call.of(calls) for calls in await filled(subject, SLOW, LONG_RING)()] for _ in range(2)]
        one_at_a_time = asyncio.Lock()
        clock = median(_cost_of_clock() for _ in range(TURN))
        costs: list[float] = []
        in_time: list[float] = []
        floors: list[float] = []
        following = perf_counter_ns() + _LAP_NS

        async def caller() -> None:
            nonlocal following
            for _ in range(_TURNS // callers):
                async with one_at_a_time:
                    while perf_counter_ns() < following:
                        begin = thread_time_ns()
                        await floor_laps(empty, 1)
                        floors.append(thread_time_ns() - begin - clock)
                    late = perf_counter_ns() - following
                    following += late + _LAP_NS
                    await laps(others, 1)
                    begin = thread_time_ns()
                    await laps(ring, 1)
                    costs.append(thread_time_ns() - begin - clock)
                    if late < _LAP_NS:
                        in_time.append(costs[-1])
                    await asyncio.sleep(0)

        await asyncio.gather(*(caller() for _ in range(callers)))
        if not in_time:
            raise Failed("no lap in time")
        floor = _positive(median(floors))
        return median(in_time) / floor, mean(costs) / floor

    return lambda: run_in(loop, measure, TIMEOUT)


def _cost_of_clock() -> int:
    begin = thread_time_ns()
    return thread_time_ns() - begin


def _positive(cost: float) -> float:
    if cost <= 0:
        raise Failed("the clock of CPU time is too coarse")
    return cost


def _copy(laps: Laps) -> Laps:
    """A copy of the loop for each job, because the interpreter adapts code to what it calls."""
    assert isinstance(laps, FunctionType)
    copied: Laps = FunctionType(laps.__code__.replace(), laps.__globals__)
    return copied


def _workers(plan: Plan, loop: str, strategies: Sequence[Subject]) -> Iterator[Measured]:
    seconds = plan.pick(0.1, 1.0, 1.0)
    leaky = next(each for each in PEERS if each.name == "asynciolimiter-leaky")
    jobs: dict[tuple[str, str, str], Job] = {}
    for rate in plan.pick((1_000,), (1_000_000, 100_000), (1_000_000, 100_000)):
        floor = hundred_workers(loop, leaky, rate, seconds)
        for each in strategies:
            jobs[loop, f"{in_tens(rate)}/s", each.name] = _between(floor, hundred_workers(loop, each, rate, seconds))
    for (_, case, name), values in alternate(plan, jobs).items():
        yield Measured.of(NAME, loop, name, case, CPU, part(values, 0))
        yield Measured.of(NAME, loop, name, case, DELIVERED, part(values, 1))


def _between(floor: Job, job: Job) -> Job:
    """The CPU time of a permit and the permits delivered, divided by the means of the floor before and after."""

    def measure() -> tuple[float, float]:
        (share_before, core_before), (share, core), (share_after, core_after) = floor(), job(), floor()
        if not (share_before and share and share_after):
            raise Failed("nothing delivered")
        per_permit = core_before / share_before + core_after / share_after
        return 2 * core / share / per_permit, 2 * share / (share_before + share_after)

    return measure
