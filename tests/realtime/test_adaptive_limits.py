"""AdaptiveRate with real clients of a real server whose limit changes. Only ratios within one run are compared."""

from __future__ import annotations

import pytest
from helpers.adaptive import real, servers
from helpers.driving import one_loop

from aiorate import Limiter
from aiorate.adaptive import AdaptiveRate

pytestmark = pytest.mark.slow

LENGTH = 8.0  # seconds of each limit
LIMITS = servers.Steps((0, 60), (LENGTH, 20), (2 * LENGTH, 60))


async def followed(client: str, limiter: Limiter | AdaptiveRate) -> tuple[real.Seen, list[tuple[float, float]]]:
    """What the server saw, and the rates by second."""
    rates: list[tuple[float, float]] = []
    async with real.serve(servers.Bucket(LIMITS, 5)) as seen:
        await real.follow(client, limiter, seen, 3 * LENGTH, lambda second: rates.append((second, limiter.rate.per_second)))
    return seen, rates


@one_loop
@pytest.mark.parametrize("client", real.CLIENTS)
async def test_rate_follows_a_real_server(client: str) -> None:
    """At the end of each limit the rate is near what the server's own meter read, from twice the limit at first, and few are refused."""
    seen, rates = await followed(client, AdaptiveRate(Limiter(120), 1, 2000))

    for number in range(3):
        begin, end = (number + 0.5) * LENGTH, (number + 1) * LENGTH
        own = [rate for second, rate in rates if begin <= second < end]
        given = seen.given(begin, end)
        assert 0.5 * given <= sum(own) / len(own) <= 1.6 * given
        assert seen.refusals(begin, end) <= 0.2
    assert seen.given(0.5 * LENGTH, LENGTH) > 1.5 * seen.given(1.5 * LENGTH, 2 * LENGTH)


@one_loop
async def test_more_is_served_than_to_a_limiter_that_only_pauses() -> None:
    paused, _ = await followed("aiohttp", Limiter(120))

    adaptive, _ = await followed("aiohttp", AdaptiveRate(Limiter(120), 1, 2000))

    assert len(adaptive.served) > len(paused.served)
    assert adaptive.refusals() < paused.refusals()
