"""Anthropic's SDK within limits on requests, input tokens and output tokens per minute: no 429, and nearly all of the tightest used.

A budget has a dimension for each. The length of an answer is known only afterwards, so a call reserves ``max_tokens`` of output
and settles what was used; with ``hooks(budget)`` the budget follows what responses say. The rest is a local server that speaks Anthropic's
format and has its limits, so that there is something to see; its minute lasts two seconds.

The dimensions are buckets, because a bucket keeps the unused part of estimates, as far as its burst has room; see llm_openai.py.
``max_wait`` belongs to ``reserve()``: the SDK would retry a refusal of its client, and end with an ``APIConnectionError``.

To call the real API with your key, leave ``base_url`` out, keep ``max_retries=0``, and take your account's limits, per ``"min"``.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta

from aiohttp import web
from aiohttp.test_utils import TestServer
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient, RateLimitError

from aiorate import Budget, Lease, Rate, TokenBucket, WaitTooLong
from aiorate.http import hooks

MINUTE = 2.0  # seconds
LIMITS = {"requests": 200, "input_tokens": 20_000, "output_tokens": 16_000}  # per minute
AT_ONCE = 5  # the part of them that a burst may take
CALLS = 200
MAX_TOKENS = 400  # of an answer
MAX_WAIT = 60.0  # seconds


class Server(TestServer):
    """Answers at random length after a while. Its limits are buckets that fill all the time, and at first others have used most of them."""

    def __init__(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/messages", self.answer)
        super().__init__(app)
        self.left = {name: limit / AT_ONCE for name, limit in LIMITS.items()}
        self.used = dict.fromkeys(LIMITS, 0)
        self.refused = 0
        self.seen = time.monotonic()

    async def answer(self, request: web.Request) -> web.Response:
        asked = await request.json()
        now, before = time.monotonic(), self.seen
        self.seen = now
        self.left = {name: min(LIMITS[name], left + (now - before) * LIMITS[name] / MINUTE) for name, left in self.left.items()}
        prompt = sum(len(message["content"]) for message in asked["messages"]) // 4
        wanted = {"requests": 1, "input_tokens": prompt, "output_tokens": asked["max_tokens"]}
        if any(self.left[name] < amount for name, amount in wanted.items()):
            self.refused += 1
            error = {"type": "rate_limit_error", "message": "This request would exceed your rate limit."}
            return web.json_response({"type": "error", "error": error}, status=429, headers=self.headers())
        for name, amount in wanted.items():
            self.left[name] -= amount

        length = random.randint(MAX_TOKENS // 4, MAX_TOKENS)
        await asyncio.sleep(0.0002 * length)
        self.left["output_tokens"] += MAX_TOKENS - length
        for name, amount in {**wanted, "output_tokens": length}.items():
            self.used[name] += amount
        body = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": asked["model"],
            "content": [{"type": "text", "text": "42"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": prompt, "output_tokens": length},
        }
        return web.json_response(body, headers=self.headers())

    def headers(self) -> dict[str, str]:
        headers = {}
        for name, limit in LIMITS.items():
            of = f"anthropic-ratelimit-{name.replace('_', '-')}"
            full = datetime.now(UTC) + timedelta(seconds=(limit - self.left[name]) * MINUTE / limit)
            headers[f"{of}-limit"] = str(limit)
            headers[f"{of}-remaining"] = str(int(self.left[name]))
            headers[f"{of}-reset"] = full.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return headers


async def ask(client: AsyncAnthropic, budget: Budget, prompt: str, began: list[float]) -> Lease | None:
    """One call: reserve the most that it may use, settle what it did use. Returns None if it was refused, by budget or server."""
    try:
        async with budget.reserve(input_tokens=len(prompt) // 4, output_tokens=MAX_TOKENS, max_wait=MAX_WAIT) as lease:
            began.append(time.monotonic())
            message = await client.messages.create(
                model="claude-sonnet-5", max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": prompt}]
            )
            lease.settle(input_tokens=message.usage.input_tokens, output_tokens=message.usage.output_tokens)
            return lease
    except (RateLimitError, WaitTooLong):
        return None


async def main() -> None:
    buckets = {name: TokenBucket(Rate(limit, per=MINUTE), burst=limit // AT_ONCE) for name, limit in LIMITS.items()}
    budget = Budget(**buckets, name="anthropic")
    prompts = [f"What is the answer to question {number}? " * 16 for number in range(CALLS)]

    async with Server() as server:
        http_client = DefaultAsyncHttpxClient(event_hooks=hooks(budget))
        url = str(server.make_url(""))
        async with AsyncAnthropic(base_url=url, api_key="none", http_client=http_client, max_retries=0) as client:
            await ask(client, budget, "Are you there?", [])  # the first call of the SDK is slow
            server.used = dict.fromkeys(LIMITS, 0)
            began: list[float] = []
            leases = await asyncio.gather(*(ask(client, budget, prompt, began) for prompt in prompts))

    answered = [lease for lease in leases if lease is not None]
    seconds = began[-1] - began[0]
    print(f"{len(leases)} calls in {seconds:.2f} s, {len(answered)} answered, {server.refused} refused with 429")
    for name, limit in LIMITS.items():
        reserved, used = sum(lease.amounts[name] for lease in answered), server.used[name]
        part = used / (limit / AT_ONCE + limit * seconds / MINUTE)
        held_up = sum(lease.limited_by == name for lease in answered)
        print(f"{name:>13}: {reserved} reserved, {used} used, {part:.1%} of what the limit allowed; {held_up} calls waited for it")


if __name__ == "__main__":
    asyncio.run(main())
