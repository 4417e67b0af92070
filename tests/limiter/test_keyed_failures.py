"""Keys with bad arguments, factories and strategies that fail, limiters that are in use already, and loops that end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import Crowd, SteppedClock, one_loop, turns

import aiorate
from aiorate.testing import ManualClock


@pytest.mark.parametrize(
    ("make", "error", "hint"),
    [
        (lambda: aiorate.KeyedLimiter("10/s"), TypeError, "function of the key"),  # type: ignore[arg-type]
        (lambda: aiorate.KeyedLimiter(lambda key: "10/s", max_keys=0), ValueError, "max_keys"),
        (lambda: aiorate.KeyedLimiter(lambda key: "10/s", idle=-1), ValueError, "idle"),
        (lambda: aiorate.KeyedLimiter(lambda key: "10/s", shared=object()), TypeError, "rate"),  # type: ignore[arg-type]
        (lambda: aiorate.KeyedLimiter(lambda key: "1/s")["a", []], TypeError, "a key must be hashable.*'list'"),
        (lambda: aiorate.KeyedLimiter(lambda key: object())["a"], TypeError, "factory must return"),  # type: ignore[arg-type, return-value]
        (lambda: aiorate.KeyedLimiter(lambda key: "10/s")[["a"]], TypeError, "hashable"),  # type: ignore[index]
        (lambda: aiorate.KeyedLimiter(lambda key: "no rate")["a"], ValueError, "not a rate"),
    ],
)
def test_bad_arguments_of_a_keyed_limiter_are_refused(make: Any, error: type[Exception], hint: str) -> None:
    """The error says what is allowed."""
    with pytest.raises(error, match=hint):
        make()


def test_a_factory_that_fails_leaves_nothing_behind() -> None:
    """The next request for the key calls the factory again."""
    keyed: aiorate.KeyedLimiter[str] = aiorate.KeyedLimiter(lambda key: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        keyed.try_acquire("a")

    assert len(keyed) == 0


def test_one_limiter_for_two_keys_with_shared_is_refused() -> None:
    """It would pass the shared limit twice."""
    limiter = aiorate.Limiter("10/s")
    keyed = aiorate.KeyedLimiter(lambda key: limiter, shared="100/s")
    assert keyed["a"] is limiter

    with pytest.raises(ValueError, match="one for each key"):
        keyed["b"]


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


@one_loop
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


@one_loop
async def test_a_limiter_with_a_line_is_refused_as_a_key() -> None:
    """Its waiters have not asked the shared limit. Once they are served, a key may have that limiter."""
    clock = ManualClock()
    made = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: made, shared=aiorate.Limiter("10/s", clock=clock))
    assert made.try_acquire()
    waiting = asyncio.ensure_future(made.acquire())
    await turns(2)

    with pytest.raises(ValueError, match="in use already"):
        keyed["a"]
    await clock.run(1)
    assert 1 == await waiting
    assert not keyed.try_acquire("a")
    await clock.run(1)
    assert keyed.try_acquire("a")


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_used_limiter_may_become_that_of_a_key() -> None:
    """Its meter was open until then, and no grab bypasses the shared limit afterwards."""
    made = aiorate.Limiter(aiorate.TicksAccumulator("10/s"))
    for _ in range(3):
        await made.acquire()
    await asyncio.sleep(10)
    assert all(made.try_acquire() for _ in range(3))
    keyed = aiorate.KeyedLimiter[str](lambda key: made, shared=aiorate.TokenBucket("1/s", burst=2))

    assert [True, True, False] == [keyed.try_acquire("a") for _ in range(3)]
    assert 8 == keyed["a"].statistics().granted


@pytest.mark.parametrize("first", ["key", "shared"])
def test_waiters_of_a_past_loop_leave_both_lines(first: str) -> None:
    """The next loop may ask the key first or the shared limit."""
    clock = ManualClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    assert keyed.try_acquire("a")
    clock.advance(1)
    assert shared.try_acquire()
    tasks: list[asyncio.Task[float]] = []

    async def wait() -> None:
        tasks.append(asyncio.ensure_future(keyed.acquire("a")))
        await turns(3)
        assert (1, 1) == (shared.statistics().waiting, keyed["a"].statistics().waiting)

    async def ask() -> None:
        if first == "shared":
            assert not shared.try_acquire()
        assert not keyed.try_acquire("a")
        await clock.run(1)
        assert keyed.try_acquire("a")
        assert (0, 0) == (shared.statistics().waiting, keyed["a"].statistics().waiting)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait())
    asyncio.run(ask())
    with pytest.raises(RuntimeError, match="moved to another event loop"):
        loop.run_until_complete(tasks[0])
    loop.close()


@pytest.mark.asyncio
async def test_a_factory_may_not_return_shared_or_a_coroutine() -> None:
    """A key that is its own shared limit would pay twice; a coroutine means that the factory is an async function."""
    shared = aiorate.Limiter("5/s")

    async def later(key: str) -> str:
        return "5/s"

    with pytest.raises(ValueError, match="make one for each key"):
        aiorate.KeyedLimiter[str](lambda key: shared, shared=shared).try_acquire("ann")
    with pytest.raises(TypeError, match="it returned coroutine"):
        aiorate.KeyedLimiter[str](later).try_acquire("ann")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_event"):
        aiorate.KeyedLimiter(lambda key: "1/s", on_event="me")  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_failing_strategy_affects_only_its_own_key() -> None:
    """The key is kept, and other keys never raise its error."""

    class Broken(aiorate.TokenBucket):
        __slots__ = ()

        def rested(self, now: int) -> bool:
            raise OSError("broken")

    clock = ManualClock()
    limiters = aiorate.KeyedLimiter[str](
        lambda key: aiorate.Limiter((Broken if key == "bad" else aiorate.TokenBucket)("1/s", burst=1), clock=clock)
    )
    assert limiters.try_acquire("bad")
    clock.set(clock.now() + 10_000_000_000)

    assert all(limiters.try_acquire(key) for key in ("ann", "bob", "cid"))
    clock.set(clock.now() + 10_000_000_000)
    limiters.evict()

    assert list(limiters) == ["bad"]
