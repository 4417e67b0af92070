"""``demo``: real requests to a local server that answers 429 beyond its limit, first without and then with a limiter.

The verdict compares the limiter's guarantee with what it granted. The server sees each request a little later, some more than others, so
a second may hold more arrivals than grants.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import asynccontextmanager
from math import ceil
from time import monotonic_ns
from typing import TYPE_CHECKING

from aiohttp import ClientSession, TCPConnector, web

from aiorate import Limiter, LimiterClosed
from aiorate._rate import NS_PER_SECOND as SECOND
from aiorate._tools.simulate import busiest
from aiorate.aiohttp import middleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiorate import Scheduler


_ANSWER_AFTER = 0.05  # seconds
_DEMAND = 3  # what the clients would send without a limiter, as a multiple of the rate
_MOST_CLIENTS = 200
_MORE = 1.1  # what the server allows, as a multiple of the guarantee: the network moves requests together


def run(scheduler: Scheduler, seconds: float) -> int:
    """Run the demo and show its results; returns the exit code: 1 if the guarantee was broken."""
    limiter = Limiter(scheduler)
    bound, rate = limiter.bound(1), limiter.rate.per_second
    allowed = ceil(_MORE * (bound or rate))
    clients = min(max(ceil(_DEMAND * rate * _ANSWER_AFTER), 1), _MOST_CLIENTS)
    print(f"{scheduler!r}: one limiter for {clients} clients.")
    print(f"The server answers after {_ANSWER_AFTER * 1000:g} ms, and allows {allowed} requests in any second.", flush=True)
    free, refused_free = asyncio.run(send(min(1.5, seconds), clients, allowed))
    print(f"Without the limiter it got {len(free)} requests. Now {seconds:g} s with it ...\n", flush=True)
    begin = monotonic_ns()
    limited, refused = asyncio.run(send(seconds, clients, allowed, limiter))
    seen, took = limiter.statistics(), (monotonic_ns() - begin) / SECOND
    rows: list[tuple[str, object, object]] = [
        ("", "without", "with the limiter"),
        ("requests", len(free), len(limited)),
        ("refused by the server (429)", refused_free[429], refused[429]),
        ("arrived in the busiest second", busiest(free, SECOND), busiest(limited, SECOND)),
        ("bound(1): granted in any second, at most", "-", "none" if bound is None else bound),
        ("median wait, longest wait", "-", f"{seen.waited_p50:.3f} s, {seen.waited_max:.3f} s"),
    ]
    for name, without, with_it in rows:
        print(f"{name:42}{without!s:>9}{with_it!s:>20}")
    kept, verdict = judge(limiter.bound(took), seen.granted, len(limited), took)
    print(f"\n{verdict}")
    return 0 if kept else 1


def judge(bound: int | None, granted: int, arrived: int, seconds: float) -> tuple[bool, str]:
    """Whether no more was granted than the bound of so many seconds, and nothing else arrived; and the same as a sentence."""
    if arrived > granted:
        return False, "BROKEN: the server saw a request that the limiter had not granted."
    if bound is None:
        return True, "This strategy bounds no window, so there is no guarantee to keep."
    kept = granted <= bound
    return kept, f"{'Kept' if kept else 'BROKEN'}: {granted} grants in {seconds:.1f} s, where the guarantee is at most {bound}."


async def send(seconds: float, clients: int, allowed: int, limiter: Limiter | None = None) -> tuple[list[int], Counter[int]]:
    """Have so many clients send requests for some seconds to a server that allows so many per second.

    Returns the instants (ns) at which they arrived, and how many answers had which status.
    """
    arrivals, answers = list[int](), Counter[int]()
    middlewares = [middleware(limiter)] if limiter else []
    async with _server(allowed, arrivals) as url, ClientSession(middlewares=middlewares, connector=TCPConnector(limit=0)) as session:

        async def keep_sending() -> None:
            while monotonic_ns() < end:
                try:
                    async with session.get(url) as response:
                        answers[response.status] += 1
                except LimiterClosed:
                    return

        end = monotonic_ns() + round(seconds * SECOND)
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(keep_sending())
            if limiter is not None:
                await asyncio.sleep(seconds)
                await limiter.aclose()  # those in line have not been sent; those under way finish
    return arrivals, answers


@asynccontextmanager
async def _server(allowed: int, arrivals: list[int]) -> AsyncIterator[str]:
    """Serve on any free port of loopback; the target is the URL. Every arrival is noted; refused requests do not count for the limit."""
    passed: deque[int] = deque()

    async def answer(request: web.BaseRequest) -> web.Response:
        now = monotonic_ns()
        arrivals.append(now)
        while passed and now - passed[0] >= SECOND:
            passed.popleft()
        status = 200 if len(passed) < allowed else 429
        if status == 200:
            passed.append(now)
        await asyncio.sleep(_ANSWER_AFTER)
        return web.Response(status=status)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
