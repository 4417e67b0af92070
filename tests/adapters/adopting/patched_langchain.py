"""What langchain-core's InMemoryRateLimiter promises, and what the patch mends. Run by test_adopting.py with the patched package.

In real time, as a limiter of threads is: what is checked holds on any machine, however slow.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.rate_limiters import BaseRateLimiter, InMemoryRateLimiter


def check_pace(instants: list[float], begin: float, rate: float) -> None:
    """The bucket is empty at first and holds one token: the k-th call is never earlier than k intervals after the beginning."""
    for number, instant in enumerate(sorted(instants), start=1):
        assert instant - begin >= number / rate - 1e-6


def test_it_is_a_rate_limiter_of_langchain() -> None:
    limiter = InMemoryRateLimiter()

    assert isinstance(limiter, BaseRateLimiter)
    assert (1, 1, 0.1) == (limiter.requests_per_second, limiter.max_bucket_size, limiter.check_every_n_seconds)
    assert 0.0 == limiter.available_tokens


def test_without_blocking_it_answers_at_once() -> None:
    limiter = InMemoryRateLimiter(requests_per_second=0.001)

    assert limiter.acquire(blocking=False) is False
    assert asyncio.run(limiter.aacquire(blocking=False)) is False


def test_the_bucket_fills_up_to_its_size() -> None:
    limiter = InMemoryRateLimiter(requests_per_second=10_000, max_bucket_size=3)
    limiter.acquire()
    while limiter.available_tokens < 3:
        time.sleep(0.001)
    limiter.requests_per_second = 0.001

    assert [True, True, True, False] == [limiter.acquire(blocking=False) for _ in range(4)]


def test_threads_and_two_loops_share_one_pace() -> None:
    limiter = InMemoryRateLimiter(requests_per_second=200)
    instants: list[float] = []

    def in_thread() -> None:
        for _ in range(5):
            assert limiter.acquire() is True
            instants.append(time.monotonic())

    async def in_task() -> None:
        assert await limiter.aacquire() is True
        instants.append(time.monotonic())

    async def in_loop() -> None:
        await asyncio.gather(*(in_task() for _ in range(5)))

    begin = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        for future in [
            pool.submit(in_thread),
            pool.submit(in_thread),
            pool.submit(asyncio.run, in_loop()),
            pool.submit(asyncio.run, in_loop()),
        ]:
            future.result()

    assert 20 == len(instants)
    check_pace(instants, begin, 200)


def test_a_loop_that_is_blocked_on_purpose_goes_on() -> None:
    """As in a notebook: ``model.invoke()`` in a cell, where a loop is running."""
    limiter = InMemoryRateLimiter(requests_per_second=200)

    async def main() -> list[float]:
        waiting = asyncio.create_task(limiter.aacquire())
        await asyncio.sleep(0)
        instants = []
        for _ in range(3):
            assert limiter.acquire() is True
            instants.append(time.monotonic())
        assert await waiting is True
        return instants

    begin = time.monotonic()
    instants = asyncio.run(main())

    check_pace(instants, begin, 200)


def test_tasks_go_in_the_order_in_which_they_asked() -> None:
    limiter = InMemoryRateLimiter(requests_per_second=500)
    order: list[int] = []

    async def ask(number: int) -> None:
        await limiter.aacquire()
        order.append(number)

    async def main() -> None:
        await asyncio.gather(*(ask(number) for number in range(30)))

    asyncio.run(main())

    assert list(range(30)) == order


def test_a_cancelled_task_takes_no_token() -> None:
    limiter = InMemoryRateLimiter(requests_per_second=0.001)

    async def main() -> bool:
        tasks = [asyncio.create_task(limiter.aacquire()) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks[:4]:
            task.cancel()
        await asyncio.wait(tasks[:4])
        limiter.requests_per_second = 1000  # for the waiting task, too
        return await asyncio.wait_for(tasks[4], 60)

    assert asyncio.run(main()) is True


def test_models_wait_for_it() -> None:
    model = FakeListChatModel(responses=["42"], rate_limiter=InMemoryRateLimiter(requests_per_second=100))

    async def main() -> None:
        await model.ainvoke("What?")
        model.invoke("What?")
        await model.abatch(["What?"] * 3)

    begin = time.monotonic()
    model.invoke("What?")
    model.batch(["What?"] * 3)
    asyncio.run(main())

    assert time.monotonic() - begin >= 9 / 100 - 1e-6


@pytest.mark.parametrize("options", [{"max_bucket_size": 0}, {"max_bucket_size": 0.5}, {"requests_per_second": 0}])
def test_what_never_grants_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        InMemoryRateLimiter(**options)
