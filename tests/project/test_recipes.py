"""The pages' programs before servers that enforce the limits, in virtual time: what they promise holds. The docs' runner only runs them."""

from __future__ import annotations

import ast
import asyncio
import json
import random
import re
from collections import defaultdict, deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from helpers.llm import Provider

from aiorate import Rate, TokenBucket

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


def now() -> float:
    return asyncio.get_running_loop().time()


class Window:
    """A server's limit: at most ``most`` in any ``seconds``."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self.used: deque[tuple[float, int]] = deque()
        self.total = 0

    def allows(self, amount: int) -> bool:
        while self.used and now() - self.used[0][0] >= self.seconds:
            self.total -= self.used.popleft()[1]
        return self.total + amount <= self.most

    def take(self, amount: int) -> None:
        if amount:
            self.used.append((now(), amount))
            self.total += amount


# GitHub.


async def test_github_never_refuses() -> None:
    """All limits are reached, and none is exceeded: requests, points, content per minute and per hour, and at a time."""
    requests, points, content = Window(5000, 3600), Window(900, 60), (Window(80, 60), Window(500, 3600))
    dice, refused, running, most = random.Random(1), 0, 0, 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal refused, running, most
        running += 1
        most = max(most, running)
        amounts = {requests: 1, points: 1 if request.method == "GET" else 5, **dict.fromkeys(content, int(request.method == "POST"))}
        refuse = not all(window.allows(amount) for window, amount in amounts.items())
        for window, amount in amounts.items():
            window.take(0 if refuse else amount)
        refused += refuse
        await asyncio.sleep(dice.uniform(0.05, 2))
        running -= 1
        left = {"x-ratelimit-limit": "5000", "x-ratelimit-resource": "core", "x-ratelimit-remaining": str(5000 - requests.total)}
        return httpx.Response(403 if refuse else 200, headers={**left, "retry-after": "60"} if refuse else left)

    program = program_with("https://api.github.com", answer)

    async with program["httpx"].AsyncClient(base_url="http://github", event_hooks=program["hooks"](program["budget"])) as client:
        writes = await asyncio.gather(*(program["call"](client, "POST", f"/issues/{n}/comments") for n in range(90)))
        wrote_in = now()
        reads = await asyncio.gather(*(program["call"](client, "GET", "/issues") for _ in range(250)))

    assert {200} == {answer.status_code for answer in writes + reads}
    assert (0, True) == (refused, most <= 50)
    assert 40 * 8 < wrote_in < 1.1 * 41 * 8  # 450 an hour and 50 at first
    assert now() - wrote_in < 1.05 * 250 * 60 / 800 + 2  # at the rate of the points


# A gateway for language models.

ACCOUNT = {"requests": 500, "tokens": 200_000}  # per minute
TEAM = {"requests": 300, "tokens": 120_000}
USER = {"requests": 60, "tokens": 40_000}


class Gateway:
    """The program, its provider, and who used what: instants of arrival, one request and its tokens, by user, team and account."""

    def __init__(self, teams: dict[str, str]) -> None:
        limits = {name: TokenBucket(Rate(limit, 60), burst=limit) for name, limit in ACCOUNT.items()}
        self.provider = Provider(httpx, limits, seconds_a_token=0.005)
        self.provider.begin()
        self.program = program_with("KeyedBudget(lambda team: per_minute(300", self.answer)
        self.teams = teams
        self.program["TEAMS"].update(teams)
        self.used: dict[str, list[tuple[float, dict[str, int]]]] = defaultdict(list)
        self.client = httpx.AsyncClient(base_url="http://gateway", transport=httpx.ASGITransport(self.program["app"]))

    async def answer(self, request: httpx.Request) -> httpx.Response:
        user, began = json.loads(request.content)["messages"][0]["content"].split()[0], now()
        response: httpx.Response = await self.provider.network.handle_async_request(request)
        if response.is_success:
            for who in (user, self.teams[user], "account"):
                self.used[who].append((began, {"requests": 1, "tokens": response.json()["usage"]["total_tokens"]}))
        return response

    async def ask(self, user: str, max_tokens: int = 400) -> float:
        """Send a call, again when the gateway says so; returns the seconds until it was answered."""
        begin = now()
        asked = {"model": "gpt", "max_tokens": max_tokens, "messages": [{"role": "user", "content": f"{user} asks"}]}
        while (answer := await self.client.post("/v1/chat/completions", json=asked, headers={"X-User": user})).status_code != 200:
            await asyncio.sleep(float(answer.headers["retry-after"]))
        return now() - begin

    def check(self, who: str, limits: dict[str, int]) -> None:
        """Assert that no window has more than the bound of a bucket with a tenth at once."""
        for name, limit in limits.items():
            taken = [(at, used[name]) for at, used in self.used[who]]
            for begin, _ in taken[::7]:
                for window in (1, 10, 60):
                    most = limit // 10 + limit / 60 * (window + 0.02)
                    assert sum(amount for at, amount in taken if begin <= at < begin + window) <= most, who


async def stopped(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_no_level_of_the_gateway_is_exceeded() -> None:
    """Ten users of two teams ask as much as they can: the account is used up, and the provider refuses nothing."""
    gateway = Gateway({f"user{n}": f"team{n % 2}" for n in range(10)})
    seconds = 10

    async def use(user: str) -> None:
        while True:
            await gateway.ask(user)

    tasks = [asyncio.create_task(use(user)) for user in gateway.teams for _ in range(3)]
    await asyncio.sleep(seconds)
    await stopped(tasks)

    for who, limits in {**dict.fromkeys(gateway.teams, USER), **dict.fromkeys(gateway.teams.values(), TEAM), "account": ACCOUNT}.items():
        gateway.check(who, limits)
    assert 0 == gateway.provider.refused
    calls, tokens = len(gateway.used["account"]), sum(used["tokens"] for _, used in gateway.used["account"])
    assert max(calls / (50 + 500 / 60 * seconds), tokens / (20_000 + 200_000 / 60 * seconds)) >= 0.9


# The programs of the pages, as a reader copies them.


DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("recipes", "llm", "keys", "serving", "processes", "http")


def blocks(*pages: str) -> list[str]:
    """The programs of these pages, by default of all that have programs to copy."""
    text = "\n".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in pages or PAGES)
    found: list[str] = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return found


def block_with(text: str) -> str:
    """The one program of the pages that contains ``text``."""
    (block,) = (block for block in blocks() if text in block)
    return block


def program_with(text: str, network: Any = None) -> dict[str, Any]:
    """The names that the program with ``text`` makes, with what the page imported before it; it is not started.

    ``network``, a coroutine function of a request that returns a response, answers all of its requests with httpx.
    """
    block = block_with(text)
    (page,) = (each for page in PAGES if block in (each := blocks(page)))
    tree = ast.parse(block)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    needed = [
        node
        for node in ast.parse("\n".join(page[: page.index(block)])).body
        if isinstance(node, (ast.Import, ast.ImportFrom)) and used & {alias.asname or alias.name for alias in node.names}
    ]
    body = [node for node in tree.body if not (isinstance(node, ast.Expr) and ast.unparse(node).startswith("asyncio.run("))]
    namespace: dict[str, Any] = {"__name__": "program"}
    client: Any = httpx.AsyncClient
    if network is not None:
        client = partial(httpx.AsyncClient, transport=httpx.MockTransport(network))
    with patch.object(httpx, "AsyncClient", client):
        exec(compile(ast.Module([*needed, *body], []), str(DOCS), "exec"), namespace)  # our own page
    namespace["httpx"] = SimpleNamespace(**{**vars(httpx), "AsyncClient": client})
    return namespace
