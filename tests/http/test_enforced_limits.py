"""Real clients of a server that enforces its limit and answers 429.

In real time only what holds on any machine: nothing arrives too early, or more than was allowed.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import httpx2
import pytest
from helpers.clients import EACH, HTTPX, each_client, fetching
from helpers.driving import SECOND, one_loop
from helpers.server import Observed, Server, in_thread

from aiorate import Limiter, TokenBucket
from aiorate.http import limit_transport


def check_pace(limiter: Observed, server: Server) -> None:
    """Fail if a request came too early, or if more came after a pause than the limiter's bound allows."""
    limiter.check(server.arrivals)
    instants = sorted(arrival.instant for arrival in server.arrivals)
    for allowed, until in limiter.told:
        for count, instant in enumerate(instants[allowed:], 1):
            bound = limiter.bound((max(instant - until, 0) + 1_000) / SECOND)
            assert bound is not None
            assert count <= bound


@pytest.mark.parametrize(("backend", "kind"), [*(("asyncio", kind) for kind in EACH), *(("trio", kind) for kind in HTTPX)])
def test_a_crowd_of_tasks_and_a_server_that_says_429(backend: str, kind: str) -> None:
    """One pause holds all: meanwhile only requests granted before it arrive; then they come paced, all in the end."""
    limiter = Observed("2000/s")

    async def main(server: Server) -> None:
        async with fetching(kind, limiter) as fetch, anyio.create_task_group() as tasks:

            async def insist(url: str) -> None:
                while await fetch(url) != 200:
                    pass

            for number in range(120):
                tasks.start_soon(insist, f"{server.url}/{number}")

    with in_thread() as server:
        server.enforce(50, 0.1)
        anyio.run(main, server, backend=backend)

    assert Counter({200: 120, 429: server.refused}) == Counter(arrival.status for arrival in server.arrivals)
    assert limiter.statistics().granted == len(server.arrivals)
    assert server.refused == sum(feedback.status == 429 for feedback in limiter.feedback)
    check_pace(limiter, server)


@one_loop
@each_client
async def test_lower_rate_announced_by_a_server_is_kept(kind: str, server: Server) -> None:
    """From the first response on that tells of it."""
    server.enforce(1_000, 0.1)
    limiter = Observed(TokenBucket("2000/s", burst=20))
    async with fetching(kind, limiter) as fetch:
        await asyncio.gather(*(fetch(server.url) for _ in range(50)))
        server.enforce(15, 0.1)
        await asyncio.gather(*(fetch(server.url) for _ in range(50)))

    assert len(server.arrivals) == 100
    assert min(quota.remaining for feedback in limiter.feedback for quota in feedback.quotas if quota.remaining is not None) < 15
    check_pace(limiter, server)


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_the_delivered_rate_follows_within_one_window() -> None:
    """In virtual time, 5 ms from a server that allows 20 instead of 100 a second for three seconds: all 20 are used, then all 100.

    Its first answer in a window comes just when the second request has its permit, which it had not counted. None is refused.
    """
    loop = asyncio.get_running_loop()
    counted: Counter[int] = Counter()
    refused: Counter[int] = Counter()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(0.005)
        second = int(loop.time())
        allowed = 20 if 2 <= second < 5 else 100
        counted[second] += 1
        left = allowed - counted[second]
        refused[second] += left < 0
        rest = second + 1 - loop.time()
        await asyncio.sleep(0.005)
        headers = {"X-RateLimit-Remaining": str(max(left, 0)), "X-RateLimit-Reset-After": f"{rest:.6f}"}
        return httpx2.Response(429 if left < 0 else 200, headers=headers)

    transport = limit_transport(httpx2.MockTransport(answer), Limiter("100/s"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://example.com") as client, asyncio.TaskGroup() as tasks:
        for _ in range(440):
            tasks.create_task(client.get("/"))

    assert [20, 20, 20] == [counted[second] - refused[second] for second in (2, 3, 4)]
    assert max(refused.values()) == 0
    assert min(counted[0], counted[1], counted[5]) >= 98
