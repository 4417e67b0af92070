"""An aiorate budget as the ``rate_limiter`` of LlamaIndex's LLMs and embeddings: requests, and tokens where they are told.

One budget may serve several models, threads and event loops; requests wait in line, in order of arrival. LlamaIndex 0.14 asks without a
number of tokens; code of yours may call ``acquire(num_tokens)``. A model without asynchronous methods, such as a CustomLLM with
complete() alone, blocks the event loop in acomplete(), so the budget refuses it there.
``pip install llama-index-core`` and a package with a model, such as llama-index-llms-openai.
"""

from __future__ import annotations

import asyncio
import time

from llama_index.core import MockEmbedding
from llama_index.core.rate_limiter import BaseRateLimiter

from aiorate import Budget, TokenBucket


class AiorateLimiter(BaseRateLimiter):
    """Takes a Budget of tokens and more, with ``scope="process"``: LlamaIndex calls it from threads and from event loops."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def acquire(self, num_tokens: int = 0) -> None:
        with self.budget.reserve(tokens=num_tokens):
            """The estimate stands."""

    async def async_acquire(self, num_tokens: int = 0) -> None:
        async with self.budget.reserve(tokens=num_tokens):
            """The estimate stands."""


def main() -> None:
    tokens = TokenBucket("200_000/min", burst=20_000)
    budget = Budget(requests=TokenBucket("20/s", burst=1), tokens=tokens, scope="process")
    model = MockEmbedding(embed_dim=8, embed_batch_size=1, rate_limiter=AiorateLimiter(budget))  # or OpenAIEmbedding(rate_limiter=...)
    texts = [f"What is {number} + 1?" for number in range(5)]
    begin = time.monotonic()
    model.get_text_embedding_batch(texts)
    asyncio.run(model.aget_text_embedding_batch(texts))
    print(f"10 calls at 20 per second took {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
