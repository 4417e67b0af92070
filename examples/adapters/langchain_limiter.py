"""An aiorate limiter as the ``rate_limiter`` of a langchain chat model, for invoke(), ainvoke(), stream() and batch().

langchain's own InMemoryRateLimiter looks ten times a second whether it may go on, in no order, and cannot pause. Here requests wait in
line, from any thread and any event loop, and ``limiter.pause(30)`` holds them all.
``pip install langchain-core`` and a package with a model, such as langchain-openai.
"""

from __future__ import annotations

import asyncio
import time

from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.rate_limiters import BaseRateLimiter

from aiorate import Limiter, TokenBucket


class AiorateLimiter(BaseRateLimiter):
    """Takes a Limiter with ``scope="process"``: langchain calls it from threads and from event loops."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter

    def acquire(self, *, blocking: bool = True) -> bool:
        if not blocking:
            return self.limiter.try_acquire()
        self.limiter.acquire_blocking()
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        if not blocking:
            return self.limiter.try_acquire()
        await self.limiter.acquire()
        return True


def main() -> None:
    limiter = Limiter(TokenBucket("20/s", burst=1), scope="process")
    model = FakeListChatModel(responses=["42"], rate_limiter=AiorateLimiter(limiter))  # or ChatOpenAI(rate_limiter=...)
    begin = time.monotonic()
    model.batch(["What is 41 + 1?"] * 5)  # in threads
    asyncio.run(model.abatch(["What is 41 + 1?"] * 5))
    print(f"10 calls at 20 per second took {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
