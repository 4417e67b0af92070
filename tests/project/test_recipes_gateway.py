"""The how-to guides' LLM gateway over Redis: several real processes before one provider."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from helpers.driving import LONG, one_loop
from helpers.programs import block_with
from helpers.stores import RealServer

USERS = {f"user{n}": f"team{n % 4}" for n in range(20)}
LIMITS = {"user": (6, 60), "team": (30, 300), "account": (50, 500)}  # requests at once, and per minute
SECONDS = 6.0


def gateway(store: str, provider: str) -> str:
    """The program of one process, with the budgets of the page's second program, served on a socket that it inherits."""
    first, second = block_with("FastAPI()\n\n@app.post"), block_with("RedisBudget(")
    budgets = second[second.index("def per_minute") : second.index("async def main")]
    begin, end = first.index("def per_minute"), first.index("provider = ")
    program = first[:begin] + budgets + first[end : first.index("async def main")]
    program = program.replace("TEAMS = {", f"TEAMS = {USERS!r}\n_ = {{").replace("https://api.example.com", provider)
    return (
        "import sys, uvicorn\nfrom aiorate.redis import RedisBudget\n"
        + program.replace("redis://localhost", store)
        + "\nuvicorn.run(app, fd=int(sys.argv[1]), log_level='error')\n"
    )


@contextmanager
def serving(path: Path) -> Iterator[str]:
    """A process of the gateway, and its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = subprocess.Popen([sys.executable, str(path), str(listener.fileno())], pass_fds=[listener.fileno()])
    try:
        yield url
    finally:
        process.kill()  # requests that wait in it would be waited for
        process.wait(LONG)


class Provider(TestServer):
    """Notes who asks and when; an answer uses three fifths of its estimate."""

    def __init__(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        super().__init__(app)
        self.calls: dict[str, list[float]] = defaultdict(list)

    async def answer(self, request: web.Request) -> web.Response:
        user = (await request.json())["messages"][0]["content"].split()[0]
        for who in (user, USERS[user], "account"):
            self.calls[who].append(asyncio.get_running_loop().time())
        return web.json_response({"usage": {"total_tokens": 60}})


@pytest.mark.slow
@one_loop
async def test_three_gateways_keep_every_limit(store: RealServer, tmp_path: Path) -> None:
    """Users, teams and the account, each within its limit from the beginning on; and most of the account's is used."""
    async with Provider() as provider, httpx2.AsyncClient(timeout=LONG) as client:
        (tmp_path / "gateway.py").write_text(gateway(store.url, str(provider.make_url("")).rstrip("/")), encoding="utf-8")
        with ExitStack() as stack:
            urls = [stack.enter_context(serving(tmp_path / "gateway.py")) for _ in range(3)]

            async def ask(user: str, number: int) -> None:
                message = {"role": "user", "content": f"{user} asks"}
                body = json.dumps({"model": "gpt", "max_tokens": 80, "messages": [message]})
                await client.post(f"{urls[number % 3]}/v1/chat/completions", content=body, headers={"X-User": user})

            async def use(user: str, number: int) -> None:
                for turn in range(1000):
                    await ask(user, number + turn)

            begin = asyncio.get_running_loop().time()
            tasks = [asyncio.create_task(use(user, number)) for number, user in enumerate(USERS) for _ in range(2)]
            while len(provider.calls["account"]) < 50:  # the processes need seconds to start
                await asyncio.sleep(0.1)
            await asyncio.sleep(SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    assert set(USERS) == {who for who in provider.calls if who.startswith("user")}
    for who, instants in provider.calls.items():
        burst, per_minute = next(limit for kind, limit in LIMITS.items() if who.startswith(kind))
        for count, instant in enumerate(instants, start=1):
            assert count <= burst + per_minute / 60 * (instant - begin + 0.005) + 1, who
    first, *_, last = provider.calls["account"]
    assert len(provider.calls["account"]) >= 0.8 * (50 + 500 / 60 * (last - first))
