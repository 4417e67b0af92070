"""What a server says is left does not count the requests that are on their way to it: real clients of a server of 50 a minute."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
from aiohttp import web
from helpers.clients import each_client, fetching
from helpers.driving import LONG, one_loop
from helpers.threads import in_thread

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate.http import blocking_hooks, limit_transport
from aiorate.testing import ManualClock

FIRST, MORE, LIMIT = 20, 40, 50
SAYS: dict[str, Callable[[int], dict[str, str]]] = {
    "X-RateLimit": lambda used: {"X-RateLimit-Remaining": str(LIMIT - used), "X-RateLimit-Reset": "60"},
    "draft 11": lambda used: {"RateLimit-Policy": '"a";q=50;w=60', "RateLimit": f'"a";r={LIMIT - used};t=60'},
    "OpenAI": lambda used: {
        "x-ratelimit-limit-requests": str(LIMIT),
        "x-ratelimit-remaining-requests": str(LIMIT - used),
        "x-ratelimit-reset-requests": f"{used * 1200}ms",
    },
    "Binance": lambda used: {"X-MBX-USED-WEIGHT-1M": str(used)},
}


def limiter(**options: Any) -> Limiter:
    return Limiter(TokenBucket("50/min", burst=100, initial=100), clock=ManualClock(), **options)


LIMITS: dict[str, Callable[[], Any]] = {
    "Limiter": limiter,
    "KeyedLimiter": lambda: KeyedLimiter(lambda key: limiter()),
    "Budget": lambda: Budget(requests=TokenBucket("50/min", burst=100, initial=100), clock=ManualClock()),
}


class Slow:
    """A server that counts each request when it arrives, and answers it when it is told to."""

    def __init__(self, says: Callable[[int], dict[str, str]]) -> None:
        self.counted = 0
        self.answer = [asyncio.Event() for _ in range(FIRST + MORE)]
        self._says = says

    async def arrived(self, count: int) -> None:
        async with asyncio.timeout(LONG):
            while self.counted < count:
                await asyncio.sleep(0.001)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        used = self.counted = self.counted + 1
        await self.answer[used - 1].wait()
        return web.Response(status=429 if used > LIMIT else 200, headers=self._says(min(used, LIMIT)))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        runner = web.ServerRunner(web.Server(self._answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield "http://{}:{}".format(*runner.addresses[0])
        for event in self.answer:
            event.set()
        await runner.cleanup()


@one_loop
@each_client
async def test_requests_under_way_are_not_left(kind: str) -> None:
    """20 under way, an answer that says 49 are left, and 40 more: 30 of these are sent, and none is refused."""
    for form, says in SAYS.items():
        for name, make in LIMITS.items():
            limit, slow = make(), Slow(says)
            async with slow.listening() as url, fetching(kind, limit) as fetch:

                async def one(limit: Any = limit, fetch: Any = fetch, url: str = url) -> int:
                    if not isinstance(limit, Budget):
                        return int(await fetch(url))
                    async with limit.reserve():
                        return int(await fetch(url))

                first = [asyncio.create_task(one()) for _ in range(FIRST)]
                await slow.arrived(FIRST)
                slow.answer[0].set()
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                more = [asyncio.create_task(one()) for _ in range(MORE)]
                await slow.arrived(LIMIT)
                for event in slow.answer:
                    event.set()
                assert [200] * FIRST == await asyncio.gather(*first), (form, name)
                done = [await task for task in asyncio.as_completed(more[: LIMIT - FIRST])]
                for task in more:
                    task.cancel()
                await asyncio.wait(more)

            assert ([200] * (LIMIT - FIRST), LIMIT) == (done, slow.counted), (form, name)


@one_loop
@each_client
async def test_lost_requests_are_not_under_way(kind: str) -> None:
    """The server has counted five that were cancelled then; one more never left."""
    limit, slow = limiter(), Slow(SAYS["X-RateLimit"])
    async with slow.listening() as url, fetching(kind, limit) as fetch:
        for number in range(1, 6):
            task = asyncio.create_task(fetch(url))
            await slow.arrived(number)
            task.cancel()
            await asyncio.wait([task])
        del task
        with pytest.raises((httpx.ConnectError, httpx2.ConnectError, aiohttp.ClientConnectionError)):
            await fetch("http://127.0.0.1:9")
        gc.collect()  # hooks do not hear of errors, but nobody holds these requests now
        slow.answer[5].set()
        assert await fetch(url) == 200

    assert LIMIT - 6 == limit.statistics().available


@one_loop
@each_client
async def test_what_was_sent_long_before_has_arrived(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow request is not answered yet, but it was counted before the next was; also one of a client that reads no responses."""
    for arrived, left in ((5_000_000_000, LIMIT - 3), (0, LIMIT - 2)):
        limit, slow = limiter(), Slow(SAYS["X-RateLimit"])
        async with slow.listening() as url, fetching(kind, limit) as fetch, fetching(kind, limit, feedback=False) as deaf:
            long = asyncio.create_task(deaf(url))
            await slow.arrived(1)
            with monkeypatch.context() as patch:
                patch.setattr("aiorate.http._way._ARRIVED", arrived)
                slow.answer[1].set()
                assert await fetch(url) == 200
            assert left == limit.statistics().available, arrived
            slow.answer[0].set()
            await long


def test_threads_know_of_each_other() -> None:
    """By blocking hooks, and through a transport."""
    for adapter in ("hooks", "transport"):
        limit, answers = limiter(scope="process"), [threading.Event() for _ in range(FIRST)]
        counted, lock = iter(range(FIRST)), threading.Lock()

        def answer(request: httpx.Request, answers: Any = answers, counted: Any = counted, lock: Any = lock) -> httpx.Response:
            with lock:
                used = next(counted)
            answers[used].wait(LONG)
            return httpx.Response(200, headers=SAYS["X-RateLimit"](used + 1))

        network = httpx.MockTransport(answer)
        options: Any = {"transport": network, "event_hooks": blocking_hooks(limit)}
        with httpx.Client(**options if adapter == "hooks" else {"transport": limit_transport(network, limit)}) as client:
            futures = [in_thread(lambda client=client: client.get("http://a.test")) for _ in range(FIRST)]  # type: ignore[misc]
            while limit.statistics().granted < FIRST:
                pass
            answers[0].set()
            while not any(future.done() for future in futures):
                pass
            assert LIMIT - FIRST == limit.statistics().available, adapter
            for event in answers:
                event.set()
            assert [200] * FIRST == [future.result(LONG).status_code for future in futures]
