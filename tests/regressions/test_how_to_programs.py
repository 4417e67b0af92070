"""Programs that the how-to tells people to copy."""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from helpers.driving import SECOND
from helpers.llm import Provider
from helpers.programs import DOCS, block_with, blocks, program_with

import aiorate
from aiorate import Budget, KeyedLimiter, Limiter
from aiorate.aiohttp import middleware
from aiorate.http import hooks


def made_in(program: str, *names: str) -> dict[str, Any]:
    """Run the assignments to ``names`` in the how-to guides' program that contains ``program``, and return their values."""
    chosen: list[ast.stmt] = []
    for node in ast.parse(block_with(program)).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if getattr(target, "id", "") in names:
                chosen.append(node)
    namespace: dict[str, Any] = {name: getattr(aiorate, name) for name in aiorate.__all__}
    exec(compile(ast.Module(chosen, []), str(DOCS), "exec"), namespace)  # our own page
    return {name: namespace[name] for name in names}


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_the_program_for_anthropic_uses_most_of_the_limit() -> None:
    """With plain rates, overestimates were lost: 57 to 74 % of the limit was used."""
    anthropic = pytest.importorskip("anthropic")
    budget: Budget = made_in("AsyncAnthropic", "budget")["budget"]
    http = import_module(next(base.__module__ for base in anthropic.DefaultAsyncHttpxClient.__mro__ if base.__name__ == "AsyncClient"))
    limits = {"requests": 500, "input_tokens": 30_000, "output_tokens": 8_000}  # output tokens are the tightest
    buckets = {name: aiorate.TokenBucket(aiorate.Rate(of, per=60), burst=of) for name, of in limits.items()}
    provider = Provider(http, buckets, seconds_a_token=0.01)
    client = anthropic.AsyncAnthropic(
        http_client=anthropic.DefaultAsyncHttpxClient(transport=provider.network, event_hooks=hooks(budget)),
        base_url="http://test",
        api_key="none",
        max_retries=0,
    )
    question = [{"role": "user", "content": "What is the answer? " * 10}]
    await client.messages.create(model="claude", max_tokens=200, messages=question)  # asks a thread for the platform
    provider.begin()

    async def ask() -> None:
        async with budget.reserve(requests=0, input_tokens=100, output_tokens=300) as lease:
            reply = await client.messages.create(model="claude", max_tokens=200, messages=question)
            lease.settle(input_tokens=reply.usage.input_tokens, output_tokens=reply.usage.output_tokens)

    began = provider.now()
    await asyncio.gather(*(ask() for _ in range(200)))

    seconds = (max(at for at, _ in provider.used) - began) / SECOND
    used = sum(used["output_tokens"] for _, used in provider.used)
    assert provider.refused == 0
    assert used >= 0.9 * (800 + 8_000 / 60 * seconds)


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("refusals", [0, 2, 3])
async def test_the_program_for_openai_asks_up_to_three_times(refusals: int) -> None:
    """Each time after the pause that the server asked for; then the error goes to the caller."""

    class RateLimitError(Exception):
        pass

    program = ast.parse(block_with("AsyncOpenAI"))
    names = ("MAX_TOKENS", "MODEL", "budget")
    chosen = [node for node in program.body if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in names]
    chosen += [node for node in program.body if isinstance(node, ast.AsyncFunctionDef) and node.name == "ask"]
    space: dict[str, Any] = {"Budget": Budget, "TokenBucket": aiorate.TokenBucket, "RateLimitError": RateLimitError}
    exec(compile(ast.Module(list[ast.stmt](chosen), []), str(DOCS), "exec"), space)  # our own page
    sent: list[float] = []

    async def create(**asked: Any) -> SimpleNamespace:
        sent.append(asyncio.get_running_loop().time())
        if len(sent) <= refusals:
            space["budget"].pause(7)
            raise RateLimitError
        choice = SimpleNamespace(message=SimpleNamespace(content="42"))
        return SimpleNamespace(usage=SimpleNamespace(total_tokens=90), choices=[choice])

    space["client"] = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    answers = await asyncio.gather(space["ask"]("What is 41 + 1?"), return_exceptions=True)

    assert [round(at - sent[0]) for at in sent] == [0, 7, 14][: refusals + 1]
    assert ("42" in answers) == (refusals < 3)
    assert isinstance(answers[0], RateLimitError) == (refusals == 3)


def test_programs_for_apis_and_bots_send_evenly() -> None:
    """A window sends all at once, and on a busy machine two batches of 30 met in one second: 60 at the server."""
    limiter: Limiter = made_in("for 10 per second", "limiter")["limiter"]
    bot = made_in("bot.send_message", "shared", "chats")
    chats: KeyedLimiter[int] = bot["chats"]
    assert chats.shared is not None

    assert (1, 1, 1) == (limiter.bound(0.05), chats.shared.bound(0.01), chats[1].bound(0.9))
    assert (10, 29, 1) == (limiter.bound(1), chats.shared.bound(1.02), chats[1].bound(1))


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_the_program_for_github_is_one_budget() -> None:
    """Three separate limiters made 104 calls in a window of 80."""
    budget: Budget = made_in("https://api.github.com", "budget")["budget"]
    loop = asyncio.get_running_loop()
    written: list[float] = []
    read = 0

    async def write() -> None:
        async with budget.reserve(points=5, content=1):
            written.append(loop.time())

    async def look() -> None:
        nonlocal read
        async with budget.reserve(points=1, content=0):
            read += 1

    await asyncio.gather(*(write() for _ in range(100)))
    read_in = loop.time()
    await asyncio.gather(*(look() for _ in range(200)))
    read_in = loop.time() - read_in

    assert max(sum(begin <= at < begin + 60 for at in written) for begin in written) <= 80
    assert (200, True) == (read, read_in < 20)  # at the rate of their points, not one every 0.8 s


@dataclass
class Answer:
    """What the retries of the page on aiohttp use of a response."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    released: bool = False

    def release(self) -> None:
        self.released = True


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_each_attempt_of_aiohttp_takes_a_permit() -> None:
    """The limiter stands below the retries: each attempt waits for the pause, and gives the connection of the last one back."""
    program = program_with("async def retry(")
    limiter: Limiter = program["limiter"]
    limited: Any = middleware(limiter)
    answers = [Answer(429, {"Retry-After": "30"}), Answer(503), Answer(200)]
    sent: list[float] = []

    async def network(request: object) -> Answer:
        sent.append(asyncio.get_running_loop().time())
        return answers[len(sent) - 1]

    last = await program["retry"](None, lambda request: limited(request, network))

    assert last is answers[2]
    assert [True, True, False] == [answer.released for answer in answers]
    assert (3, True, True) == (limiter.statistics().granted, sent[1] - sent[0] >= 30, sent[2] - sent[1] >= 1)


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_programs_need_fewer_connections_than_clients_have() -> None:
    """A request takes its permit before its connection: in front of a full pool, those with permits would gather."""
    places = [int(number) for block in blocks() for number in re.findall(r"(?:Semaphore\(|WORKERS = |workers: int = )(\d+)", block)]
    connector = aiohttp.TCPConnector()

    assert len(places) >= 3
    assert max(places) < 100 == connector.limit == import_module("httpx2._config").DEFAULT_LIMITS.max_connections
    await connector.close()


@pytest.mark.parametrize("block", blocks(), ids=lambda block: re.sub(r"\W+", "-", block.splitlines()[-1])[:40])
def test_each_program_is_complete(block: str) -> None:
    """The blocks of a page share names when they run, and a reader copies one of them: it imports and defines all that it uses."""
    used, made = set(), {*dir(builtins)}
    for node in ast.walk(ast.parse(block)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                made.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                made.add(name)
            case ast.alias(name=name, asname=other):
                made.add(other or name.partition(".")[0])

    assert set() == used - made
