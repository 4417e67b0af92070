"""A provider of language models without a network: OpenAI's or Anthropic's format, exact limits, and headers that report them."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from helpers.driving import SECOND

if TYPE_CHECKING:
    from types import ModuleType

    from aiorate import TokenBucket


MINUTE = 60 * SECOND


class Provider:
    """``http`` is the package that the SDK is built on, httpx or httpx2; ``provider.network`` is its transport.

    Its limits are buckets, by their names in its headers: ``requests`` and ``tokens`` (OpenAI), or ``requests``, ``input_tokens`` and
    ``output_tokens`` (Anthropic). A call is charged the most that it may use, and corrected at its end to what it did use.
    """

    def __init__(self, http: ModuleType, limits: dict[str, TokenBucket], seconds_a_token: float, seed: int = 1) -> None:
        self.network = http.MockTransport(self._answer)
        self.limits = limits
        self.refused = 0
        self.used: list[tuple[int, dict[str, int]]] = []
        """(instant of its beginning, amounts used) of each call."""
        self._response = http.Response
        self._seconds_a_token = seconds_a_token
        self._dice = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._begun = False

    def begin(self) -> None:
        """Start limits and counts now. Until then all calls are answered at once."""
        self._begun = True
        for limit in self.limits.values():
            limit.peek(1, self.now())

    def now(self) -> int:
        """The loop's time, in ns."""
        return round(self._loop.time() * SECOND)

    async def _answer(self, request: Any) -> Any:
        """Answer at random length, after a while; or with 429."""
        asked, now = json.loads(request.content), self.now()
        prompt = sum(len(message["content"]) for message in asked["messages"]) // 4
        if not self._begun:
            return self._response(200, json=self._body(asked["model"], prompt, 1))
        at_most = self._amounts(prompt, asked["max_tokens"])
        if any(limit.peek(at_most[name], now) > now for name, limit in self.limits.items()):
            self.refused += 1
            return self._response(429, headers=self._headers(now), json={"error": {"type": "rate_limit_error", "message": "slow down"}})
        for name, limit in self.limits.items():
            limit.take(at_most[name], now)
        length = self._dice.randint(asked["max_tokens"] // 4, asked["max_tokens"])
        await asyncio.sleep(length * self._seconds_a_token)
        used, end = self._amounts(prompt, length), self.now()
        for name, limit in self.limits.items():
            if used[name] < at_most[name]:
                limit.give_back(at_most[name] - used[name], end, now)
        self.used.append((now, used))
        return self._response(200, headers=self._headers(end), json=self._body(asked["model"], prompt, length))

    def _amounts(self, prompt: int, length: int) -> dict[str, int]:
        return {"requests": 1, "tokens": prompt + length, "input_tokens": prompt, "output_tokens": length}

    def _headers(self, now: int) -> dict[str, str]:
        headers = {}
        for name, limit in self.limits.items():
            left = limit.available(now)
            full_in = (limit.burst - left) * limit.rate.interval_ns / SECOND
            if "tokens" in self.limits:
                headers[f"x-ratelimit-limit-{name}"] = str(limit.burst)
                headers[f"x-ratelimit-remaining-{name}"] = str(left)
                headers[f"x-ratelimit-reset-{name}"] = f"{full_in:.3f}s"
            else:
                of = f"anthropic-ratelimit-{name.replace('_', '-')}"
                headers[f"{of}-limit"] = str(limit.burst)
                headers[f"{of}-remaining"] = str(left)
                headers[f"{of}-reset"] = (datetime.now(UTC) + timedelta(seconds=full_in)).isoformat()
        return headers

    def _body(self, model: str, prompt: int, length: int) -> dict[str, Any]:
        if "tokens" in self.limits:
            choice = {"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}
            usage = {"prompt_tokens": prompt, "completion_tokens": length, "total_tokens": prompt + length}
            return {"id": "1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice], "usage": usage}
        usage = {"input_tokens": prompt, "output_tokens": length}
        head = {"id": "1", "type": "message", "role": "assistant", "model": model, "stop_reason": "end_turn", "stop_sequence": None}
        return {**head, "content": [{"type": "text", "text": "42"}], "usage": usage}
