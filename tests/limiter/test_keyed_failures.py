"""Keys with bad arguments, and with factories, functions and strategies that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, turns

import aiorate
from aiorate import KeyedLimiter, Limiter, SlidingWindow, TokenBucket
from aiorate.testing import ManualClock

pytestmark = one_loop


async def later(key: str) -> None:
    """An async function."""


def by_key(function: Any, **options: Any) -> KeyedLimiter[str]:
    return KeyedLimiter(lambda key: "10/s", shared=function, **options)


async def test_bad_arguments_of_a_keyed_limiter_are_refused() -> None:
    make: Any = KeyedLimiter
    rows: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: make("10/s"), TypeError, "factory|function"),
        (lambda: make(lambda key: "10/s", max_keys=0), ValueError, "max_keys"),
        (lambda: make(lambda key: "10/s", idle=-1), ValueError, "idle"),
        (lambda: make(lambda key: "10/s", on_event="me"), TypeError, "on_event"),
        (lambda: make(lambda key: "10/s", shared=object()), TypeError, "rate"),
        (lambda: make(lambda key: "10/s", shared={"a": Limiter("1/s")}), TypeError, "shared"),
        (lambda: make(lambda key: "10/s", shared=make(lambda key: "1/s")), TypeError, "shared"),
        (lambda: make(lambda key: "10/s", shared=TokenBucket), TypeError, "shared"),
        (lambda: make(lambda key: "10/s", weight=len), ValueError, "weight"),
        (lambda: make(lambda key: "1/s")["a", []], TypeError, "hashable"),
        (lambda: make(lambda key: object())["a"], TypeError, "factory"),
        (lambda: make(lambda key: "no rate")["a"], ValueError, "'no rate' for 'a'"),
    ]
    for function, error, hint in rows:
        with pytest.raises(error, match=hint):
            function()


async def test_wrong_results_of_a_shared_function_name_the_key() -> None:
    rows: list[tuple[Any, type[Exception], str]] = [
        (lambda key: "10/s", TypeError, "str"),
        (lambda key: TokenBucket("1/s", 5), TypeError, ""),
        (lambda key: KeyedLimiter(lambda key: "1/s"), TypeError, "KeyedLimiter"),
        (lambda key: False, TypeError, "bool"),
        (lambda key: Limiter("1/s", scope="process"), ValueError, "scope"),
        (lambda key: Limiter("1/s", max_waiting=2), ValueError, "max_waiting"),
    ]
    for function, error, hint in rows:
        keyed = by_key(function)
        for _ in range(2):
            with pytest.raises(error, match=f"'ann'.*{hint}"):
                keyed.try_acquire("ann")
        assert 0 == len(keyed)


async def test_bad_weight_names_the_key_and_spends_nothing() -> None:
    """The key is not kept either, and may be used once the function returns a number."""
    for wrong in (True, 1.0, "3", None, [1], "x" * 10**6, later("x"), 0, -1, -(10**5000)):
        shared = Limiter(TokenBucket("10/s", burst=1))
        answers = [wrong, 2]
        keyed = KeyedLimiter[str](lambda key: "100/s", shared=shared, weight=lambda key: answers.pop(0))  # type: ignore[arg-type, return-value]  # noqa: B023
        with pytest.raises(ValueError if type(wrong) is int else TypeError, match=r"weight.*'alice'") as told:
            keyed.try_acquire("alice")

        assert len(str(told.value)) < 300
        assert (0, 0) == (len(keyed), shared.statistics().granted)
        assert keyed.try_acquire("alice")
        if asyncio.iscoroutine(wrong):
            wrong.close()


async def test_a_function_that_fails_leaves_nothing_behind() -> None:
    """Its own error reaches the caller, the next request calls it again, and nothing is spent of what is shared."""
    made: list[str] = []
    shared = Limiter(TokenBucket("1/h", burst=1), clock=ManualClock())

    def factory(key: str) -> str:
        made.append(key)
        return "10/s" if len(made) > 1 else str(1 // 0)

    keyed = KeyedLimiter[str](factory, shared=lambda key: shared)
    with pytest.raises(ZeroDivisionError):
        keyed.try_acquire("a")
    assert 0 == len(keyed)
    assert keyed.try_acquire("a")

    made.clear()
    weighed = KeyedLimiter[str](factory, shared="1/s", weight=lambda key: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        await weighed.acquire("a")
    assert ([], 0) == (made, len(weighed))


async def test_a_factory_makes_a_limiter_for_each_key() -> None:
    """One for two keys would pass the shared limit twice, as would the shared limit itself."""
    limiter, shared = Limiter("10/s"), Limiter("100/s")
    keyed = KeyedLimiter[str](lambda key: limiter, shared=shared)
    assert keyed["a"] is limiter
    with pytest.raises(ValueError, match="each key"):
        keyed["b"]
    with pytest.raises(ValueError, match="each key"):
        KeyedLimiter[str](lambda key: shared, shared=shared)["a"]


async def test_a_circle_of_shared_functions_is_refused() -> None:
    """A key that leads back to itself, at once, through other KeyedLimiters, or by the factory. Or one without end."""
    alone: KeyedLimiter[str] = by_key(lambda key: alone[key])
    first: KeyedLimiter[str] = by_key(lambda key: second[key])
    second: KeyedLimiter[str] = by_key(lambda key: third[key])
    third: KeyedLimiter[str] = by_key(lambda key: first[key])
    factory: KeyedLimiter[str] = KeyedLimiter(lambda key: factory[key])
    for keyed in (alone, first, second, factory):
        with pytest.raises(RecursionError):
            keyed.try_acquire("ann")
    assert [0] * 4 == [len(keyed) for keyed in (alone, first, second, third)]
    endless: KeyedLimiter[int] = KeyedLimiter(lambda key: "1/s", shared=lambda key: endless[key + 1])
    with pytest.raises(RecursionError):
        endless[0]


async def test_a_lower_shared_rate_fails_requests_now_too_large() -> None:
    """Those behind them, of the same key, are served, and did not wait for them."""
    clock = SteppedClock()
    shared = Limiter(SlidingWindow("4/s"), clock=clock)
    keyed = KeyedLimiter[str](lambda key: Limiter(TokenBucket("9/s", burst=9), clock=clock), shared=shared)
    assert keyed.try_acquire("a", 4)
    crowd = Crowd(keyed["a"], clock)
    crowd.ask("large", 4)
    crowd.ask("small", 1)
    await turns(3)

    shared.set_rate("2/s")
    await clock.run(5)

    with pytest.raises(ValueError, match="2"):
        crowd.tasks["large"].result()
    assert {"small": SECOND} == crowd.granted


class Fails(aiorate.TokenBucket):
    """A bucket that raises instead of one grant."""

    __slots__ = ("fails",)

    def __init__(self, rate: str) -> None:
        super().__init__(rate, burst=1)
        self.fails = False

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if self.fails and self.peek(permits, now) <= now:
            self.fails = False
            raise OSError("broken")
        return super().take(permits, now, since)


@pytest.mark.parametrize("in_line", [True, False])
async def test_a_failing_strategy_of_a_key_spends_no_shared_permit(in_line: bool) -> None:
    """The shared limit is asked first, and gets its permit back when the key's own limit fails."""
    clock = SteppedClock()
    strategy = Fails("1/s")
    shared = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=2), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(strategy, clock=clock), shared=shared)
    if in_line:
        assert keyed.try_acquire("a")
        crowd = Crowd(keyed["a"], clock)
        await crowd.queue(["first", "second"])
    strategy.fails = True
    await clock.run(1)

    if in_line:
        assert {"OSError: broken"} == {f"{type(task.exception()).__name__}: {task.exception()}" for task in crowd.tasks.values()}
    else:
        with pytest.raises(OSError, match="broken"):
            keyed.try_acquire("a")
    assert [True, not in_line] == [shared.try_acquire(), shared.try_acquire()]
    assert (0, clock.timers) == (shared.statistics().waiting, 0)
    await keyed.aclose()
