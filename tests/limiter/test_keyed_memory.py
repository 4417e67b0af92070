"""The memory of a KeyedLimiter: how much a key takes, and that all of it is freed."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import aiorate
from aiorate.testing import VirtualLoop

AT_ONCE = 100  # keys used in one instant
PLENTY = 10_000_000
A_DAY = 86_400
# Options of a limiter whose keys owe for 5 ms and are used in rounds of 10 ms, and the most keys that it may keep.
OPTIONS: dict[str, tuple[Callable[[], dict[str, Any]], int]] = {
    "alone": (dict, 2 * AT_ONCE),
    "shared": (lambda: {"shared": aiorate.TokenBucket(PLENTY, PLENTY)}, 2 * AT_ONCE),
    "idle and max_keys": (lambda: {"idle": A_DAY, "max_keys": 500}, 500),
    "shared, idle and max_keys": (lambda: {"shared": aiorate.SlidingWindow(PLENTY), "idle": A_DAY, "max_keys": 500}, 500),
}
ALONE, BOTH = "alone", "shared, idle and max_keys"


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off, so that only reference counts free memory."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the bytes allocated since. Coverage, whose notes take memory too, is not measured meanwhile."""
    tracer = sys.gettrace()
    sys.settrace(None)
    with uncollected():
        tracemalloc.start()
        try:
            yield lambda: tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
            sys.settrace(tracer)


def virtually(main: Callable[[], Any]) -> Any:
    """Run it in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


async def use(keyed: aiorate.KeyedLimiter[Any], keys: range) -> int:
    """Use each key once, with acquire() and try_acquire() in turn; return the most keys kept at any time."""
    most = 0
    for key in keys:
        assert keyed.try_acquire(key) if key % 2 else await keyed.acquire(key) == 0
        most = max(most, len(keyed))
        if key % AT_ONCE == 0:
            await asyncio.sleep(0.01)
    return most


@pytest.mark.parametrize(
    ("many", "options"),
    [
        (20_000, ALONE),
        (20_000, BOTH),
        *(pytest.param(400_000 if options == BOTH else 200_000, options, marks=pytest.mark.slow) for options in OPTIONS),
    ],
)
def test_keys_that_are_used_once_leave_nothing(many: int, options: str) -> None:
    """aspnetcore-redis-rate-limiting#61: a limit for each address that was ever seen fills the memory in a day."""
    make, most = OPTIONS[options]

    async def main() -> tuple[int, int, int]:
        keyed = aiorate.KeyedLimiter[int](lambda key: aiorate.TokenBucket("200/s", burst=1), **make())
        await use(keyed, range(10 * AT_ONCE))
        keyed.evict()
        with uncollected():
            before = sys.getallocatedblocks()
            kept = await use(keyed, range(many))
            await asyncio.sleep(0.01)
            keyed.evict()
            found = gc.collect()  # which also frees what the interpreter keeps for later use
            return kept, found, sys.getallocatedblocks() - before

    kept, found, left = virtually(main)

    assert kept <= most
    assert found < AT_ONCE
    assert left < AT_ONCE  # a key takes a dozen blocks


@pytest.mark.parametrize("shared", [None, PLENTY])
@pytest.mark.parametrize("many", [2_000, pytest.param(30_000, marks=pytest.mark.slow)])
def test_a_rush_of_keys_is_dropped_once_others_are_used(many: int, shared: int | None) -> None:
    """Keys that owe are kept, whatever their number; once they do not, the same number of new keys is enough to drop them all."""

    async def main() -> tuple[int, int, int]:
        everybody = None if shared is None else aiorate.TokenBucket(shared, shared)
        keyed = aiorate.KeyedLimiter[int](lambda key: aiorate.TokenBucket("1/day", burst=1), shared=everybody, max_keys=1_000)
        keyed.try_acquire(-1)
        with traced() as allocated:
            for key in range(many):
                assert keyed.try_acquire(key)
            rush = len(keyed)
            for key in range(many, 2 * many):
                if key % AT_ONCE == 0:
                    await asyncio.sleep(A_DAY)
                assert keyed.try_acquire(key)
            gc.collect()
            return rush, len(keyed), allocated()

    rush, later, left = virtually(main)

    assert rush == many + 1
    assert later <= 2 * AT_ONCE
    assert left <= 2 * AT_ONCE * 2_000


KINDS: dict[str, Callable[[str], aiorate.Scheduler | str]] = {
    "TokenBucket": lambda key: aiorate.TokenBucket("10/day", burst=5),
    "a rate": lambda key: "10/day",
    "SlidingWindow": lambda key: aiorate.SlidingWindow("10/day"),
}


@pytest.mark.parametrize("shared", [pytest.param(None, marks=pytest.mark.slow), PLENTY])  # with it, a key takes more
@pytest.mark.parametrize("kind", KINDS)
def test_a_key_takes_at_most_1500_bytes(kind: str, shared: int | None) -> None:
    """The figure, which includes its name and its place in the dict, tells how many keys fit into a machine."""

    async def main() -> float:
        keyed = aiorate.KeyedLimiter(KINDS[kind], shared=None if shared is None else aiorate.TokenBucket(shared, shared))
        await keyed.acquire("first")
        with traced() as allocated:
            for key in range(5_000):
                name = f"user-{key}"
                assert keyed.try_acquire(name) if key % 2 else await keyed.acquire(name) == 0
            return allocated() / 5_000

    assert asyncio.run(main()) <= 1_500
