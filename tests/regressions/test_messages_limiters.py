"""First mistakes with a Limiter: the error says what to write instead."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import pytest

import aiorate
from aiorate.testing import VirtualLoop

BOTH = pytest.mark.parametrize("scope", ["loop", "process"])


def run(main: Callable[[], Any]) -> Any:
    """Run it in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"burst": 5}, "TokenBucket"),
        ({"max_burst": 5}, "TokenBucket"),
        ({"timeout": 1}, "acquire(max_wait=1)"),
        ({"key": str}, "KeyedLimiter"),
        ({"storage_uri": "redis://localhost"}, "RedisLimiter"),
        ({"max_concurrent": 5}, "max_concurrency=5"),
        ({"per": 60}, "Limiter('100/5s')"),
        ({"nonsense": 1}, "catch_up, max_waiting, precise"),
    ],
)
def test_unknown_option_names_the_right_one(options: dict[str, Any], hint: str) -> None:
    """Python's own message only says that the keyword is unexpected."""
    with pytest.raises(TypeError) as error:
        aiorate.Limiter("10/s", **options)

    assert next(iter(options)) in str(error.value)
    assert hint in str(error.value)


@pytest.mark.parametrize("options", [{"rate_limit": 10, "period": 1}, {"max_rate": 10, "time_period": 60}, {}])
def test_rate_as_other_libraries_name_it_is_answered_by_text(options: dict[str, Any]) -> None:
    """Other libraries take two numbers."""
    with pytest.raises(TypeError, match=r"Limiter\('10/s'\)"):
        aiorate.Limiter(**options)


def test_acquire_blocking_with_a_timeout_names_max_wait() -> None:
    """`queue.Queue.get` takes a timeout."""
    with pytest.raises(TypeError, match="max_wait=1"):
        aiorate.Limiter("10/s", scope="process").acquire_blocking(timeout=1)  # type: ignore[arg-type]


def test_a_plain_with_says_async_with() -> None:
    """It also names the scope for synchronous code, where a plain `with` waits."""
    limiter = aiorate.Limiter("10/s")
    with pytest.raises(RuntimeError, match="async with limiter") as error, limiter:
        pass

    assert "scope='process'" in str(error.value)


def test_called_limiter_is_told_to_drop_the_parentheses() -> None:
    """For ``async with limiter():`` and ``@limiter()``."""
    limiter = aiorate.Limiter("10/s")

    async def main() -> None:
        async with limiter():
            pass

    with pytest.raises(TypeError, match="without parentheses"):
        run(main)
    with pytest.raises(TypeError, match="without parentheses"):

        @limiter()
        async def job() -> None:
            pass


def test_an_awaited_block_names_acquire() -> None:
    """For ``await limiter.of(3)``."""
    limiter = aiorate.Limiter("10/s")

    async def main() -> None:
        await limiter.of(3)  # type: ignore[misc]

    with pytest.raises(TypeError, match=r"await limiter\.acquire\(n\)"):
        run(main)
    assert 0 == limiter.statistics().granted


def test_second_running_loop_names_scope_process() -> None:
    """It said "make one limiter per loop", which doubles the limit."""
    limiter = aiorate.Limiter("1/h")  # a free permit could be granted without a look at the loop

    async def main() -> list[str]:
        await limiter.acquire()
        said: list[str] = []

        def ask(call: Callable[[], object]) -> None:
            try:
                call()
            except RuntimeError as error:
                said.append(str(error))

        for call in (limiter.try_acquire, lambda: asyncio.run(limiter.acquire())):
            thread = threading.Thread(target=ask, args=(call,))
            thread.start()
            thread.join()
        return said

    said = asyncio.run(main())
    assert 2 == len(said)
    assert all("scope='process'" in words and "one limiter per loop" not in words for words in said)


@runtime_checkable
class Closable(Protocol):
    """As programs write it that close whatever they have opened."""

    def close(self) -> object: ...


def test_a_limiter_is_not_taken_for_what_has_close() -> None:
    """A Protocol looks for the name in the classes, where close() lay with the text of its error."""
    assert not isinstance(aiorate.Limiter("10/s"), Closable)
    assert not hasattr(aiorate.Limiter, "close")
