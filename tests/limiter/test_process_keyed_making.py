"""Keys with `scope="process"`, made and evicted: each function is called once for a key, and no thread loses a key in use."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from time import sleep

import pytest
from helpers.driving import LONG
from helpers.threads import call_in_thread, in_thread, waiting

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.testing import ManualClock


def wide(clock: ManualClock | None = None, rate: str = "10/s", burst: int = 1) -> Limiter:
    return Limiter(TokenBucket(rate, burst=burst), scope="process", clock=clock)


def test_each_function_is_asked_once_for_a_key() -> None:
    """However many threads need the key at once."""
    calls: Counter[str] = Counter()
    shared = wide(burst=1000)

    def factory(key: str) -> str:
        calls[f"factory {key}"] += 1
        sleep(0)  # gives other threads a chance
        return "1000000/s"

    def share(key: str) -> Limiter:
        calls[f"shared {key}"] += 1
        return shared

    keyed = KeyedLimiter[str](factory, shared=share, scope="process")
    barrier = threading.Barrier(8)
    found: set[Limiter] = set()  # held, or they would be evicted: they owe nothing

    def work() -> None:
        barrier.wait(LONG)
        for number in range(100):
            found.add(keyed[str(number)])

    for thread in [in_thread(work) for _ in range(8)]:
        thread.result(LONG)

    assert {1} == set(calls.values())
    assert (200, 100, 100) == (len(calls), len(found), len(keyed))


def test_other_threads_go_on_while_a_key_is_made() -> None:
    """Its function runs outside of the section: kept keys are found, and their requests granted."""
    inside, over = threading.Event(), threading.Event()
    shared = wide(burst=100)

    def factory(key: str) -> str:
        if key == "slow":
            inside.set()
            assert over.wait(LONG)
        return "1000/s"

    keyed = KeyedLimiter[str](factory, shared=shared, scope="process")
    keyed.acquire_blocking("kept")
    slow = in_thread(lambda: keyed.acquire_blocking("slow"))
    assert inside.wait(LONG)
    keyed.acquire_blocking("kept")
    assert 2 == shared.statistics().granted
    over.set()

    slow.result(LONG)


def test_a_function_that_fails_leaves_no_half_made_key() -> None:
    """The next thread asks it again."""
    failing = [True]

    def factory(key: str) -> str:
        if failing[0]:
            raise KeyError(key)
        return "10/s"

    keyed = KeyedLimiter[str](factory, scope="process")
    for _ in range(2):
        with pytest.raises(KeyError):
            call_in_thread(lambda: keyed.acquire_blocking("a"))
    failing[0] = False

    assert 0.0 == keyed.acquire_blocking("a")


def test_a_key_in_use_by_a_thread_is_kept() -> None:
    """Waiting, or held; others are evicted meanwhile."""
    clock = ManualClock()
    keyed = KeyedLimiter[str](lambda key: wide(clock), scope="process")
    keyed.acquire_blocking("waits")
    late = in_thread(lambda: keyed.acquire_blocking("waits"))
    waiting(keyed["waits"], 1)
    held = keyed["held"]
    for number in range(50):
        keyed.try_acquire(str(number))
    clock.advance(0.05)
    assert 0 == call_in_thread(keyed.evict)
    clock.advance(10)
    late.result(LONG)
    clock.advance(10)
    call_in_thread(keyed.evict)

    assert "held" in keyed
    assert keyed["held"] is held
    assert 2 >= len(keyed)


def test_evicted_keys_leave_no_trace() -> None:
    """Ten thousand keys, of which each had a waiter or took a permit: their dispatchers are freed."""
    clock = ManualClock()
    shared = wide(clock, rate="1000000/s", burst=1_000_000)
    keyed = KeyedLimiter[int](lambda key: TokenBucket("1000000/s", 1), shared=shared, scope="process", max_keys=100)
    for key in range(2_000):
        keyed.acquire_blocking(key)
        if key % 10 == 0:
            keyed.acquire_blocking(key)
    threading.Event().wait(0.02)  # more than a tick of any clock
    keyed.evict()
    loop = shared._dispatcher.loop
    assert loop is not None

    assert len(keyed) <= 1
    assert len(loop.family.dispatchers) <= 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("loops", [False, True])
def test_evictions_never_lose_a_debt(loops: bool) -> None:
    """Eight threads use and evict twenty keys: no key ever grants more than its burst."""
    clock = ManualClock()
    granted: Counter[int] = Counter()
    lock = threading.Lock()
    keyed = KeyedLimiter[int](lambda key: wide(clock, rate="1/h", burst=5), scope="process", max_keys=3)

    def work(seed: int) -> None:
        for step in range(300):
            key = (step * 7 + seed) % 20
            if keyed.try_acquire(key):
                with lock:
                    granted[key] += 1
            if step % 10 == 0:
                keyed.evict()

    async def task(seed: int) -> None:
        work(seed)

    for thread in [in_thread(lambda seed=seed: asyncio.run(task(seed)) if loops else work(seed)) for seed in range(8)]:  # type: ignore[misc]
        thread.result(LONG)

    assert {5} == set(granted.values())
    assert 20 == len(granted) == len(keyed)
