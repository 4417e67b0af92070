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

from aiorate import KeyedLimiter, Limiter, SlidingWindow
from aiorate.testing import ManualClock

EXAMPLES = Path(__file__).parents[2] / "examples"
# What each prints, whatever the machine is doing: every expression is found in its output.
PRINTED: dict[str, list[str]] = {
    "strategies.py": [r"\n +0\.0( +0\.300){5} "],
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
    "file_workers.py": [r"second 1: \d+ of 200 permits", r"second 3: \d+ of 200 permits"],
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


@one_loop
async def test_the_servers_tell_when_to_ask_again() -> None:
    """Exactly: a client is served after the time it was told, and not before. An unknown path costs a permit too."""
    for name in ("fastapi_server.py", "aiohttp_server.py"):
        clock = ManualClock()
        clients = KeyedLimiter(lambda client, clock=clock: Limiter(SlidingWindow("10/2s"), clock=clock), name="client")
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
