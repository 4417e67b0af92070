"""Keys and budgets with `scope="process"`: asked, made, reserved and evicted by any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from helpers.driving import LONG
from helpers.threads import EACH_KIND, LoopThread, call_in_thread, in_thread, loop_thread, waiting

import aiorate
from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate._tree.deciding import decisions
from aiorate.testing import ManualClock


def wide(clock: ManualClock | None = None, rate: str = "10/s", burst: int = 1) -> Limiter:
    return Limiter(TokenBucket(rate, burst=burst), scope="process", clock=clock)


def entered(block: Any) -> float:
    with block as waited:
        assert isinstance(waited, float)
        return waited


@EACH_KIND
def test_threads_and_loops_wait_in_the_line_of_a_key(kind: str) -> None:
    """By each of its calls, in order of arrival; another key does not wait."""
    clock = ManualClock()
    keyed = KeyedLimiter[str](lambda key: wide(clock), scope="process")
    with loop_thread(kind) as loop:
        assert 0.0 == keyed.acquire_blocking("a")
        asked: list[Future[Any]] = [in_thread(lambda: keyed.acquire_blocking("a", max_wait=9))]
        waiting(keyed["a"], 1)
        asked.append(loop.start(lambda: keyed.acquire("a")))
        asked.append(in_thread(lambda: entered(keyed("a"))))
        waiting(keyed["a"], 3)
        assert 0.0 == entered(keyed("b"))
        for _ in range(3):
            clock.advance(0.1)

        assert [0.1, 0.2, 0.3] == pytest.approx(sorted(future.result(LONG) for future in asked))
    assert not keyed.try_acquire("a")


def test_threads_get_one_limiter_for_a_key() -> None:
    calls: Counter[str] = Counter()
    shared = wide(burst=1000)

    def factory(key: str) -> str:
        calls[f"factory {key}"] += 1
        time.sleep(0)  # gives other threads a chance
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

    assert (200, 100, 100) == (len(calls), len(found), len(keyed))


def test_other_threads_go_on_while_a_key_is_made() -> None:
    """Kept keys are found, and their requests granted. If the keys are closed meanwhile, the new one is not kept: it would stay open."""
    inside, over = threading.Event(), threading.Event()

    def factory(key: str) -> str:
        if key == "slow":
            inside.set()
            assert over.wait(LONG)
        return "1000/s"

    shared = wide(burst=100)
    keyed = KeyedLimiter[str](factory, shared=shared, scope="process")
    keyed.acquire_blocking("kept")
    slow = in_thread(lambda: keyed.acquire_blocking("slow"))
    assert inside.wait(LONG)
    keyed.acquire_blocking("kept")
    assert 2 == shared.statistics().granted
    asyncio.run(keyed.aclose())
    over.set()

    assert isinstance(slow.exception(LONG), aiorate.LimiterClosed)
    assert "slow" not in keyed


def test_a_slow_factory_holds_up_no_other_key() -> None:
    """One lock served all factories of the process. Who wants the very key that is being made gets that of the first."""
    inside, over = threading.Event(), threading.Event()
    made: list[str] = []

    def factory(key: str) -> str:
        made.append(key)
        if key == "slow":
            inside.set()
            assert over.wait(LONG)
        return "1000/s"

    keyed = KeyedLimiter[str](factory, scope="process")
    others = KeyedLimiter[str](factory, scope="process")
    slow = in_thread(lambda: keyed["slow"])
    assert inside.wait(LONG)
    same = in_thread(lambda: keyed["slow"])
    while 2 > made.count("slow"):
        time.sleep(0.001)

    keyed.acquire_blocking("quick")
    others.acquire_blocking("quick")
    assert not same.done()
    over.set()

    assert slow.result(LONG) is same.result(LONG)
    assert ["slow", "slow", "quick", "quick"] == made


def test_a_key_in_use_by_a_thread_is_kept() -> None:
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


@pytest.mark.parametrize("loops", [False, True])
def test_evictions_never_lose_a_debt(loops: bool) -> None:
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


# Budgets.


def made(clock: ManualClock | None = None, **options: Any) -> Budget:
    """Ten requests and a hundred tokens at once, and as many in each second."""
    dimensions: dict[str, Any] = {"requests": TokenBucket("10/s", burst=10), "tokens": TokenBucket("100/s", burst=100)}
    return Budget(scope="process", clock=clock or ManualClock(), **{**dimensions, **options})


def blocked(budget: Budget, used: int | None = None, **amounts: Any) -> Future[aiorate.Lease]:

    def reserve() -> aiorate.Lease:
        with budget.reserve(**amounts) as lease:
            if used is not None:
                lease.settle(tokens=used)
        return lease

    return in_thread(reserve)


async def awaited(budget: Budget, **amounts: Any) -> aiorate.Lease:
    async with budget.reserve(**amounts) as lease:
        return lease


def test_threads_and_loops_stand_in_one_line() -> None:
    clock = ManualClock()
    budget = made(clock)
    with LoopThread() as loop:
        with budget.reserve(tokens=100):
            pass
        first = loop.start(lambda: awaited(budget, tokens=10))
        waiting(budget, 1)
        second = blocked(budget, tokens=10)
        waiting(budget, 2)
        third = loop.start(lambda: awaited(budget, tokens=10))
        waiting(budget, 3)
        for each in (first, second, third):
            clock.advance(0.1)
            lease = each.result(LONG)
            assert "tokens" == lease.limited_by

        assert 0 == budget.waiting
    assert [0.1, 0.2, 0.3] == pytest.approx([each.result(LONG).waited for each in (first, second, third)])


def test_of_many_threads_that_settle_one_counts() -> None:
    budget = made()
    barrier = threading.Barrier(8)
    with budget.reserve(tokens=100) as lease:
        for thread in [in_thread(lambda: (barrier.wait(LONG), lease.settle(tokens=90))) for _ in range(8)]:  # type: ignore[func-returns-value]
            thread.result(LONG)
    with pytest.raises(OSError, match="lost"), budget.reserve(tokens=10, on_error="refund"):
        raise OSError("lost")
    assert 10 == budget.available("tokens")


def test_max_wait_and_max_waiting_hold_for_threads() -> None:
    clock = ManualClock()
    budget = made(clock, max_waiting=1)
    with budget.reserve(tokens=100):
        pass
    with pytest.raises(aiorate.WaitTooLong, match="tokens"), budget.reserve(tokens=50, max_wait=0.4):
        pass
    late = blocked(budget, tokens=50, max_wait=0.5)
    waiting(budget, 1)
    with pytest.raises(aiorate.LineFull), budget.reserve():
        pass
    call_in_thread(lambda: budget.pause(10))
    clock.advance(1)

    assert isinstance(late.exception(LONG), aiorate.WaitTooLong)
    assert 0 == budget.waiting


def shared_limiter(clock: ManualClock) -> list[Budget]:
    limiter = Limiter(TokenBucket("10/s", burst=10), scope="process", clock=clock)
    return [made(clock, requests=limiter) for _ in range(2)]


def shared_budget(clock: ManualClock) -> list[Budget]:
    team = Budget(requests=TokenBucket("10/s", burst=10), scope="process", clock=clock)
    return [made(clock, shared=team) for _ in range(2)]


def test_a_shared_bound_holds_for_threads_and_loops() -> None:
    """Together, and what was not used comes back to both levels."""
    for shared in (shared_limiter, shared_budget):
        clock = ManualClock()
        first, second = shared(clock)
        with first.reserve(requests=8) as lease, LoopThread() as loop:
            task = loop.start(lambda: awaited(second, requests=5))  # noqa: B023
            waiting(second, 1)
            thread = blocked(second, requests=1)
            waiting(second, 2)
            lease.settle(requests=5)

            assert 0.0 == task.result(LONG).waited
            clock.advance(0.1)
            thread.result(LONG)
        assert 0 == second.waiting


def test_nobody_takes_a_permit_past_a_decision() -> None:
    """The meter takes no lock, and what it gave would be lost in the middle of a decision."""
    limiter = Limiter(TokenBucket("1/s", burst=100), scope="process")
    found: list[bool] = []
    assert limiter.try_acquire()
    tree, grab = limiter._node.tree, partial(limiter._node.meter.grab, True)

    opens = tree.loop is not None and tree.loop.steady  # where a grab is one step

    def had() -> bool:  # in the end: the thread that decided may not be quite through
        return any(grab() or time.sleep(0) for _ in range(1_000_000 if opens else 1))

    assert had() is opens
    found += [tree.run(grab), call_in_thread(lambda: tree.run(grab))]
    call_in_thread(lambda: tree.post(lambda: found.append(grab())))

    assert [False] * 3 == found
    assert had() is opens
    assert 1 + 2 * opens == limiter.statistics().granted


def test_on_event_of_an_eviction_may_use_the_keys() -> None:
    """Told in the thread aiorate, while the main thread that evicted waited for it and kept others from the keys."""
    keyed = KeyedLimiter[object](lambda key: "1000000/s", scope="process", on_event=lambda event: keyed.try_acquire("evictions"))
    for number in range(20):
        assert keyed.try_acquire(number)
    time.sleep(0.001)

    assert 20 == keyed.evict()
    assert ["evictions"] == list(keyed)


def test_a_caller_that_is_interrupted_after_the_decision_has_spent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C, once the permits are taken and before the call returns."""
    limiter = Limiter(TokenBucket("1/h", burst=4), scope="process")
    run = type(decisions).run

    def interrupted(*arguments: Any) -> None:
        run(*arguments)
        raise KeyboardInterrupt

    for call in (limiter.try_acquire, limiter.acquire_blocking):
        with monkeypatch.context() as patched:
            patched.setattr(type(decisions), "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                call(2)
        decisions.run(int)
        assert (4, 0) == (limiter.statistics().available, limiter.statistics().granted), call
