"""One limit for each key, and one that all keys share."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import pytest
import trio
import trio.testing
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, turns

import aiorate
from aiorate.testing import ManualClock, VirtualLoop


def virtually(main: Any) -> Any:
    """Run ``main`` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


class Sent:
    """Tasks that each send one message to a chat; ``at`` has (seconds, chat) in order of sending."""

    def __init__(self, keyed: aiorate.KeyedLimiter[Any]) -> None:
        self.keyed = keyed
        self.at: list[tuple[float, Any]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def send(self, chat: Any, count: int = 1) -> None:
        self.tasks += [asyncio.ensure_future(self._send(chat)) for _ in range(count)]

    async def _send(self, chat: Any) -> None:
        await self.keyed.acquire(chat)
        self.at.append((round(asyncio.get_running_loop().time(), 6), chat))

    async def all(self) -> list[tuple[float, Any]]:
        await asyncio.gather(*self.tasks)
        return self.at


def test_each_key_has_its_own_limit() -> None:
    """A free key is granted at once, even if another key has to wait."""

    async def main() -> list[tuple[float, Any]]:
        sent = Sent(aiorate.KeyedLimiter(lambda chat: aiorate.TokenBucket("1/s", burst=1)))
        sent.send("a", 3)
        sent.send("b")
        return await sent.all()

    assert virtually(main) == [(0, "a"), (0, "b"), (1, "a"), (2, "a")]


def test_a_bot_with_one_limit_in_all_and_one_for_each_chat() -> None:
    """30/s in all and 1/s for each chat: 100 messages to one chat delay no other."""

    async def main() -> list[tuple[float, Any]]:
        sent = Sent(aiorate.KeyedLimiter(lambda chat: aiorate.SlidingWindow("1/s"), shared=aiorate.SlidingWindow("30/s")))
        sent.send("busy", 100)
        for chat in range(50):
            sent.send(chat)
        return await sent.all()

    at = virtually(main)

    busy = [when for when, chat in at if chat == "busy"]
    assert busy == list(range(100))
    assert max(when for when, chat in at if chat != "busy") == 1.0
    assert all(sum(begin <= when < begin + 1 for when, _ in at) <= 30 for begin, _ in at)


@one_loop
@pytest.mark.parametrize("own", [aiorate.TokenBucket("1/s", burst=1), aiorate.SmoothBursty("1/s", max_stored=0)], ids=repr)
async def test_a_key_does_not_catch_up_after_the_shared_limit(own: aiorate.Scheduler) -> None:
    """The time in the shared line is not a late wake-up: two messages to a chat are a second apart, however long the first one waited."""
    clock = ManualClock()
    shared = aiorate.Limiter("100/s", clock=clock)
    chat = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(own, clock=clock), shared=shared)["chat"]
    crowd = Crowd(chat, clock)
    await crowd.queue(range(4))
    await clock.run(0.5)
    shared.pause(1)
    await clock.run(4)

    assert [round(at / SECOND, 3) for at in crowd.granted.values()] == [0, 1.5, 2.5, 3.5]


@one_loop
@pytest.mark.parametrize("late", [0.001, 0.02])
async def test_two_limits_of_one_rate_lose_nothing_to_late_wake_ups(late: float) -> None:
    """Both limits make up for a late timer, or each would cost a part of the rate."""
    clock = SteppedClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock), shared=shared)
    crowd = Crowd(keyed["a"], clock)
    await crowd.queue(range(101))

    while len(crowd.granted) < 101:
        assert clock.next_timer is not None
        clock.set(clock.next_timer + round(late * SECOND))
        await turns(3)

    assert crowd.granted[100] <= 10 * SECOND + 2 * late * SECOND
    assert sorted(crowd.granted) == list(range(101))


def test_the_shared_line_is_in_order_of_becoming_due() -> None:
    """A key's next request is behind those that became due before it, not behind all that were made before it."""

    async def main() -> list[tuple[float, Any]]:
        sent = Sent(aiorate.KeyedLimiter(lambda chat: aiorate.TokenBucket("1/s", burst=1), shared=aiorate.TokenBucket("2/s", burst=1)))
        for chat in "abcd":
            sent.send(chat, 2)
        return await sent.all()

    assert virtually(main) == [(0, "a"), (0.5, "b"), (1, "c"), (1.5, "d"), (2, "a"), (2.5, "b"), (3, "c"), (3.5, "d")]


@one_loop
@pytest.mark.parametrize("own", [aiorate.TokenBucket, aiorate.SlidingWindow], ids=lambda kind: kind.__name__)
async def test_a_cancelled_request_spends_neither_limit(own: Any) -> None:
    """It may be cancelled in its key's line, in the shared line, or once granted but before it runs."""
    clock = ManualClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    make = (lambda rate: aiorate.TokenBucket(rate, burst=1)) if own is aiorate.TokenBucket else aiorate.SlidingWindow
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(make("1/s"), clock=clock), shared=shared)
    await keyed.acquire("a")
    in_key, in_shared = asyncio.ensure_future(keyed.acquire("a")), asyncio.ensure_future(keyed.acquire("b"))
    await turns(3)
    in_key.cancel()
    in_shared.cancel()
    await turns(3)
    granted = asyncio.ensure_future(keyed.acquire("c"))
    next_one = asyncio.ensure_future(keyed.acquire("d"))
    await turns(3)

    clock.advance(1)
    granted.cancel()
    await turns(5)

    assert next_one.done()
    assert not next_one.cancelled()
    assert (shared.statistics().granted, keyed["b"].statistics().granted, keyed["c"].statistics().granted) == (2, 0, 0)
    assert keyed["c"].scheduler.peek(1, clock.now()) <= clock.now()
    assert not shared.statistics().waiting


@one_loop
@pytest.mark.parametrize("kind", [aiorate.TicksAccumulator, aiorate.BurstRatio, aiorate.SmoothBursty])
@pytest.mark.parametrize("shared_too", [False, True])
async def test_a_cancelled_grant_spends_neither_pacing_limit(kind: Any, shared_too: bool) -> None:
    """Granted by both limits at one instant, but cancelled before it runs: the next request of the key is due at once."""
    clock = SteppedClock()
    shared = aiorate.Limiter(kind("10/s") if shared_too else aiorate.TokenBucket("10/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(kind("10/s"), clock=clock), shared=shared)
    while keyed.try_acquire("ann"):
        pass
    task = asyncio.ensure_future(keyed.acquire("ann"))
    await turns(3)

    assert clock.fire()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert (keyed["ann"].delay(), shared.delay()) == (0.0, 0.0)


@one_loop
async def test_a_pause_concerns_one_key_or_all_by_the_shared_limit() -> None:
    """alexei-led/ccgram#171, python-telegram-bot/python-telegram-bot#3765: one flooded key froze all traffic."""
    clock = ManualClock()
    shared = aiorate.Limiter("1000/s", clock=clock)
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter("10/s", clock=clock), shared=shared)
    keyed["a"].pause(5)

    assert not keyed.try_acquire("a")
    assert keyed.try_acquire("b")
    shared.pause(1)
    assert not keyed.try_acquire("c")
    waiting = asyncio.ensure_future(keyed.acquire("c"))
    await clock.run(1.001)  # b had the last permit
    assert waiting.done()
    await clock.run(4)
    assert keyed.try_acquire("a")


@one_loop
async def test_try_acquire_and_max_wait_ask_the_shared_limit_too() -> None:
    """They spend both limits, or neither."""
    clock = ManualClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    assert keyed.try_acquire("a")

    assert not keyed.try_acquire("b")
    with pytest.raises(aiorate.WaitTooLong):
        await keyed.acquire("b", max_wait=0.5)
    with pytest.raises(ValueError, match="1 is the most"):
        await keyed.acquire("b", 2)
    clock.advance(1)
    assert keyed.try_acquire("b")
    assert not keyed.try_acquire("a")
    clock.advance(1)
    assert keyed.try_acquire("a")


@one_loop
async def test_closing_the_shared_limit_fails_requests_of_all_keys() -> None:
    """Requests in its line fail, and later ones."""
    clock = ManualClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter("10/s", clock=clock), shared=shared)
    await keyed.acquire("a")
    waiting = asyncio.ensure_future(keyed.acquire("b"))
    await turns(3)

    await shared.aclose()
    await turns(3)

    with pytest.raises(aiorate.LimiterClosed):
        await waiting
    with pytest.raises(aiorate.LimiterClosed):
        await keyed.acquire("c")


def test_under_trio_the_shared_line_is_served() -> None:
    """No task waits for the shared limit itself: tasks wait in their key's line, and the first of each key is in the shared one too."""
    at: list[tuple[float, str]] = []

    async def main() -> None:
        keyed = aiorate.KeyedLimiter(lambda key: aiorate.TokenBucket("1/s", burst=1), shared=aiorate.TokenBucket("2/s", burst=1))

        async def send(key: str) -> None:
            await keyed.acquire(key)
            at.append((round(trio.current_time(), 6), key))

        async with trio.open_nursery() as nursery:
            for key in "aabbccdd":
                nursery.start_soon(send, key)
                await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.1):
            await keyed.acquire("e")
        assert keyed.shared is not None
        assert keyed.shared.statistics().waiting == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    assert at == [(0, "a"), (0.5, "b"), (1, "c"), (1.5, "d"), (2, "a"), (2.5, "b"), (3, "c"), (3.5, "d")]


def limiter_of_keys(**options: Any) -> aiorate.KeyedLimiter[Any]:
    """A limiter for each key, of one permit a second."""
    return aiorate.KeyedLimiter(lambda key: aiorate.TokenBucket("1/s", burst=1), **options)


@pytest.mark.asyncio
async def test_repr_shows_the_number_of_keys_and_the_shared_limit() -> None:
    """repr() adds no key."""
    alone, shared = limiter_of_keys(), limiter_of_keys(shared=aiorate.TokenBucket("5/s", burst=5))
    alone.try_acquire("ann")

    assert repr(alone) == "<KeyedLimiter of 1 keys>"
    assert repr(shared).startswith("<KeyedLimiter of 0 keys, shared=<Limiter 'shared' TokenBucket(")


@pytest.mark.asyncio
@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_a_keyed_limiter_cannot_be_copied(twin: Any) -> None:
    """A copy would grant the same permits again."""
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        twin(limiter_of_keys())


@pytest.mark.asyncio
@pytest.mark.parametrize("own", [True, False])
async def test_closing_closes_a_shared_limit_it_has_made(own: bool) -> None:
    """A limiter that was passed in may have other users, and stays open. Afterwards nothing is granted and no key is added."""
    elsewhere = aiorate.Limiter(aiorate.TokenBucket("5/s", burst=5))
    limiters = limiter_of_keys(shared="5/s" if own else elsewhere)
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
