"""First mistakes with a Limiter: the error says what to write instead."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable
from unittest.mock import Mock

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


@pytest.mark.skipif(sys.version_info < (3, 12), reason="on Python 3.11, __getattr__ would slow down every attribute")
@pytest.mark.parametrize("kind", [aiorate.Limiter, aiorate.Lease])
def test_help_and_mocks_have_no_names_that_only_explain(kind: type) -> None:
    """They lay in a base class, so that help() and tab completion listed them, and a mock had them."""
    assert {name for name in dir(kind) if not hasattr(kind, name)} <= {"__abstractmethods__"}
    assert not {"release", "consume", "cancel"} & set(dir(kind))
    assert not hasattr(Mock(spec=kind), "consume")


class Level(aiorate.Limiter):
    """With names that other libraries have."""

    __slots__ = ("wait",)

    @property
    def level(self) -> object:
        return self.nothing  # type: ignore[attr-defined]


def test_a_subclass_may_have_names_that_only_explain() -> None:
    """The errors of its attributes are as Python words them."""
    limiter = Level("10/s")

    with pytest.raises(AttributeError, match="nothing"):
        limiter.level  # noqa: B018
    with pytest.raises(AttributeError, match="wait"):
        limiter.wait  # noqa: B018
    limiter.wait = 5
    assert 5 == limiter.wait
