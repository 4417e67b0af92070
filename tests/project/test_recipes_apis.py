"""The how-to guides' programs for APIs, against servers that enforce the limits, in virtual time: no request is refused."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from pathlib import Path
from typing import Any

import httpx2
import pytest
from helpers.programs import program_with

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


class GitHub:
    """Refuses with 403 whatever exceeds one of its limits in any window, and reports the hourly one."""

    def __init__(self) -> None:
        self.requests, self.points = Window(5000, 3600), Window(900, 60)
        self.content = (Window(80, 60), Window(500, 3600))
        self.at_a_time = self.most_at_a_time = self.refused = 0
        self.dice = random.Random(1)

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.at_a_time += 1
        self.most_at_a_time = max(self.at_a_time, self.most_at_a_time)
        amounts = {self.requests: 1, self.points: 1 if request.method == "GET" else 5}
        amounts |= dict.fromkeys(self.content, int(request.method == "POST"))
        refuse = self.at_a_time > 100 or not all(window.allows(amount) for window, amount in amounts.items())
        for window, amount in amounts.items():
            window.take(0 if refuse else amount)
        self.refused += refuse
        await asyncio.sleep(self.dice.uniform(0.05, 2))
        self.at_a_time -= 1
        left = {"x-ratelimit-limit": "5000", "x-ratelimit-resource": "core", "x-ratelimit-remaining": str(5000 - self.requests.total)}
        return httpx2.Response(403 if refuse else 200, headers={**left, "retry-after": "60"} if refuse else left)


async def test_github_never_refuses() -> None:
    """All four limits are reached, and none is exceeded: requests, points, content per minute and per hour, and at a time."""
    github = GitHub()
    program = program_with("https://api.github.com", github.answer)

    async with program["httpx2"].AsyncClient(base_url="http://github", event_hooks=program["hooks"](program["budget"])) as client:
        writes = await asyncio.gather(*(program["call"](client, "POST", f"/issues/{n}/comments") for n in range(520)))
        wrote_in = now()
        reads = await asyncio.gather(*(program["call"](client, "GET", "/issues") for _ in range(900)))
        read_in = now() - wrote_in

    assert {200} == {answer.status_code for answer in writes + reads}
    assert 0 == github.refused
    assert 3600 < wrote_in < 1.1 * 520 * 8  # 450 an hour and 50 at first
    assert read_in < 1.05 * 900 * 66 / 900  # at the rate of the points
    assert github.most_at_a_time <= 50


async def test_github_allows_as_many_requests_as_the_budget() -> None:
    """Three hours of reading use at least nine tenths of the 5000 requests an hour."""
    github = GitHub()
    program = program_with("https://api.github.com")

    class Client:
        async def request(self, method: str, path: str) -> int:
            amounts = {github.requests: 1, github.points: 1}
            github.refused += not all(window.allows(amount) for window, amount in amounts.items())
            for window, amount in amounts.items():
                window.take(amount)
            return 1

    async def read() -> int:
        return sum([await program["call"](Client(), "GET", "/") for _ in range(260)])

    done = sum(await asyncio.gather(*(read() for _ in range(50))))

    assert (13_000, 0) == (done, github.refused)
    assert now() < 3 * 3600 * 1.01


class Shopify:
    """A bucket of points that needs the requested cost before a query, and gives back what was not used."""

    def __init__(self, left: float = 2000) -> None:
        self.left, self.seen = left, now()
        self.throttled = self.used = 0
        self.dice = random.Random(1)

    def refill(self, points: float = 0) -> None:
        self.left = min(2000, self.left + (now() - self.seen) * 100 + points)
        self.seen = now()

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        text = json.loads(request.content)["query"]
        if text not in COSTS:
            return httpx2.Response(200, json={"errors": [{"message": "Field 'wrong' doesn't exist", "path": ["query"]}]})
        asked = COSTS[text]
        self.refill()
        if self.left < asked:
            self.throttled += 1
            errors = [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}]
            return httpx2.Response(200, json={"errors": errors, "extensions": {"cost": self.cost(asked, None)}})
        self.refill(-asked)
        await asyncio.sleep(self.dice.uniform(0.05, 1))
        actual = self.dice.randint(2, asked)
        self.used += actual
        self.refill(asked - actual)
        return httpx2.Response(200, json={"data": {"n": 1}, "extensions": {"cost": self.cost(asked, actual)}})

    def cost(self, asked: int, actual: int | None) -> dict[str, Any]:
        status = {"maximumAvailable": 2000.0, "currentlyAvailable": int(self.left), "restoreRate": 100.0}
        return {"requestedQueryCost": asked, "actualQueryCost": actual, "throttleStatus": status}


COSTS = {f"{{ products(first: {n}) {{ nodes {{ title }} }} }}": n for n in (20, 52, 110, 300)}


async def run_queries(program: dict[str, Any], count: int, known: dict[str, int]) -> None:
    """``known`` are the costs that the program has learnt before."""
    program["costs"].update(known)
    queries = list(COSTS)
    async with program["httpx2"].AsyncClient(base_url="http://shop") as client:
        answers = await asyncio.gather(*(program["query"](client, queries[n % len(queries)]) for n in range(count)))
    assert {1} == {answer["data"]["n"] for answer in answers}


async def test_shopify_never_throttles() -> None:
    """Costs of 20 to 300 points, half of which come back, and 100 a second: nearly all are used."""
    shop = Shopify()

    await run_queries(program_with("graphql.json", shop.answer), 400, COSTS)

    assert 0 == shop.throttled
    assert shop.used >= 0.95 * (1900 + 98 * now())


async def test_shopify_is_obeyed_after_an_earlier_run() -> None:
    """It has emptied the bucket: the first queries are refused, and sent again when there is room."""
    shop = Shopify(left=100)

    await run_queries(program_with("graphql.json", shop.answer), 400, COSTS)

    assert shop.throttled <= 5
    assert shop.used >= 0.9 * 98 * now()


async def test_shopify_teaches_costs_that_were_not_known() -> None:
    """What an answer says of a query holds for all callers, those in line too."""
    shop = Shopify()

    await run_queries(program_with("graphql.json", shop.answer), 400, {})

    assert shop.throttled <= 5
    assert shop.used >= 0.9 * 98 * now()


async def test_shopify_reports_a_wrong_query() -> None:
    """Such an answer has no cost: the error reaches the caller, and is not sent again and again."""
    shop = Shopify()
    program = program_with("graphql.json", shop.answer)

    async with program["httpx2"].AsyncClient(base_url="http://shop") as client:
        with pytest.raises(ValueError, match="doesn't exist"):
            await program["query"](client, "{ wrong }")


async def test_ten_thousand_addresses_come_in_order() -> None:
    """At an even pace, by fifty tasks: a refused page is asked for again, one failure is in its place, each step reported once."""
    running = most = 0
    instants, refused = [], list[str]()
    dice = random.Random(1)

    async def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal running, most
        instants.append(now())
        running += 1
        most = max(most, running)
        await asyncio.sleep(dice.uniform(0.05, 0.3))
        running -= 1
        number = request.url.params["page"]
        if number == "5000" and not refused:
            refused.append(number)
            return httpx2.Response(429, headers={"Retry-After": "2"})
        return httpx2.Response(500 if number == "77" else 200, text=number)

    program = program_with("fetch_all", answer)
    steps = []
    urls = [f"http://test/about?page={n}" for n in range(10_000)]

    pages = await program["fetch_all"](urls, lambda: steps.append(now()))

    assert [n for n in range(10_000) if pages[n] != str(n)] == [77]
    assert isinstance(pages[77], httpx2.HTTPStatusError)
    assert 10_000 == len(steps)
    assert ["5000"] == refused
    assert most <= 50
    assert min(later - earlier for earlier, later in zip(instants, instants[100:], strict=False)) >= 1
    assert 110 < now() < 113


async def test_bytes_per_second_hold_for_all_streams(tmp_path: Path) -> None:
    """Three downloads and an upload share 2 MB per second: no window has more, and none of the four is left behind."""
    limiter_rate, burst = 2_000_000, 4 * 16_384
    content = random.Random(1).randbytes(1_500_001)
    sent: list[tuple[float, int]] = []
    uploaded = bytearray()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(200, content=content)
        uploaded.extend(request.content)
        return httpx2.Response(200)

    program = program_with("aiter_bytes(CHUNK)", answer)
    plain = program["paced"]

    async def paced(chunks: Any) -> Any:
        async for chunk in plain(chunks):
            sent.append((now(), len(chunk)))
            yield chunk

    program["paced"] = paced
    source = tmp_path / "source"
    source.write_bytes(content)
    ends = []

    async def timed(transfer: Any) -> None:
        await transfer
        ends.append(now())

    async with program["httpx2"].AsyncClient(base_url="http://test") as client:
        downloads = [program["download"](client, "/file", tmp_path / str(n)) for n in range(3)]
        await asyncio.gather(*map(timed, [*downloads, program["upload"](client, "/upload", source)]))

    assert all((tmp_path / str(n)).read_bytes() == content for n in range(3))
    assert bytes(uploaded) == content
    for begin, _ in sent[::20]:
        for window in (0.05, 0.5, 1):
            within = sum(size for at, size in sent if begin <= at < begin + window)
            assert within <= burst + limiter_rate * (window + 0.02)
    assert now() <= 1.001 * (4 * len(content) - burst) / limiter_rate + 0.001
    assert max(ends) - min(ends) <= 4 * burst / limiter_rate + 0.01  # one of the four had the burst


async def test_an_empty_chunk_takes_nothing() -> None:
    """Some streams yield one at their end."""
    program = program_with("aiter_bytes(CHUNK)")

    async def chunks() -> Any:
        yield b"abc"
        yield b""

    assert [chunk async for chunk in program["paced"](chunks())] == [b"abc", b""]
    assert 3 == program["limiter"].statistics().granted
