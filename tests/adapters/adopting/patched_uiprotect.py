"""What uiprotect's limiter of the public API promises, and what the patch mends. Run by test_adopting.py with the patched package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from uiprotect import ProtectApiClient

from aiorate.testing import VirtualLoop


def limiter_of(rate: float) -> Any:
    from uiprotect._rate_limit import PublicApiRateLimiter

    return PublicApiRateLimiter(rate)


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run in virtual time."""

    async def body() -> Any:
        return await main()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(body())


async def ask(limiter: Any, times: list[float]) -> None:
    await limiter.acquire()
    times.append(asyncio.get_running_loop().time())


def test_requests_keep_their_distance_also_after_a_rest() -> None:
    async def main() -> list[float]:
        limiter, times = limiter_of(10.0), []
        await asyncio.gather(*(ask(limiter, times) for _ in range(3)))
        await asyncio.sleep(99.8)
        await asyncio.gather(*(ask(limiter, times) for _ in range(3)))
        return times

    assert [0.0, 0.1, 0.2, 100.0, 100.1, 100.2] == pytest.approx(run(main))


@pytest.mark.parametrize("after", [0.0, 0.05, 0.09])
def test_waiting_requests_keep_the_slower_distance(after: float) -> None:
    """The first that waited went at 0.1 s in release 25.0.0, at the distance of the faster rate."""

    async def main() -> list[float]:
        limiter, times = limiter_of(10.0), []
        tasks = [asyncio.create_task(ask(limiter, times)) for _ in range(4)]
        await asyncio.sleep(after)
        limiter.seed_from_policy('"2-in-1sec"; q=2; w=1')
        limiter.seed_from_policy("q=1000; w=1")  # only the first counts
        await asyncio.gather(*tasks)
        return times

    assert [0.0, 0.625, 1.25, 1.875] == pytest.approx(run(main))


def test_a_faster_rate_counts_from_the_next_request() -> None:
    async def main() -> list[float]:
        limiter, times = limiter_of(1.0), []
        tasks = [asyncio.create_task(ask(limiter, times)) for _ in range(4)]
        await asyncio.sleep(0.5)
        limiter.seed_from_policy("q=10; w=1")
        limiter.seed_from_policy(None)
        await asyncio.gather(*tasks)
        return times

    assert [0.0, 1.0, 1.125, 1.25] == pytest.approx(run(main))


def test_a_cancelled_request_takes_no_slot() -> None:
    async def main() -> list[float]:
        limiter, times = limiter_of(1.0), []
        tasks = [asyncio.create_task(ask(limiter, times)) for _ in range(10)]
        await asyncio.sleep(0.5)
        for task in tasks[1:9]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return times

    assert [0.0, 1.0] == pytest.approx(run(main))


def answer(status: int, **headers: str) -> Any:
    return SimpleNamespace(status=status, headers=headers, release=lambda: None, content_type="application/json")


def test_a_429_holds_the_requests_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the refused request waited in release 25.0.0."""
    refused = {"Retry-After": "5"}

    async def main() -> list[float]:
        client = ProtectApiClient("192.168.1.1", 443, api_key="key", verify_ssl=False)
        answers, times = [answer(429, **refused)], []

        async def send(*args: Any, **options: Any) -> Any:
            times.append(asyncio.get_running_loop().time())
            return answers.pop() if answers else answer(200)

        async def session() -> None: ...

        monkeypatch.setattr(client, "_do_request", send)
        monkeypatch.setattr(client, "get_public_api_session", session)
        await asyncio.gather(*(client.request("get", "/v1/cameras", public_api=True, auto_close=False) for _ in range(5)))
        return times

    times = run(main)

    assert 6 == len(times)
    assert 0.0 == times[0]
    assert 5.0 <= times[1] <= 6.25  # with up to 25 % of jitter
    assert all(later - earlier >= 0.125 - 1e-6 for earlier, later in pairwise(times))
