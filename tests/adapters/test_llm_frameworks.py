"""The adapters of examples/adapters/ for langchain-core, llama-index-core and pydantic-ai, run in the real packages."""

from __future__ import annotations

import asyncio
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.driving import LONG

from aiorate import Budget, Limiter, TokenBucket

EXAMPLES = Path(__file__).parents[2] / "examples" / "adapters"
FRAMEWORKS = ("langchain", "llama_index", "pydantic_ai")
each = pytest.mark.parametrize("framework", FRAMEWORKS)


@cache
def adapter(framework: str) -> Callable[[Limiter], Any]:
    made: Callable[[Limiter], Any] = runpy.run_path(str(EXAMPLES / f"{framework}_limiter.py"))["AiorateLimiter"]
    return made


def limit_of(framework: str, rate: str = "50/s") -> Any:
    """What the adapter takes: a budget for llama-index, a limiter for the others. Both count, pause and have a line."""
    if framework == "llama_index":
        return Budget(requests=TokenBucket(rate, burst=1), tokens=TokenBucket("1000/min", burst=1000), scope="process")
    return Limiter(TokenBucket(rate, burst=1), scope="process")


class Calls:
    """A model of the framework that notes when it is called: `ask` from a thread, `aask` in an event loop."""

    def __init__(self, framework: str, limiter: Limiter) -> None:
        self.instants: list[int] = []
        self.ask, self.aask = getattr(self, framework)(adapter(framework)(limiter))

    def note(self, *args: Any, **options: Any) -> None:
        self.instants.append(time.monotonic_ns())

    def langchain(self, limiter: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        from langchain_core.language_models.fake_chat_models import FakeListChatModel

        note = self.note

        class Model(FakeListChatModel):
            def _call(self, *args: Any, **options: Any) -> str:
                note()
                return super()._call(*args, **options)

        model = Model(responses=["42"], rate_limiter=limiter)
        return lambda: model.invoke("What?"), lambda: model.ainvoke("What?")

    def llama_index(self, limiter: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
        from llama_index.core.llms.callbacks import llm_completion_callback

        note = self.note

        class Model(CustomLLM):
            @property
            def metadata(self) -> LLMMetadata:
                return LLMMetadata()

            @llm_completion_callback()
            def complete(self, prompt: str, formatted: bool = False, **options: Any) -> CompletionResponse:
                note()
                return CompletionResponse(text="42")

            @llm_completion_callback()
            async def acomplete(self, prompt: str, formatted: bool = False, **options: Any) -> CompletionResponse:
                note()
                return CompletionResponse(text="42")

            @llm_completion_callback()
            def stream_complete(self, prompt: str, formatted: bool = False, **options: Any) -> Any:
                raise NotImplementedError

        model = Model(rate_limiter=limiter)
        return lambda: model.complete("What?"), lambda: model.acomplete("What?")

    def pydantic_ai(self, limiter: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        from pydantic_ai import Agent
        from pydantic_ai.messages import ModelResponse, TextPart
        from pydantic_ai.models.concurrency import limit_model_concurrency
        from pydantic_ai.models.function import FunctionModel

        def answer(*args: Any) -> ModelResponse:
            self.note()
            return ModelResponse([TextPart("42")])

        agent = Agent(limit_model_concurrency(FunctionModel(answer), limiter))
        return lambda: asyncio.run(agent.run("What?")), lambda: agent.run("What?")


@each
def test_the_program_takes_its_time(framework: str) -> None:
    """Ten calls, the first at once, and twenty per second."""
    command = [sys.executable, str(EXAMPLES / f"{framework}_limiter.py")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)

    assert (0, "") == (done.returncode, done.stderr)
    assert float(done.stdout.split()[-2]) >= 0.4


@each
def test_threads_and_loops_share_one_limit(framework: str) -> None:
    """Six threads of calls and two event loops: every call takes one permit, and none leaves early."""
    limiter = limit_of(framework, "100/s")
    calls = Calls(framework, limiter)

    async def together() -> None:
        await asyncio.gather(*(calls.aask() for _ in range(10)))

    begin = time.monotonic_ns()
    with ThreadPoolExecutor(8) as threads:
        jobs = [threads.submit(calls.ask) for _ in range(30)] + [threads.submit(asyncio.run, together()) for _ in range(2)]
    for job in jobs:
        job.result()

    assert (50, 50) == (len(calls.instants), limiter.statistics().granted)
    assert max(calls.instants) - begin >= 0.49e9 - 0.02e9  # a late timer is caught up with


@each
def test_a_cancelled_call_spends_nothing(framework: str) -> None:
    """Its task is cancelled while the call waits in line."""
    limiter = limit_of(framework, "1/min")
    calls = Calls(framework, limiter)

    async def main() -> None:
        await calls.aask()
        task = asyncio.ensure_future(calls.aask())
        while not limiter.statistics().waiting:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert (1, 1, 0) == (len(calls.instants), limiter.statistics().granted, limiter.statistics().waiting)


@each
def test_a_pause_holds_every_call(framework: str) -> None:
    """As after a 429."""
    limiter = limit_of(framework)
    calls = Calls(framework, limiter)
    calls.ask()

    limiter.pause(0.3)
    asked = time.monotonic_ns()
    asyncio.run(asyncio.wait_for(calls.aask(), LONG))

    assert calls.instants[-1] - asked >= 0.29e9


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
def test_a_synchronous_call_does_not_block_a_loop(framework: str) -> None:
    """A plain invoke() inside a coroutine would stop every other task: an error says so, and nothing is spent."""
    limiter = limit_of(framework)
    calls = Calls(framework, limiter)

    async def main() -> None:
        calls.ask()

    with pytest.raises(RuntimeError, match="event loop"):
        asyncio.run(main())
    assert (0, 0) == (len(calls.instants), limiter.statistics().granted)


def test_langchain_asks_without_waiting() -> None:
    """With blocking=False the answer is whether there was a permit, in both kinds of code."""
    limiter = limit_of("langchain", "1/min")
    asking = adapter("langchain")(limiter)

    assert asking.acquire(blocking=False) is True
    assert asking.acquire(blocking=False) is False
    assert asyncio.run(asking.aacquire(blocking=False)) is False


def test_langchain_streams_and_batches_pay() -> None:
    """One permit for each call to the model, from the threads of batch() too."""
    from langchain_core.language_models.fake_chat_models import FakeListChatModel

    limiter = limit_of("langchain", "1000/s")
    model = FakeListChatModel(responses=["42"], rate_limiter=adapter("langchain")(limiter))

    model.batch(["What?"] * 5)
    asyncio.run(model.abatch(["What?"] * 5))
    assert "42" == "".join(chunk.text for chunk in model.stream("What?"))

    assert 11 == limiter.statistics().granted


def test_llama_index_embeddings_pay_for_each_batch() -> None:
    """25 texts in batches of 10 are three calls."""
    from llama_index.core import MockEmbedding

    limiter = limit_of("llama_index", "1000/s")
    model = MockEmbedding(embed_dim=2, embed_batch_size=10, rate_limiter=adapter("llama_index")(limiter))

    model.get_text_embedding_batch(["text"] * 25)
    asyncio.run(model.aget_text_embedding_batch(["text"] * 25))

    assert 6 == limiter.statistics().granted


def test_llama_index_may_tell_tokens() -> None:
    """The next request waits until they are available too."""
    budget = limit_of("llama_index", "1000/s")
    asking = adapter("llama_index")(budget)

    asking.acquire(600)
    asyncio.run(asking.async_acquire(300))

    assert 100 <= budget.available("tokens") < 200
    assert budget.delay(tokens=600) > 20


def test_pydantic_ai_waits_inside_its_own_limit() -> None:
    """Wrapped twice: at most two requests run, and those wait for a permit; a stream gives its place back."""
    from pydantic_ai import Agent
    from pydantic_ai.models.concurrency import limit_model_concurrency
    from pydantic_ai.models.test import TestModel

    limiter = limit_of("pydantic_ai", "100/s")
    agent = Agent(limit_model_concurrency(limit_model_concurrency(TestModel(), adapter("pydantic_ai")(limiter)), 2))
    most = 0

    async def ask() -> None:
        nonlocal most
        async with agent.run_stream("What?") as run:
            most = max(most, limiter.statistics().waiting)
            await run.get_output()

    async def main() -> None:
        await asyncio.gather(*(ask() for _ in range(10)))

    asyncio.run(main())

    assert 10 == limiter.statistics().granted
    assert most <= 2
