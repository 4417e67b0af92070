"""The how-to guides' gateway for language models, before a provider with exact limits, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict

import httpx2
import pytest
from helpers.llm import Provider
from helpers.programs import program_with

from aiorate import Rate, TokenBucket

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

ACCOUNT = {"requests": 500, "tokens": 200_000}  # per minute
TEAM = {"requests": 300, "tokens": 120_000}
USER = {"requests": 60, "tokens": 40_000}


class Gateway:
    """The program, its provider, and who used what: instants of arrival, one request and its tokens, by user, team and account."""

    def __init__(self, teams: dict[str, str]) -> None:
        limits = {name: TokenBucket(Rate(limit, 60), burst=limit) for name, limit in ACCOUNT.items()}
        self.provider = Provider(httpx2, limits, seconds_a_token=0.005)
        self.provider.begin()
        self.program = program_with("KeyedBudget(lambda team: per_minute(300", self.answer)
        self.teams = teams
        self.program["TEAMS"].clear()
        self.program["TEAMS"].update(teams)
        self.used: dict[str, list[tuple[float, dict[str, int]]]] = defaultdict(list)
        self.statuses: Counter[int] = Counter()
        self.client = httpx2.AsyncClient(base_url="http://gateway", transport=httpx2.ASGITransport(self.program["app"]))

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        user, began = json.loads(request.content)["messages"][0]["content"].split()[0], now()
        response: httpx2.Response = await self.provider.network.handle_async_request(request)
        if response.is_success:
            used = {"requests": 1, "tokens": response.json()["usage"]["total_tokens"]}
            for who in (user, self.teams[user], "account"):
                self.used[who].append((began, used))
        return response

    async def ask(self, user: str, max_tokens: int = 400) -> float:
        """Send a call, again when the gateway says so; returns the seconds until it was answered."""
        begin = now()
        message = {"role": "user", "content": f"{user} asks"}
        asked = {"model": "gpt", "max_tokens": max_tokens, "messages": [message]}
        while True:
            answer = await self.client.post("/v1/chat/completions", json=asked, headers={"X-User": user})
            self.statuses[answer.status_code] += 1
            if answer.status_code == 200:
                return now() - begin
            await asyncio.sleep(float(answer.headers["retry-after"]))

    def check(self, who: str, limits: dict[str, int]) -> None:
        """Assert that no window has more than the bound of a bucket with a tenth at once."""
        for name, limit in limits.items():
            taken = [(at, used[name]) for at, used in self.used[who]]
            for begin, _ in taken[::7]:
                for window in (1, 10, 60):
                    most = limit // 10 + limit / 60 * (window + 0.02)
                    assert sum(amount for at, amount in taken if begin <= at < begin + window) <= most


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_no_level_of_the_gateway_is_exceeded() -> None:
    """Twelve users of three teams ask as much as they can: the account is used up, and the provider refuses nothing."""
    gateway = Gateway({f"user{n}": f"team{n % 3}" for n in range(12)})
    seconds = 40

    async def use(user: str) -> None:
        while True:
            await gateway.ask(user)

    tasks = [asyncio.create_task(use(user)) for user in gateway.teams for _ in range(10)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    for user in gateway.teams:
        gateway.check(user, USER)
    for team in set(gateway.teams.values()):
        gateway.check(team, TEAM)
    gateway.check("account", ACCOUNT)
    assert 0 == gateway.provider.refused
    calls = len(gateway.used["account"])
    tokens = sum(used["tokens"] for _, used in gateway.used["account"])
    assert max(calls / (50 + 500 / 60 * seconds), tokens / (20_000 + 200_000 / 60 * seconds)) >= 0.9


async def test_a_busy_user_delays_no_other() -> None:
    """Not one of the same team, and not one of another."""
    gateway = Gateway({"ann": "search", "bob": "search", "cleo": "ads"})
    busy = [asyncio.create_task(gateway.ask("ann")) for _ in range(150)]

    waits = []
    for _ in range(10):
        await asyncio.sleep(5)
        waits += [await gateway.ask("bob", 40), await gateway.ask("cleo", 40)]
    done = sum(task.done() for task in busy)
    for task in busy:
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)

    assert max(waits) <= 40 * 0.005 + 0.01  # the answer itself
    assert done < 150
    gateway.check("ann", USER)


async def test_unused_estimates_come_back_to_all_levels() -> None:
    """Calls that use 60 % of their estimates go faster than the estimates would, and at the end every level is full again."""
    gateway = Gateway({"ann": "search"})
    begin = now()

    async def work() -> None:
        for _ in range(10):
            await gateway.ask("ann", 1200)

    await asyncio.gather(*(work() for _ in range(8)))

    tokens = sum(used["tokens"] for _, used in gateway.used["account"])
    assert now() - begin <= 1.05 * tokens / (USER["tokens"] / 60)
    assert tokens <= 0.7 * 80 * 1200
    await asyncio.sleep(60)
    budgets = [gateway.program["account"], gateway.program["teams"]["search"], gateway.program["users"]["ann"]]
    for budget, limits in zip(budgets, (ACCOUNT, TEAM, USER), strict=True):
        assert [limit // 10 for limit in limits.values()] == [budget.available(name) for name in limits]


async def test_the_gateway_pauses_when_its_provider_does() -> None:
    """The next call waits: hooks(account) reads the Retry-After of one answer."""
    gateway = Gateway({"ann": "search", "cleo": "ads"})
    gateway.program["account"].pause(7)

    assert await gateway.ask("cleo", 40) >= 7
