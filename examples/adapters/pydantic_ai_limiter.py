"""An aiorate limiter around a model of pydantic-ai: each request to the model takes a permit, those of retries and tools included.

pydantic-ai limits how many requests run at a time, and its limiters are an interface, so a rate can take the place of that. For
both, wrap the model twice. ``pip install pydantic-ai``.
"""

from __future__ import annotations

import asyncio
import time

from pydantic_ai import Agent
from pydantic_ai.concurrency import AbstractConcurrencyLimiter
from pydantic_ai.models.concurrency import limit_model_concurrency
from pydantic_ai.models.test import TestModel

from aiorate import Limiter, TokenBucket


class AiorateLimiter(AbstractConcurrencyLimiter):
    """Takes any limiter of aiorate; ``scope="process"`` if agents run in several event loops at a time."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter

    async def acquire(self, source: str) -> None:
        await self.limiter.acquire()

    def release(self) -> None:
        """Do nothing: a permit is used up when the request begins."""


async def main() -> None:
    limiter = Limiter(TokenBucket("20/s", burst=1))
    model = limit_model_concurrency(TestModel(), AiorateLimiter(limiter))  # or "openai:gpt-5"
    agent = Agent(limit_model_concurrency(model, 4))  # at most 4 at a time, and these wait for a permit
    begin = time.monotonic()
    await asyncio.gather(*(agent.run("What is 41 + 1?") for _ in range(10)))
    print(f"10 runs at 20 requests per second took {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
