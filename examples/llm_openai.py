"""OpenAI's SDK within limits on requests and tokens per minute, with no 429 and nearly all of the tokens used.

A call's usage is not known before its answer, so it reserves an estimate, and settles what was used. All it takes is
``Budget(...)``, ``reserve()`` and ``settle()``, and ``hooks(budget)``, with which the budget follows what responses say. The rest is a
local server that speaks OpenAI's format and has its limits, so that there is something to see; its minute lasts two seconds.

The dimensions are buckets, because a bucket keeps the unused part of estimates until another call needs it. A plain rate would
pace the estimates, and lose the unused parts of calls that overlap. Each bucket holds a fifth of a minute's permits, which is enough
for calls as short as these; the recipe has a rule for longer ones.

To call the real API with your key, leave ``base_url`` out, keep ``max_retries=0``, and take your account's limits, per ``"min"``.
"""

from __future__ import annotations

import asyncio
import random
import time

from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, RateLimitError

from aiorate import Budget, Lease, Rate, TokenBucket
from aiorate.http import hooks

MINUTE = 2.0  # seconds
REQUESTS, TOKENS = 120, 30_000  # per minute
AT_ONCE = 5  # the part of it that a burst may take
CALLS = 150
MAX_TOKENS = 500  # of an answer


class Bucket:
    """A limit as OpenAI keeps it: it fills all the time, up to the permits of a minute. At first others have used most of it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left = limit / AT_ONCE
        self.seen = time.monotonic()

    def fill(self) -> None:
        now = time.monotonic()
        self.left = min(self.limit, self.left + (now - self.seen) * self.limit / MINUTE)
        self.seen = now

    @property
    def full_in(self) -> float:
        return (self.limit - self.left) * MINUTE / self.limit


class Server(TestServer):
    """Answers at random length after a while, and with 429 where its limits do not allow a call."""

    def __init__(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.complete)
        super().__init__(app)
        self.requests, self.tokens = Bucket(REQUESTS), Bucket(TOKENS)
        self.refused = self.used = 0

    async def complete(self, request: web.Request) -> web.Response:
        asked = await request.json()
        prompt = sum(len(message["content"]) for message in asked["messages"]) // 4
        at_most = prompt + asked["max_tokens"]
        for bucket in (self.requests, self.tokens):
            bucket.fill()
        if self.requests.left < 1 or self.tokens.left < at_most:
            self.refused += 1
            error = {"message": "Rate limit reached", "type": "tokens", "code": "rate_limit_exceeded"}
            return web.json_response({"error": error}, status=429, headers=self.headers())
        self.requests.left -= 1
        self.tokens.left -= at_most

        answer = random.randint(MAX_TOKENS // 4, MAX_TOKENS)
        await asyncio.sleep(0.00015 * answer)
        self.tokens.left += at_most - prompt - answer
        self.used += prompt + answer
        usage = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
        choice = {"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}
        body = {"id": "chatcmpl-1", "object": "chat.completion", "created": int(time.time()), "model": asked["model"]}
        return web.json_response({**body, "choices": [choice], "usage": usage}, headers=self.headers())

    def headers(self) -> dict[str, str]:
        headers = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            headers[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(int(bucket.left))
            headers[f"x-ratelimit-reset-{name}"] = f"{bucket.full_in:.3f}s"
        return headers


async def ask(client: AsyncOpenAI, budget: Budget, prompt: str, began: list[float]) -> Lease | None:
    """One call: reserve the most that it may use, settle what it did use. Returns None if the server refused it."""
    async with budget.reserve(tokens=len(prompt) // 4 + MAX_TOKENS) as lease:
        began.append(time.monotonic())
        try:
            completion = await client.chat.completions.create(
                model="gpt-5", max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": prompt}]
            )
        except RateLimitError:
            return None
        assert completion.usage is not None
        lease.settle(tokens=completion.usage.total_tokens)
        return lease


async def main() -> None:
    budget = Budget(
        requests=TokenBucket(Rate(REQUESTS, per=MINUTE), burst=REQUESTS // AT_ONCE),
        tokens=TokenBucket(Rate(TOKENS, per=MINUTE), burst=TOKENS // AT_ONCE),
        name="openai",
    )
    prompts = [f"What is the answer to question {number}? " * 16 for number in range(CALLS)]

    async with Server() as server:
        http_client = DefaultAsyncHttpxClient(event_hooks=hooks(budget))
        url = str(server.make_url("/v1"))
        async with AsyncOpenAI(base_url=url, api_key="none", http_client=http_client, max_retries=0) as client:
            await ask(client, budget, "Are you there?", [])  # the first call of the SDK is slow
            server.used = 0
            began: list[float] = []
            leases = await asyncio.gather(*(ask(client, budget, prompt, began) for prompt in prompts))

    answered = [lease for lease in leases if lease is not None]
    seconds = began[-1] - began[0]
    allowed = TOKENS / AT_ONCE + TOKENS * seconds / MINUTE
    reserved = sum(lease.amounts["tokens"] for lease in answered)
    held_up_by = {name: sum(lease.limited_by == name for lease in answered) for name in budget.dimensions}
    print(f"{len(leases)} calls, {len(answered)} answered, {server.refused} refused with 429")
    print(f"{reserved} tokens reserved, {server.used} used in {seconds:.2f} s: {server.used / allowed:.1%} of what the limit allowed")
    print(f"they waited for {held_up_by}, up to {max(lease.waited for lease in answered):.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
