"""docs/switch.md: what to write instead goes when the old call went, and the libraries do what the page says of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiolimiter
import asynciolimiter
import pytest

import aiorate
from aiorate.http import limit_transport
from aiorate.redis import RedisLimiter
from aiorate.testing import VirtualLoop

PAGE = (Path(__file__).parents[2] / "docs" / "switch.md").read_text(encoding="utf-8")
OURS: dict[str, Any] = {
    **{name: getattr(aiorate, name) for name in aiorate.__all__},
    "RedisLimiter": RedisLimiter,
    "limit_transport": limit_transport,
    "url": "redis://localhost",
}
CLOSE = 2e-3  # seconds: aiorate sets no two timers within a millisecond


def rows(library: str) -> list[list[list[str]]]:
    """The code of both cells of each row about a library."""
    section = PAGE.partition(f"## From {library}\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in cells]


def moments(make: Callable[[], Any], call: str, crowd: int = 20) -> list[float]:
    """When each of a crowd that comes at once may go."""

    async def run() -> list[float]:
        loop, went = asyncio.get_running_loop(), []
        limiter = make()

        async def one() -> None:
            await getattr(limiter, call)()
            went.append(loop.time() - begin)

        begin = loop.time()
        await asyncio.gather(*(one() for _ in range(crowd)))
        return went

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def test_limiters_of_the_tables_go_when_the_old_ones_went() -> None:
    compared = 0
    for library, module, call in (("aiolimiter", aiolimiter, "acquire"), ("asynciolimiter", asynciolimiter, "wait")):
        for theirs, ours in rows(library):
            if re.match(r"\w+\(.*\)$", theirs[0]) and ours[0].startswith("Limiter("):
                old = moments(lambda code=theirs[0], names=module: eval(code, dict(vars(names))), call)
                new = moments(lambda code=ours[0]: eval(code, dict(OURS)), "acquire")
                assert new == pytest.approx(old, abs=CLOSE), theirs[0]
                compared += 1
    assert compared == 7


def test_every_limiter_of_the_tables_can_be_made() -> None:
    """A name or an argument that is gone would be in the way of somebody who switches."""
    made = 0
    for library in re.findall(r"^## From (.+)$", PAGE, flags=re.MULTILINE):
        for _, ours in rows(library):
            for code in ours:
                if code.startswith(("Limiter(", "KeyedLimiter(", "RedisLimiter(")):
                    limiter = eval(code, dict(OURS))
                    if isinstance(limiter, aiorate.KeyedLimiter):
                        assert limiter["alice"] is not None, code
                    made += 1
    assert made > 15


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_small_requests_overtake_a_large_one_or_do_not() -> None:
    async def first_served(acquire: Callable[[int], Awaitable[object]]) -> int:
        served: list[int] = []

        async def request(permits: int) -> None:
            await acquire(permits)
            served.append(permits)

        await acquire(16)
        large = asyncio.create_task(request(16))
        await asyncio.sleep(0)
        await asyncio.gather(large, *(request(1) for _ in range(30)))
        return served[0]

    assert 1 == await first_served(aiolimiter.AsyncLimiter(16, 1 / 8).acquire)
    assert 16 == await first_served(aiorate.Limiter(aiorate.TokenBucket("128/s", 16)).acquire)


def test_a_full_bucket_lets_nearly_twice_the_rate_through() -> None:
    """In the first second. Of 64 per second, because a virtual clock has no fractions of a nanosecond."""
    for make in (lambda: aiolimiter.AsyncLimiter(64, 1), lambda: aiorate.Limiter(aiorate.TokenBucket("64/s", burst=64))):
        assert 127 == sum(moment < 1 - CLOSE for moment in moments(make, "acquire", 140))
