"""An aiorate limiter as the ``rate_limiter`` of LlamaIndex's LLMs and embeddings.

One limiter may serve several models, threads and event loops; requests wait in line, in order of arrival. A model without
asynchronous methods, such as a CustomLLM with complete() alone, blocks the event loop in acomplete(), so the limiter refuses it there.
``pip install llama-index-core`` and a package with a model, such as llama-index-llms-openai.
"""

from __future__ import annotations

import asyncio
import time

from llama_index.core import MockEmbedding
from llama_index.core.rate_limiter import BaseRateLimiter

from aiorate import Limiter, TokenBucket


class AiorateLimiter(BaseRateLimiter):
    """Takes a Limiter with ``scope="process"``: LlamaIndex calls it from threads and from event loops."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter

    def acquire(self, num_tokens: int = 0) -> None:
        self.limiter.acquire_blocking()

    async def async_acquire(self, num_tokens: int = 0) -> None:
        await self.limiter.acquire()


def main() -> None:
    limiter = Limiter(TokenBucket("20/s", burst=1), scope="process")
    model = MockEmbedding(embed_dim=8, embed_batch_size=1, rate_limiter=AiorateLimiter(limiter))  # or OpenAIEmbedding(rate_limiter=...)
    texts = [f"What is {number} + 1?" for number in range(5)]
    begin = time.monotonic()
    model.get_text_embedding_batch(texts)
    asyncio.run(model.aget_text_embedding_batch(texts))
    print(f"10 calls at 20 per second took {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
