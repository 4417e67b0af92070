"""FileLimiter and FileBudget: several over one file, as several processes have them. In virtual time, but for threads."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest
import trio

from aiorate import CalendarWindow, KeyedBudget, KeyedLimiter, LimiterClosed, LineFull, RateSpec, TokenBucket, WaitTooLong
from aiorate._store.script import HEAD, Question
from aiorate._store.twin import answer_of, take_now
from aiorate._tree.deciding import decisions
from aiorate.file import FileBudget, FileLimiter

virtual = pytest.mark.asyncio(loop_factories=["virtual"])


def near(value: float, by: float = 0.02) -> Any:
    return pytest.approx(value, abs=by)


def descriptors() -> int:
    """How many are open in this process; 0 where nobody tells."""
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


@virtual
async def test_limiters_of_one_name_share_a_schedule(path: Path) -> None:
    """The first at once, the others at the rate, whoever asks; those for several gather slots. Another name is another limit."""
    loop, found = asyncio.get_running_loop(), []

    async def one(limiter: FileLimiter, permits: int) -> None:
        await limiter.acquire(permits)
        found.append((loop.time(), permits))

    limiters = [FileLimiter(path, "100/s") for _ in range(3)]
    await asyncio.gather(*[one(limiter, permits) for permits in (1, 10, 1, 1, 5, 1, 1) for limiter in limiters])

    assert loop.time() == near(0.6, 0.04)
    assert [at for at, _ in found[:3]] == [0.0, near(0.01, 0.001), near(0.02, 0.001)]
    assert 0.0 == await FileLimiter(path, "100/s", name="other").acquire()
    with pytest.raises(ValueError, match="never grants more than 5"):
        await FileLimiter(path, CalendarWindow("5/h", "UTC"), name="hour").acquire(6)


@virtual
async def test_try_acquire_takes_what_is_there(path: Path) -> None:
    """And all know what is left."""
    table: list[tuple[Any, dict[str, Any], int]] = [
        ("10/s", {}, 1),
        ("10/s", {"burst": 4}, 4),
        (TokenBucket("10/s", burst=5), {}, 5),
        (["100/s", TokenBucket("10/s", burst=3)], {}, 1),
        (CalendarWindow("7/h", "UTC"), {}, 7),
        (TokenBucket("10/s", burst=5), {"lease": 0.05}, 5),
    ]
    for number, (rate, options, most) in enumerate(table):
        one, other = [FileLimiter(path, rate, name=f"{number}", **options) for _ in range(2)]
        assert sum([limiter.try_acquire() for _ in range(20) for limiter in (one, other)]) == most
        assert 0 < one.delay() == near(other.delay(), 0.11)
        with pytest.raises(WaitTooLong, match="max_wait is 0 s"):
            await other.acquire(max_wait=0)
        counted = one.statistics()
        assert (counted.granted + other.statistics().granted, counted.available, counted.state) == (most, 0, "shared")


@virtual
async def test_cancellation_gives_slots_back(path: Path) -> None:
    """To the next in line at once; and where nobody waits, to other processes."""
    one, other = FileLimiter(path, "1/s"), FileLimiter(path, "1/s")
    await one.acquire()
    first, second = [asyncio.ensure_future(one.acquire()) for _ in range(2)]
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == near(1.0)
    third = asyncio.ensure_future(one.acquire())
    await asyncio.sleep(0.2)
    third.cancel()
    await asyncio.sleep(0.1)
    assert other.delay() == near(0.7)
    assert (one.statistics().granted, one.statistics().cancelled, one.statistics().waiting) == (2, 2, 0)


@virtual
async def test_it_has_the_calls_of_a_limiter(path: Path) -> None:
    waits: list[Any] = []
    one = FileLimiter(path, TokenBucket("1/s", burst=5), name="api", max_waiting=1, max_concurrency=1, on_wait=waits.append)
    other = FileLimiter(path, TokenBucket("1/s", burst=5), name="api")
    async with one as waited:
        assert waited == 0.0
    assert one.try_acquire(4)
    one.refund(3)
    assert other.statistics().available == 3
    other.charge(6)
    assert one.delay() == near(4.0)
    one.set_rate("2/s")
    line = asyncio.ensure_future(one.acquire())
    await asyncio.sleep(0)
    with pytest.raises(LineFull):
        await one.acquire()
    await one.aclose()
    for call in (lambda: line, one.acquire):
        with pytest.raises(LimiterClosed):
            await call()
    assert other.delay() == near(4.0)  # the slot came back
    one.apply(RateSpec("1/s", 1, "start"))
    assert await one.acquire() == near(4.0)
    assert (one.name, one.rate.permits, [wait.permits for wait in waits]) == ("api", 1, [1])
    assert "Pool(1/s burst 5" in repr(one)
    assert (FileLimiter(path, "100/s", lease=0.05).bound(1), FileLimiter(path, "100/s").bound(1)) == (106, 102)
    with pytest.raises(RuntimeError, match="Use another name"):
        one.reset()


@virtual
async def test_pauses_reach_all_and_so_does_their_end(path: Path) -> None:
    one, other = FileLimiter(path, "10/s"), FileLimiter(path, "10/s")
    one.pause(60)
    waiting = asyncio.ensure_future(other.acquire())
    await asyncio.sleep(5)
    assert (waiting.done(), other.try_acquire(), other.statistics().paused_until) == (False, False, near(60))
    one.resume()
    await asyncio.sleep(1.1)  # a process that waits looks every second
    assert waiting.done()
    line = [asyncio.ensure_future(other.acquire()) for _ in range(5)]
    await asyncio.sleep(0.15)  # they wait already when it begins
    one.pause(60)
    await asyncio.sleep(1)
    one.resume()
    await asyncio.sleep(2)
    assert all(task.done() for task in line)


@virtual
async def test_a_calendar_quota_is_for_all_and_survives(path: Path) -> None:
    """The next window has the whole quota again, and those who wait have equal parts at its edge."""
    one, other = [FileLimiter(path, CalendarWindow("10/h", "UTC")) for _ in range(2)]
    assert sum([each.try_acquire() for _ in range(8) for each in (one, other)]) == 10
    one.refund(1)
    again = FileLimiter(path, CalendarWindow("10/h", "UTC"))
    assert (again.try_acquire(), other.try_acquire()) == (True, False)
    wait = other.delay()
    waits = await asyncio.gather(*[each.acquire() for _ in range(5) for each in (again, other)])
    assert max(waits) == near(wait, 1.5)


@virtual
async def test_keys_in_one_file_by_one_descriptor(path: Path) -> None:
    """Whoever makes them; and records at rest are used again."""
    keys: KeyedLimiter[str] = KeyedLimiter(lambda key: FileLimiter(path, "1/h", name=key))
    before = descriptors()
    assert all(keys.try_acquire(f"{number}") for number in range(2000))
    assert not any(FileLimiter(path, "1/h", name=f"{number}").try_acquire() for number in range(2000))
    assert descriptors() <= before + 1
    shared = FileLimiter(path, TokenBucket("10/s", burst=5), name="all")
    users: KeyedLimiter[str] = KeyedLimiter(lambda key: FileLimiter(path, TokenBucket("10/s", burst=9), name=f"u{key}"), shared=shared)
    assert sum([users.try_acquire(key) for _ in range(4) for key in "ab"]) == 5
    assert sorted(await asyncio.gather(users.acquire("a"), users.acquire("b"))) == [near(0.1), near(0.2)]
    with pytest.raises(RuntimeError, match="one event loop"):
        await asyncio.to_thread(users["a"].acquire_blocking)
    pages = os.stat(path).st_size
    for number in range(3000):
        assert FileLimiter(path, TokenBucket(10**9, burst=1), name=f"more {number}").try_acquire()
    assert os.stat(path).st_size <= pages + 2**20


def test_any_loop_and_any_thread_without_an_option(path: Path) -> None:
    limiter = FileLimiter(path, "200/s")

    @limiter
    def decorated() -> int:
        return 1

    async def in_a_loop() -> None:
        for _ in range(10):
            async with limiter:
                pass

    def blocking() -> None:
        for _ in range(5):
            with limiter:
                decorated()

    asyncio.run(in_a_loop())
    began = monotonic()
    targets = (blocking, blocking, lambda: asyncio.run(in_a_loop()), lambda: trio.run(in_a_loop))
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    asyncio.run(in_a_loop())
    blocking()
    for thread in threads:
        thread.join()

    assert monotonic() - began >= 59 / 200 - 0.011
    correct = threading.Thread(target=lambda: (limiter.refund(2), limiter.charge(3)))
    correct.start()
    correct.join()
    counted = limiter.statistics()
    assert (counted.granted, counted.refunded, counted.charged, counted.waiting) == (68, 2, 3, 0)
    with pytest.raises(WaitTooLong):
        limiter.acquire_blocking(50, max_wait=0.01)
    asyncio.run(limiter.aclose())
    with pytest.raises(LimiterClosed):
        limiter.acquire_blocking()


def test_trio_runs_leave_no_clock_of_their_own(path: Path) -> None:
    for _ in range(4):
        trio.run(lambda: FileLimiter(path, "100/s").acquire(max_wait=5))
        FileLimiter(path, "100/s").acquire_blocking(max_wait=5)


def test_nothing_is_left_of_it(path: Path) -> None:
    """Neither a task nor a timer where nobody waits; the descriptor closes with the last limiter."""

    async def main() -> int:
        limiter = FileLimiter(path, 1000)
        await asyncio.gather(*[limiter.acquire() for _ in range(50)])
        await asyncio.sleep(0.2)
        return len(asyncio.all_tasks()) + len(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]

    decisions.run(int)  # a limiter whose thread went on is kept until the next decision, for a second at most
    gc.collect()
    before = descriptors()
    assert asyncio.run(main()) == 1
    gc.collect()
    assert descriptors() == before


def test_the_short_way_is_that_of_the_script() -> None:
    """Random histories of a bucket: `take_now` and `answer_of` agree on each answer and each value."""
    for seed in range(300):
        random = Random(seed)
        every, burst = random.choice([10.0, 1000.0, 1e6 / 7]), random.choice([1, 1, 3, 50])
        at, value = 1e12, None
        for _ in range(30):
            at += random.choice([0.0, 1.0, every, burst * every, random.uniform(0, 3 * every), -every])
            n = random.choice([1, 1, 2, burst, burst + 1])
            asked = Question(horizon=20_000.0, within=0.0, limits=[[every, burst, 0, 0, 0, 0, 0]], runs=[(n, [1])])
            answer, rests = answer_of(at, asked, value, value, False)
            short, new, keep = take_now(every, burst, n, value, value, at)
            assert short == (answer.runs[0][0] > 0, pytest.approx(answer.numbers[HEAD], rel=1e-9, abs=1e-3))
            if new is not None:
                assert ([*new], keep) == (pytest.approx(answer.numbers, rel=1e-9, abs=1e-3), pytest.approx(rests, abs=1e-3))
                value = new


# Budgets.


def budget(path: Path, **options: Any) -> FileBudget:
    return FileBudget(path, requests="100/s", tokens=TokenBucket("1000/s", burst=1000), **options)


@virtual
async def test_reserve_settle_refund_and_cancel_are_for_all(path: Path) -> None:
    alone = FileBudget(path, name="alone", tokens=TokenBucket("1/s", burst=9))
    async with alone.reserve(tokens=4):
        assert alone.statistics().available == alone.available("tokens") == 5
    one, other = budget(path), budget(path)
    async with one.reserve(requests=0, tokens=800) as lease:
        assert (lease.waited, other.available("tokens"), one.statistics().available) == (0.0, 200, 1)
        lease.settle(tokens=100)
    async with other.reserve(requests=0, tokens=600) as lease:
        lease.refund()
    assert one.available("tokens") == near(900, 1)
    async with one.reserve(requests=0, tokens=900):
        pass
    with pytest.raises(WaitTooLong):
        async with other.reserve(tokens=500, max_wait=0):
            pass
    async with other.reserve(tokens=500) as lease:
        assert (lease.limited_by, lease.waited) == ("tokens", near(0.5))
    waiting = [asyncio.ensure_future(one.reserve(requests=0, tokens=500).__aenter__()) for _ in range(2)]
    await asyncio.sleep(0.1)
    for task in waiting:
        task.cancel()
    await asyncio.sleep(0.2)
    assert other.delay(requests=0, tokens=500) == near(0.2, 0.03)
    line = asyncio.ensure_future(one.reserve(tokens=1000).__aenter__())
    await asyncio.sleep(0)
    await one.aclose()
    with pytest.raises(LimiterClosed):
        await line
    assert other.delay(requests=0, tokens=500) == near(0.2, 0.03)


@virtual
async def test_the_rate_of_the_tighter_dimension(path: Path) -> None:
    """Many that reserve twice what they use have the whole rate, and never more than the bound."""
    loop, used = asyncio.get_running_loop(), []

    async def work(own: FileBudget) -> None:
        for _ in range(20):
            async with own.reserve(requests=0, tokens=40) as lease:
                used.append(loop.time())
                await asyncio.sleep(0.005)
                lease.settle(tokens=20)

    began = loop.time()
    await asyncio.gather(*[work(own) for own in (budget(path), budget(path)) for _ in range(10)])
    assert 20 * len(used) / (1000 + 1000 * (loop.time() - began)) > 0.95
    assert max(sum(first <= at <= first + 1 for at in used) for first in used[::20]) * 20 <= 1000 + 1000 * 1.01 + 40


@virtual
async def test_budgets_are_shared_and_keyed_and_serve_threads(path: Path) -> None:
    every = FileBudget(path, name="all", tokens=TokenBucket("1000/s", burst=1000))
    teams: KeyedBudget[str] = KeyedBudget(lambda team: FileBudget(path, name=team, tokens=TokenBucket("700/s", burst=700)), shared=every)
    async with teams.reserve("a", tokens=700), teams.reserve("b", tokens=300):
        pass
    assert (every.available("tokens"), teams["b"].available("tokens")) == (0, 0)
    own = FileBudget(path, name="threads", shared=FileBudget(path, name="x", tokens="100/s"), tokens="100/s", scope="process")

    def work() -> None:
        with own.reserve(tokens=1) as lease:
            lease.settle(tokens=1)

    await asyncio.gather(*[asyncio.to_thread(work) for _ in range(4)])
    assert own.statistics().granted == 4
