"""The examples run and print true figures, as a user would start them; and their servers, under clocks that stand still."""

from __future__ import annotations

import asyncio
import re
import runpy
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from aiohttp import web
from aiohttp.test_utils import TestServer
from helpers.driving import LONG, one_loop

from aiorate import KeyedLimiter, Limiter, SlidingWindow, TokenBucket
from aiorate.http import read_feedback
from aiorate.testing import ManualClock

EXAMPLES = Path(__file__).parents[2] / "examples"
# What each prints, whatever the machine is doing: every expression is found in its output.
PRINTED: dict[str, list[str]] = {
    "strategies.py": ["."],
    "load_generator.py": [r"^500 requests at 200/s", r"max +[\d.]+ +([6-9]\d\d|\d{4,})", r"\d+ slow requests?; \d+ others"],
    "httpx_client.py": [r"20 requests, 28 permits at 20/s; the longest wait was [\d.]+ s", r"(?s)/search.*/search"],
    "aiohttp_client.py": [
        r"busy: 21 requests for 25 permits, the longest wait [\d.]+ s",  # a redirect pays twice
        r"quiet: 2 requests for 2 permits, the longest wait 0\.0+ s",
    ],
    "fastapi_server.py": [r"all at once: \{200: 10, 429: 15\}", r"heeding: \{200: 25\}", r'RateLimit: "client";r=0;t=[12]'],
    "aiohttp_server.py": [r"all at once: \{200: 10, 429: 15\}", r"heeding: \{200: 25\}", r'RateLimit: "client";r=0;t=[12]'],
    "starlette_server.py": [
        *(r"alice, items: \{200: 5, 429: 5\}", r"bob, items: \{200: 10\}", r"bob, streams: \{200: 2, 429: 3\}"),
        *(r"guessed tokens: \{401: 3, 429: 7\}", r"health checks: \{200: 10\}"),
    ],
    "redis_clients.py": [r"second 1: \d+ \+ \d+ \+ \d+ = \d+\n", "350 requests of 3 processes"],
    "redis_workers.py": [r"60 requests to 4 workers: \{200: 20, 429: 40\}", r'Retry-After: (\d+)\nRateLimit: "all";r=0;t=\1\n'],
    "llm_openai.py": [r"\d+ calls.*, 0 refused with 429", r"[\d.]+% of what the limit allowed"],
    "llm_anthropic.py": [r"\d+ calls.*, 0 refused with 429", r"[\d.]+% of what the limit allowed"],
    "metrics_opentelemetry.py": ["."],
    "metrics_prometheus.py": ["."],
}


def printed_by(name: str) -> str:
    """The output of an example, which must exit with 0 and without errors."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_prints_what_it_should(name: str) -> None:
    printed = printed_by(name)

    assert "Traceback" not in printed
    for expression in PRINTED[name]:
        assert re.search(expression, printed), f"{expression} in {printed}"


def test_the_strategies_grant_when_they_say() -> None:
    """Eleven columns by hand: fourteen requests at 0 and fourteen at 3.75 s, at ten per second."""
    rows = [line.split() for line in printed_by("strategies.py").splitlines() if re.match(r" *[\d.]+ +[\d.]", line)]
    first, idle, (quarter, second) = rows[:14], rows[14:28], rows[28:]
    pool, faster, ticks, strict, ratio, bursty, warming, bucket, sliding, calendar, both = range(1, 12)

    def column(part: list[list[str]], number: int) -> list[float]:
        return [float(row[number]) for row in part]

    paced = [n / 10 for n in range(14)]
    for number in (pool, faster, ticks, strict, ratio, bursty):
        assert column(first, number) == paced
    assert column(first, bucket) == [0.0] * 5 + [n / 10 for n in range(1, 10)]
    for number in (sliding, calendar):
        assert column(first, number) == [0.0] * 10 + [1.0] * 4
    assert column(first, warming)[5:] == [1 + n / 10 for n in range(9)]  # cold for a second, then at the rate
    assert column(first, both)[:10] == [0.0, 0.0] + [n / 20 for n in range(1, 9)]

    assert column(idle, strict) == [round(3.75 + n / 10, 3) for n in range(14)]
    assert column(idle, ticks) == [3.75] * 14  # all missed permits at once
    assert column(idle, bursty)[:7] == [3.75] * 6 + [3.85]  # five were stored, one is borrowed
    assert column(idle, sliding) == [3.75] * 10 + [4.75] * 4
    assert column(idle, calendar) == [3.75] * 10 + [4.0] * 4  # the next window of the calendar
    assert column(idle, ratio)[3] == 3.95  # three intervals at 1.5 times the rate

    assert column([second], strict) == column([second], sliding) == [10.0]
    assert column([second], calendar) == [14.0]
    assert column([quarter], bucket) == [7.0]


@one_loop
async def test_the_starlette_server_limits_requests_and_streams() -> None:
    """With clocks that stand still: exactly as many as each account may send, and as many streams as may run."""
    module = runpy.run_path(str(EXAMPLES / "starlette_server.py"))
    clock, names = ManualClock(), ("requests", "streams")

    def limits(name: str) -> KeyedLimiter[str]:
        places = {"streams": 2}.get(name)
        return KeyedLimiter(lambda key: Limiter(TokenBucket("1/s", 3), clock=clock, max_concurrency=places, name=name))

    requests, streams = map(limits, names)
    async with _serving(module["make_app"](requests, streams)) as url, httpx2.AsyncClient(base_url=url, timeout=LONG) as client:
        alice = {"Authorization": "Bearer token-of-alice"}
        answers = [await client.get("/items", headers=alice) for _ in range(5)]
        unknown = [await client.get("/items", headers={"Authorization": "Bearer none"}) for _ in range(4)]
        healthy = await client.get("/health")
        clock.advance(3)
        async with client.stream("GET", "/streams/one", headers=alice), client.stream("GET", "/streams/two", headers=alice) as two:
            third = await client.get("/streams/three", headers=alice)
            lines = [line async for line in two.aiter_lines()]

    assert [200, 200, 200, 429, 429] == [answer.status_code for answer in answers]
    assert ['"requests";q=3;w=3'] == answers[0].headers.get_list("ratelimit-policy")
    assert [401, 401, 401, 429] == [answer.status_code for answer in unknown]
    assert (200, None) == (healthy.status_code, healthy.headers.get("ratelimit"))
    assert [200, 429] == [two.status_code, third.status_code]
    assert [str(number) for number in range(10)] == lines
    assert {"requests", "streams", "streams-concurrent"} == {quota.name for quota in read_feedback(third.status_code, third.headers).quotas}
    assert ["alice", "127.0.0.1"] == list(requests)


@one_loop
async def test_the_servers_tell_when_to_ask_again() -> None:
    """Exactly: a client is served after the time it was told, and not before. An unknown path costs a permit too."""
    for name in ("fastapi_server.py", "aiohttp_server.py"):
        clock = ManualClock()
        clients = KeyedLimiter(lambda client, clock=clock: Limiter(SlidingWindow("10/2s"), clock=clock, name="client"))
        app = runpy.run_path(str(EXAMPLES / name))["make_app"](clients)
        async with _serving(app) as url, httpx2.AsyncClient(base_url=url, timeout=LONG) as client:
            first = [await client.get("/items") for _ in range(3)] + [await client.get("/nothing")]
            clock.advance(0.5)
            rest = [await client.get("/items") for _ in range(6)]
            clock.advance(0.25)
            refused = await client.get("/items")
            clock.advance(1.249999999)
            early = await client.get("/items")
            clock.advance(0.000000001)
            served = await client.get("/items")

        assert [200] * 3 + [404] + [200] * 6 == [answer.status_code for answer in first + rest], name
        assert {'"client";q=10;w=2'} == {answer.headers["ratelimit-policy"] for answer in [*first, *rest, refused]}, name
        assert [f'"client";r={9 - number};t=2' for number in range(10)] == [answer.headers["ratelimit"] for answer in first + rest], name
        assert (429, "2", '"client";r=0;t=2') == (refused.status_code, refused.headers["retry-after"], refused.headers["ratelimit"]), name
        assert (429, 200, '"client";r=3;t=1') == (early.status_code, served.status_code, served.headers["ratelimit"]), name
        assert ["127.0.0.1"] == list(clients), name


@asynccontextmanager
async def _serving(app: Any) -> AsyncIterator[str]:
    if isinstance(app, web.Application):
        async with TestServer(app) as server:
            yield str(server.make_url("")).rstrip("/")
    else:
        config = uvicorn.Config(app, port=0, lifespan="off", ws="none", log_level="error")
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.ensure_future(server.serve([listener]))
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            server.should_exit = True
            await serving
