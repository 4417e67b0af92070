"""repr(), copying, closing and errors of a KeyedLimiter."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import aiorate
from aiorate.testing import ManualClock

pytestmark = pytest.mark.asyncio


def keyed(**options: Any) -> aiorate.KeyedLimiter[Any]:
    return aiorate.KeyedLimiter(lambda key: aiorate.TokenBucket("1/s", burst=1), **options)


async def test_repr_shows_the_number_of_keys_and_the_shared_limit() -> None:
    """repr() adds no key."""
    alone, shared = keyed(), keyed(shared=aiorate.TokenBucket("5/s", burst=5))
    alone.try_acquire("ann")

    assert repr(alone) == "<KeyedLimiter of 1 keys>"
    assert repr(shared).startswith("<KeyedLimiter of 0 keys, shared=<Limiter 'shared' TokenBucket(")


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_a_keyed_limiter_cannot_be_copied(twin: Any) -> None:
    """A copy would grant the same permits again."""
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        twin(keyed())


@pytest.mark.parametrize("own", [True, False])
async def test_closing_closes_a_shared_limit_it_has_made(own: bool) -> None:
    """A limiter that was passed in may have other users, and stays open. Afterwards nothing is granted and no key is added."""
    elsewhere = aiorate.Limiter(aiorate.TokenBucket("5/s", burst=5))
    limiters = keyed(shared="5/s" if own else elsewhere)
    limiters.try_acquire("ann")

    await limiters.aclose()

    shared = limiters.shared
    assert shared is not None
    if own:
        with pytest.raises(aiorate.LimiterClosed):
            shared.try_acquire()
    else:
        assert shared.try_acquire()
    with pytest.raises(aiorate.LimiterClosed):
        limiters.try_acquire("ann")
    with pytest.raises(aiorate.LimiterClosed, match="adds no key"):
        limiters.try_acquire("bob")


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
        keyed(on_event="me")


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


async def test_on_event_of_an_evicted_key_may_evict_the_others() -> None:
    """Each key is dropped, and reported, once."""
    told: list[str] = []

    def on_event(event: aiorate.Event) -> None:
        told.append(str(event.key))
        limiters.evict()

    clock = ManualClock()
    limiters = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), on_event=on_event)
    assert all(limiters.try_acquire(key) for key in ("ann", "bob", "cid"))
    clock.advance(1)

    assert 1 == limiters.evict()  # the callback dropped the others

    assert ["ann", "bob", "cid"] == sorted(told)
    assert len(limiters) == 0
