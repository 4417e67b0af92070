"""Decorated functions: each call acquires first, and name, signature and kind of the function stay."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from helpers.driving import one_loop

import aiorate
from aiorate.testing import ManualClock

pytestmark = one_loop


@pytest.fixture
def limiter(clock: ManualClock) -> aiorate.Limiter:
    return aiorate.Limiter(aiorate.TokenBucket("10/s", burst=3), clock=clock)


async def test_each_call_waits_for_a_permit(limiter: aiorate.Limiter, clock: ManualClock) -> None:
    @limiter
    async def fetch(name: str, *, size: int = 1) -> str:
        """Fetch it."""
        return f"{name}{size}"

    results = [asyncio.ensure_future(fetch("a", size=k)) for k in range(4)]
    await clock.run(0)

    assert [task.result() for task in results[:3]] == ["a0", "a1", "a2"]
    assert not results[3].done()
    await clock.run(0.1)
    assert results[3].result() == "a3"
    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetch it.")
    assert list(inspect.signature(fetch).parameters) == ["name", "size"]
    assert inspect.iscoroutinefunction(fetch)


async def test_methods_are_limited_together(limiter: aiorate.Limiter) -> None:
    """All instances share the limiter, since the decorator is applied once, in the class."""

    class Client:
        @limiter
        async def get(self, n: int) -> int:
            return n

    assert [await Client().get(n) for n in (1, 2, 3)] == [1, 2, 3]
    assert limiter.delay() == 0.1


async def test_nothing_is_called_when_the_permit_is_refused(limiter: aiorate.Limiter) -> None:
    called = []

    @limiter.of(3)
    async def call() -> None:
        called.append(True)

    await call()
    assert limiter.delay() == 0.1
    await limiter.aclose()
    with pytest.raises(aiorate.LimiterClosed):
        await call()

    assert called == [True]


async def test_a_generator_pays_once_before_its_first_step(limiter: aiorate.Limiter) -> None:
    """A page of results is one request, however many items it yields; one that is closed before it began costs nothing."""

    @limiter
    async def items(count: int) -> AsyncIterator[int]:
        for item in range(count):
            yield item

    assert inspect.isasyncgenfunction(items)
    assert [item async for item in items(5)] == [0, 1, 2, 3, 4]
    await items(1).aclose()  # type: ignore[attr-defined]
    assert limiter.statistics().granted == 1


async def test_a_decorated_generator_keeps_its_protocol(limiter: aiorate.Limiter) -> None:
    log: list[object] = []

    @limiter
    async def echo() -> AsyncGenerator[object, object]:
        said: object = "hello"
        try:
            while True:
                try:
                    said = yield said
                except KeyError as error:
                    said = error.args[0]
        finally:
            log.append("closed")

    generator = echo()

    assert await anext(generator) == "hello"
    assert await generator.asend("sent") == "sent"
    assert await generator.athrow(KeyError("thrown")) == "thrown"
    with pytest.raises(ZeroDivisionError):
        await generator.athrow(ZeroDivisionError)
    assert log == ["closed"]
    another = echo()
    async for _ in another:
        break
    await another.aclose()
    assert log == ["closed", "closed"]


async def test_a_plain_function_needs_the_scope_of_threads(limiter: aiorate.Limiter) -> None:
    """It would block the loop; decorating it without an error would limit nothing (langchain-ai/langchain#26914)."""
    for thing in (lambda: None, len):
        for decorate in (limiter, limiter.of(2)):
            with pytest.raises(RuntimeError, match=r"async def.*scope='process'"):
                decorate(thing)  # type: ignore[type-var]


async def test_only_functions_can_be_decorated(limiter: aiorate.Limiter) -> None:
    for thing in (5, int, None, "text", staticmethod(len)):
        for each in (limiter, aiorate.Limiter("1/s", scope="process")):
            for decorate in (each, each.of(2)):
                with pytest.raises(TypeError, match="async def"):
                    decorate(thing)  # type: ignore[type-var]
