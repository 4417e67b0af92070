"""A `KeyedLimiter`: the cost of a key, as the keys become many.

* *an acquire(key)* and *a try_acquire(key)*: nanoseconds for a call that need not wait, by the number of keys that are kept. *In turn*
  is the order in which the keys were made, *at random* any order. The floor looks up a small object in a dict, in the same order, and
  reads it. Where the floor rises, the processor waits for its memory, and a key has a dozen objects where the floor has one. A key
  that is used less than once in 5 ms also checks whether the loop has run its other tasks. From there on, the line of *in turn* is
  flat if the cost does not depend on the number of keys.
* *a new key, by keys that owe*: microseconds for the first try_acquire of a key. It looks at two others, which stay.
* *a new key, evicting two*: the same where the others owe nothing, and each new key evicts two.
* *an acquire(key), by levels*: nanoseconds for a call that takes from so many limits: of users, teams, regions, and one for all.
* *bytes a key*: what tracemalloc counts for each key that was used once.

*Shared* has one more limit, which all keys pass. The garbage collector ignores the keys that were made before the measurement; a
million of them take about 2 GB.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import aiorate
from benchmarks.measure import Failed, Measured, Plan, alternate, in_tens, part, run_in

if TYPE_CHECKING:
    from collections.abc import Sequence

Make = Callable[[], aiorate.Scheduler | str]

NAME = "keys"
TITLE = "Keys: one, and a million"

# The figures of `in_use`, in that order.
USES = (
    "ns an acquire(key), in turn, by keys kept",
    "ns an acquire(key), at random, by keys kept",
    "ns a try_acquire(key), in turn, by keys kept",
    "ns a try_acquire(key), at random, by keys kept",
)
LEVELS = "ns an acquire(key), by levels"
OWING, EVICTING = "us a new key, by keys that owe", "us a new key, evicting two, by keys kept"
BYTES = "bytes a key"
FLOOR = "floor: a dict of objects"
SHARED = ", shared"
MANY = 1, 100, 10_000, 1_000_000
TIMEOUT = 300
TURN = 1_000  # calls between two turns of the loop
_PERMITS = 10_000_000  # more than are taken

# Strategies that start with all those permits in hand, at 1000 per second, as a key does that is seldom used.
STORED: dict[str, Make] = {
    "aiorate TokenPool": lambda: aiorate.TokenPool("1000/s", pool=_PERMITS * 1_000_000, start=time.monotonic_ns() - _PERMITS * 1_000_000),
    "aiorate TokenBucket": lambda: aiorate.TokenBucket("1000/s", _PERMITS),
    "aiorate SlidingWindow": lambda: aiorate.SlidingWindow(aiorate.Rate(_PERMITS, 10_000)),
}
# Strategies that owe for hours once they are used, and those that owe nothing after 5 ms.
SLOW: dict[str, Make] = {
    "aiorate TokenPool": lambda: "10/day",
    "aiorate TokenBucket": lambda: aiorate.TokenBucket("10/day", 5),
    "aiorate SlidingWindow": lambda: aiorate.SlidingWindow("10/day"),
}
QUICK: dict[str, Make] = {
    "aiorate TokenPool": lambda: "1000/s",
    "aiorate TokenBucket": lambda: aiorate.TokenBucket("1000/s", 5),
    "aiorate SlidingWindow": lambda: aiorate.SlidingWindow("5/5ms"),
}


class Keyed(Protocol):
    """What is timed: a `KeyedLimiter`, or the floor."""

    async def acquire(self, key: int) -> float:
        """Wait for a permit of the key."""
        ...

    def try_acquire(self, key: int) -> bool:
        """Take one if it is there."""
        ...


class Entry:
    """What the floor keeps of a key."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = False


class Entries:
    """The floor: a small object for each key."""

    def __init__(self) -> None:
        self.of = defaultdict[int, Entry](Entry)

    async def acquire(self, key: int) -> float:
        return self.of[key].taken

    def try_acquire(self, key: int) -> bool:
        return not self.of[key].taken


def keyed_of(make: Make | None, shared: bool, many: int, idle: float | None = None) -> Keyed:
    """A limiter of keys, or the floor."""
    if make is None:
        return Entries()
    everybody = aiorate.TokenBucket("1000000/s", 100 * _PERMITS) if shared else None
    return aiorate.KeyedLimiter(lambda key: make(), shared=everybody, max_keys=many, idle=idle)


async def in_use(make: Make | None, shared: bool, many: int, calls: int) -> tuple[float, ...]:
    """Nanoseconds for each call, as `USES` has them."""
    keyed, keys = keyed_of(make, shared, many, idle=86_400), list(range(1_000, 1_000 + many))
    orders = [keys[place % many] for place in range(calls)], random.Random(many).choices(keys, k=calls)
    times = []
    with _used_once(keyed, keys):
        for function in (_acquire, _try):
            # A copy of the loop for each job, because the interpreter adapts code to the functions that it calls.
            timed = FunctionType(function.__code__.replace(), function.__globals__)
            for order in orders:
                await timed(keyed, order[:TURN])
                took = 0
                for first in range(0, calls, TURN):
                    await asyncio.sleep(0)  # lets the loop turn
                    took += await timed(keyed, order[first : first + TURN])
                times.append(took / calls)
    _check_kept(keyed, many)
    return tuple(times)


def of_levels(make: Make, levels: int) -> aiorate.KeyedLimiter[int]:
    """Users that share teams of ten, these regions, and these one limit; of these four, the first ``levels``."""
    everybody = aiorate.Limiter(aiorate.TokenBucket("1000000/s", 100 * _PERMITS))
    regions = aiorate.KeyedLimiter[int](lambda key: make(), shared=everybody)
    teams = aiorate.KeyedLimiter[int](lambda key: make(), shared=everybody if levels == 3 else lambda key: regions[key % 4])
    shared = {1: None, 2: everybody}
    return aiorate.KeyedLimiter(lambda key: make(), shared=shared.get(levels, lambda key: teams[key // 10]))


async def in_levels(make: Make, levels: int, calls: int) -> float:
    """Nanoseconds for each call, for a hundred users."""
    keyed = of_levels(make, levels)
    order = [place % 100 for place in range(TURN)]
    await _acquire(keyed, order)
    took = 0
    for _ in range(0, calls, TURN):
        await asyncio.sleep(0)  # lets the loop turn
        took += await _acquire(keyed, order)
    return took / calls


async def _acquire(keyed: Keyed, keys: Sequence[int]) -> int:
    begin = perf_counter_ns()
    for key in keys:
        await keyed.acquire(key)
    return perf_counter_ns() - begin


async def _try(keyed: Keyed, keys: Sequence[int]) -> int:
    begin = perf_counter_ns()
    for key in keys:
        keyed.try_acquire(key)
    return perf_counter_ns() - begin


async def new(make: Make | None, shared: bool, many: int, keys: int, evicting: bool) -> float:
    """Microseconds for each new key, at that number of keys."""
    took = done = 0
    while done < keys:
        keyed, some = keyed_of(make, shared, 2 * many), min(keys - done, many // 2)
        with _used_once(keyed, range(many), held=evicting):
            await asyncio.sleep(0.01)  # until those that are evicted owe nothing
            took += await _try(keyed, range(many, many + some))
        done += some
        _check_kept(keyed, many - some if evicting else many + some)
    return took / keys / 1_000


@contextmanager
def _used_once(keyed: Keyed, keys: Sequence[int], held: bool = False) -> Iterator[None]:
    """Each key is used once, and kept until all are there. The garbage collector does not look at them."""
    gc.disable()
    try:
        holds: list[aiorate.Limiter | None] = []
        for key in keys:
            holds.append(keyed[key] if held and isinstance(keyed, aiorate.KeyedLimiter) else None)
            if not (keyed.try_acquire(key) if holds[-1] is None else holds[-1].try_acquire()):
                raise Failed("a permit was missing")
        holds.clear()
        gc.collect()
        gc.freeze()
        gc.enable()
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def _check_kept(keyed: Keyed, many: int) -> None:
    if isinstance(keyed, aiorate.KeyedLimiter) and len(keyed) != many:
        raise Failed(f"{len(keyed)} kept, not {many}")


async def weigh(make: Make | None, shared: bool, many: int) -> tuple[float, ...]:
    """Bytes for each key that was used once: by `acquire`, and by `try_acquire`."""
    sizes = []
    for function in (_acquire, _try):
        keyed, keys = keyed_of(make, shared, many), list(range(1_000, 1_000 + many))
        gc.collect()
        tracemalloc.start()
        await function(keyed, keys)
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0] / many)
        tracemalloc.stop()
    return tuple(sizes)


def run(plan: Plan) -> Iterator[Measured]:
    """By the number of keys, and the weight of one."""
    loop = plan.loops[0]
    for many in plan.pick((1, 100), MANY, MANY):
        jobs = {(in_tens(many), name): _job(loop, in_use, name, STORED, many, plan.pick(1_000, 50_000, 200_000)) for name in _rows(plan)}
        for (case, name), results in alternate(plan.at_most(3), jobs).items():
            for place, unit in enumerate(USES):
                yield Measured.of(NAME, loop, name, case, unit, part(results, place))
    for unit, makes in ((OWING, SLOW), (EVICTING, QUICK)):
        for many in plan.pick((100,), MANY[1:3], MANY[1:]):
            keys = plan.pick(50, 2_000, 5_000)
            jobs = {(in_tens(many), name): _job(loop, new, name, makes, many, keys, unit == EVICTING) for name in _rows(plan)}
            for (case, name), results in alternate(plan.at_most(3), jobs).items():
                yield Measured.of(NAME, loop, name, case, unit, results)
    levels = {
        (f"{count}", name): partial(run_in, loop, partial(in_levels, STORED[name], count, plan.pick(1_000, 20_000, 100_000)), TIMEOUT)
        for name in _rows(plan)
        if name in STORED
        for count in range(1, 5)
    }
    for (case, name), results in alternate(plan.at_most(5), levels).items():
        yield Measured.of(NAME, loop, name, case, LEVELS, results)
    weights = {(BYTES, name): _job(loop, weigh, name, SLOW, plan.pick(100, 10_000, 10_000)) for name in _rows(plan)}
    for (_, name), results in alternate(plan.at_most(1), weights).items():
        for place, case in enumerate(("used by acquire()", "used by try_acquire()")):
            yield Measured.of(NAME, loop, name, case, BYTES, part(results, place))


def _job(loop: str, what: Callable[..., Any], name: str, makes: dict[str, Make], *arguments: object) -> Callable[[], Any]:
    return partial(run_in, loop, partial(what, makes.get(name.removesuffix(SHARED)), name.endswith(SHARED), *arguments), TIMEOUT)


def _rows(plan: Plan) -> list[str]:
    asked = [subject.name for subject in plan.subjects if subject.name in STORED]
    return [FLOOR, *asked, *(name + SHARED for name in asked)]
