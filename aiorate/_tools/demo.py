"""``demo``: real requests to a local server that answers 429 beyond its limit, first without and then with a limiter.

The verdict is on what the limiter granted: requests arrive later, some more than others, so a second may hold more arrivals than grants.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from math import ceil
from time import monotonic_ns
from typing import TYPE_CHECKING

from aiohttp import ClientSession, TCPConnector, web
from aiohttp.test_utils import RawTestServer

from aiorate import Limiter, LimiterClosed
from aiorate._rate import NS_PER_SECOND as SECOND
from aiorate._tools.simulate import busiest
from aiorate.aiohttp import middleware

if TYPE_CHECKING:
    from aiorate import Scheduler


_ANSWER_AFTER = 0.05  # seconds
_DEMAND = 3  # what the clients would send without a limiter, as a multiple of the rate
_MOST_CLIENTS = 200
_MORE = 1.1  # what the server allows, as a multiple of the guarantee: the network moves requests together


def run(scheduler: Scheduler, seconds: float) -> int:
    """Returns the exit code: 1 if the guarantee was broken."""
    limiter = Limiter(scheduler)
    rate, allowed = limiter.rate.per_second, ceil(_MORE * (limiter.bound(1) or limiter.rate.per_second))
    clients = min(max(ceil(_DEMAND * rate * _ANSWER_AFTER), 1), _MOST_CLIENTS)
    print(f"{scheduler!r}: one limiter for {clients} clients.")
    print(f"The server answers after {_ANSWER_AFTER * 1000:g} ms, and allows {allowed} requests in any second.\n", flush=True)
    print(f"{'limiter':10}{'seconds':>8}{'requests':>10}{'refused (429)':>15}{'in the busiest second':>23}")
    for name, length, limit in (("without", min(1.5, seconds), None), ("with", seconds, limiter)):
        begin = monotonic_ns()
        arrived, answers = asyncio.run(send(length, clients, allowed, limit))
        took = (monotonic_ns() - begin) / SECOND
        print(f"{name:10}{took:8.1f}{len(arrived):10}{answers[429]:15}{busiest(arrived, SECOND):23}", flush=True)
    seen, bound = limiter.statistics(), limiter.bound(took)
    print(f"\nThe median wait was {seen.waited_p50:.3f} s, and the longest {seen.waited_max:.3f} s.")
    if bound is None:
        print("This strategy bounds no window, so there is no guarantee to keep.")
        return 0
    most = max(seen.granted, len(arrived))
    print(f"{'Kept' if most <= bound else 'BROKEN'}: {most} grants in {took:.1f} s, where the guarantee is at most {bound}.")
    return int(most > bound)


async def send(seconds: float, clients: int, allowed: int, limiter: Limiter | None = None) -> tuple[list[int], Counter[int]]:
    """Have clients send requests to a server that allows so many per second.

    Returns the instants (ns) at which they arrived, and how many answers had which status.
    """
    arrivals, answers, passed = list[int](), Counter[int](), deque[int]()

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

    async def keep_sending() -> None:
        while monotonic_ns() < end:
            try:
                async with session.get(server.make_url("/")) as response:
                    answers[response.status] += 1
            except LimiterClosed:
                return

    limits = [middleware(limiter)] if limiter else []
    async with RawTestServer(answer) as server, ClientSession(middlewares=limits, connector=TCPConnector(limit=0)) as session:
        end = monotonic_ns() + round(seconds * SECOND)
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(keep_sending())
            if limiter is not None:
                await asyncio.sleep(seconds)
                await limiter.aclose()  # those under way finish
    return arrivals, answers
