"""HTTP adapters with an AdaptiveRate: which responses count as what. Real clients and a real server."""

from __future__ import annotations

from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
from helpers.clients import each_client, fetching
from helpers.driving import one_loop
from helpers.server import Server, in_thread

from aiorate import KeyedLimiter, Limiter, Rate
from aiorate._limiters.finder import Finder
from aiorate.adaptive import AdaptiveRate, adaptive_of
from aiorate.http import blocking_hooks, limit_transport
from aiorate.testing import ManualClock

pytestmark = pytest.mark.usefixtures("heard")

Heard = list[tuple[str, int]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What finders are told: succeeded or throttled, and the seconds of a pause."""
    told: Heard = []

    class Recording(Finder):
        def succeeded(self, now: int, took: int, stood: int) -> None:
            told.append(("succeeded", 0))
            super().succeeded(now, took, stood)

        def throttled(self, now: int, took: int, stood: int, pause: int) -> None:
            told.append(("throttled", pause // 1_000_000_000))
            super().throttled(now, took, stood, pause)

    monkeypatch.setattr("aiorate._limiters.adaptive.Finder", Recording)
    return told


def adaptive_rate(**options: Any) -> AdaptiveRate:
    return AdaptiveRate(Limiter(1000, **options), 1, 10_000)


RESPONSES: list[tuple[int, dict[str, str], Heard, float | None]] = [
    (0, {}, [("succeeded", 0)], None),
    (404, {}, [("succeeded", 0)], None),
    (401, {"Retry-After": "7"}, [("succeeded", 0)], None),
    (403, {}, [("succeeded", 0)], None),
    (403, {"Retry-After": "7"}, [("throttled", 7)], 7.0),
    (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9"}, [("throttled", 9)], 9.0),
    (429, {}, [("throttled", 0)], None),
    (429, {"Retry-After": "garbage"}, [("throttled", 0)], None),
    (429, {"Retry-After": "7"}, [("throttled", 7)], 7.0),
    (429, {"Retry-After": "9999999999999"}, [("throttled", 86_400)], 86_400.0),
    (503, {}, [], 1.0),
    (503, {"Retry-After": "7"}, [("throttled", 7)], 7.0),
    *((status, {"Retry-After": "7"}, [("throttled", 7)], 7.0) for status in (418, 420, 430, 509)),
    *((status, {}, [], None) for status in (418, 420, 430, 509)),
    (529, {}, [("throttled", 0)], None),
    (500, {}, [], None),
    (502, {"Retry-After": "7"}, [], None),
]


@one_loop
@each_client
async def test_which_responses_throttle(kind: str, server: Server, heard: Heard) -> None:
    """A 429 that names no time lowers the rate and pauses nobody; a 503 without one, a ban and other errors teach nothing."""
    for status, headers, said, paused_until in RESPONSES:
        adaptive = adaptive_rate(clock=ManualClock())
        server.answers((status, headers))
        async with fetching(kind, adaptive) as fetch:
            assert await fetch(server.url) == (status or 200)

        assert (status, headers, heard) == (status, headers, said)
        assert adaptive.limiter.statistics().paused_until == paused_until
        heard.clear()


@one_loop
@each_client
async def test_a_broken_connection_says_nothing(kind: str, heard: Heard) -> None:
    """Nobody answered."""
    async with fetching(kind, adaptive_rate()) as fetch:
        with pytest.raises((httpx.ConnectError, httpx2.ConnectError, aiohttp.ClientConnectionError)):
            await fetch("http://127.0.0.1:9")

    assert heard == []


@one_loop
@each_client
async def test_each_origin_has_a_search(kind: str, server: Server, heard: Heard) -> None:
    """The factory of a KeyedLimiter, or a dict, has an AdaptiveRate for each."""
    made: list[Any] = [KeyedLimiter(lambda key: adaptive_rate()), {server.url: adaptive_rate()}]
    for limiters in made:
        heard.clear()
        server.answers((429, {}))
        async with fetching(kind, limiters) as fetch:
            await fetch(server.url)

        found = limiters[server.url] if isinstance(limiters, dict) else adaptive_of(limiters[server.url])
        assert found is not None
        assert heard == [("throttled", 0)]
        assert found.rate._slower_than(Rate(1000))


def test_synchronous_clients_are_heard(heard: Heard) -> None:
    """By hooks and by a transport."""
    with in_thread() as server:
        adaptive = adaptive_rate(scope="process")
        with httpx2.Client(event_hooks=blocking_hooks(adaptive), verify=False) as client:
            client.get(server.url)
        with httpx2.Client(transport=limit_transport(httpx2.HTTPTransport(verify=False), adaptive)) as client:
            client.get(server.url)

    assert heard == [("succeeded", 0)] * 2
