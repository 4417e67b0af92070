"""One limit for each key, and one that all keys share. Keys are evicted once a new limiter would grant nothing sooner."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
from itertools import pairwise
from typing import Any
from weakref import ref

import pytest
import trio
import trio.testing
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, turns

import aiorate
from aiorate import KeyedLimiter, Limiter, LimiterClosed, SlidingWindow, TokenBucket
from aiorate.testing import ManualClock, VirtualLoop


def virtually(main: Any) -> Any:
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
    async def main() -> list[tuple[float, Any]]:
        sent = Sent(aiorate.KeyedLimiter(lambda chat: aiorate.TokenBucket("1/s", burst=1)))
        sent.send("a", 3)
        sent.send("b")
        return await sent.all()

    assert virtually(main) == [(0, "a"), (0, "b"), (1, "a"), (2, "a")]


WINDOWS = lambda chat: SlidingWindow("1/s"), lambda: SlidingWindow("30/s")


BUCKETS = lambda chat: TokenBucket("1/s", burst=1), lambda: TokenBucket("30/s", burst=1)


def sent_by(bot: Any, busy_first: bool) -> list[tuple[float, int]]:
    """(seconds, chat) of each message of a bot: 100 to chat 0, and one to each of 50 others."""

    async def main() -> list[tuple[float, Any]]:
        sent = Sent(KeyedLimiter(bot[0], shared=bot[1]()))
        busy, others = [0] * 100, list(range(1, 51))
        for chat in busy + others if busy_first else others + busy:
            sent.send(chat)
        return await sent.all()

    return virtually(main)  # type: ignore[no-any-return]


def test_a_bot_exceeds_neither_limit_and_wastes_neither() -> None:
    """At most one message a second to a chat and 30 in all; the 50 others within 2 s, and the busy chat never misses a second."""
    assert [(0, 0), *[(0, chat) for chat in range(1, 30)], *[(1, chat) for chat in range(30, 51)], (1, 0)] == sent_by(WINDOWS, True)[:52]
    for bot, busy_first in itertools.product((WINDOWS, BUCKETS), (True, False)):
        at = sent_by(bot, busy_first)
        instants = [when for when, _ in at]
        gaps = [round(later - when, 5) for when, later in pairwise([when for when, chat in at if chat == 0])]
        assert 150 == len(at)
        assert 30 == max(sum(begin <= when < begin + 1 - 2e-6 for when in instants) for begin in instants)
        assert max(when for when, chat in at if chat != 0) <= 1.7
        assert [1.0] * 98 == gaps[1:]
        assert 1.0 <= gaps[0] <= 1.7


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
async def test_two_limits_of_one_rate_lose_nothing_to_late_wake_ups() -> None:
    """Both limits make up for a late timer, or each would cost a part of the rate."""
    clock = SteppedClock()
    shared = Limiter(TokenBucket("10/s", burst=1), clock=clock)
    keyed = KeyedLimiter[str](lambda key: Limiter(TokenBucket("10/s", burst=1), clock=clock), shared=shared)
    crowd = Crowd(keyed["a"], clock)
    await crowd.queue(range(101))
    while len(crowd.granted) < 101:
        assert clock.next_timer is not None
        clock.set(clock.next_timer + SECOND // 50)
        await turns(3)
    assert crowd.granted[100] <= 10 * SECOND + SECOND // 25


@one_loop
async def test_a_pause_concerns_one_key_or_all_by_the_shared_limit() -> None:
    """Otherwise one flooded key freezes all traffic."""
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
    clock = ManualClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    assert keyed.try_acquire("a")

    assert not keyed.try_acquire("b")
    with pytest.raises(aiorate.WaitTooLong):
        await keyed.acquire("b", max_wait=0.5)
    with pytest.raises(ValueError, match="1"):
        await keyed.acquire("b", 2)
    clock.advance(1)
    assert keyed.try_acquire("b")
    assert not keyed.try_acquire("a")
    clock.advance(1)
    assert keyed.try_acquire("a")


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


@one_loop
async def test_closing_closes_a_shared_limit_it_has_made() -> None:
    """A limiter that was passed in may have other users, and stays open. Requests in line fail, and no key is added."""
    elsewhere = Limiter(TokenBucket("5/s", burst=5))
    for shared in ("5/s", elsewhere):
        keyed = KeyedLimiter[str](lambda key: TokenBucket("1/h", burst=1), shared=shared)
        await keyed.acquire("ann")
        waiting = asyncio.ensure_future(keyed.acquire("ann"))
        await turns(3)
        await keyed.aclose()
        await turns(3)

        assert isinstance(waiting.exception(), LimiterClosed)
        for refused in (lambda: keyed.try_acquire("ann"), lambda: keyed.try_acquire("bob")):  # noqa: B023
            with pytest.raises(LimiterClosed):
                refused()
        assert keyed.shared is not None
        assert (float("inf") if shared == "5/s" else 0) == keyed.shared.delay()


# Eviction.


@one_loop
async def test_a_key_that_owes_nothing_is_evicted() -> None:
    """A full bucket equals a new one; one that is not full is kept. Each evicted key is reported once, whatever on_event evicts."""
    clock, told = ManualClock(), list[Any]()
    keyed = KeyedLimiter[int](
        lambda key: Limiter(TokenBucket("1/s", burst=2), clock=clock),
        on_event=lambda event: told.append((event.kind, event.key, keyed.evict())),
    )
    for key in range(50):
        assert keyed.try_acquire(key)
    assert 0 == keyed.evict()
    clock.advance(1)
    assert 1 == keyed.evict()  # on_event dropped the others

    assert (0, 50) == (len(keyed), len(told))
    assert {("evicted", key) for key in range(50)} == {(kind, key) for kind, key, _ in told}
    assert [True, True, False] == [keyed.try_acquire(7) for _ in range(3)]


@one_loop
async def test_a_key_that_differs_from_a_new_one_is_kept() -> None:
    """Eviction would forget a changed rate, a pause, a debt or a line."""
    clock = ManualClock()
    keyed = KeyedLimiter[str](lambda key: Limiter(TokenBucket("1/s", burst=1), clock=clock))
    keyed["rate"].set_rate("2/s")
    keyed["pause"].pause(1)
    keyed["debt"].charge(5)
    await keyed.acquire("line")
    waiting = asyncio.ensure_future(keyed.acquire("line"))
    await turns(3)

    assert 0 == keyed.evict()
    assert {"rate", "pause", "debt", "line"} == set(keyed)
    clock.advance(60)
    await turns(3)
    assert waiting.done()
    clock.advance(60)
    keyed.evict()
    assert ["rate"] == list(keyed)


@one_loop
async def test_a_held_limiter_stays_the_limiter_of_its_key() -> None:
    """Eviction may drop it from the table, but a key never has two limiters. One that nobody holds is freed at once."""
    keyed = KeyedLimiter[str](lambda key: TokenBucket("1/s", burst=1), shared="100/s")
    held, gone = keyed["a"], ref(keyed["b"])
    keyed.evict()
    assert (keyed["a"], gone()) == (held, None)


@one_loop
async def test_idle_keeps_a_key_for_a_while() -> None:
    """A key that is used now and then is not made again each time."""
    clock = ManualClock()
    made: list[str] = []

    def make(key: str) -> aiorate.Limiter:
        made.append(key)
        return aiorate.Limiter(aiorate.TokenBucket("100/s", burst=1), clock=clock)

    keyed = aiorate.KeyedLimiter(make, idle=10)
    keyed.try_acquire("a")
    for second in range(1, 30):
        clock.advance(1)
        keyed.try_acquire(f"other {second}")
        if second == 5:
            assert "a" in keyed
    assert "a" not in keyed
    keyed.try_acquire("a")
    assert made.count("a") == 2
    for _ in range(40):  # many uses of one key drop the others too
        clock.advance(1)
        assert all(keyed["a"] for _ in range(1_000))
    assert ["a"] == list(keyed)


def test_keys_that_are_used_once_leave_no_memory() -> None:
    """Not one block for each key: only reference counts free them."""

    async def main() -> tuple[int, int]:
        keyed = KeyedLimiter[int](lambda key: TokenBucket("200/s", burst=1), shared=SlidingWindow(10_000_000), idle=86_400, max_keys=100)
        before = 0
        for key in range(3_000):
            if key == 1_000:
                keyed.evict()
                gc.collect()
                gc.disable()
                before = sys.getallocatedblocks()
            assert keyed.try_acquire(key) if key % 2 else await keyed.acquire(key) == 0
            if key % 50 == 0:
                await asyncio.sleep(0.01)  # each key owes for 5 ms
        await asyncio.sleep(0.01)
        keyed.evict()
        found = gc.collect()  # which also frees what the interpreter keeps for later use
        return found, sys.getallocatedblocks() - before

    try:
        found, left = virtually(main)
    finally:
        gc.enable()
    assert found < 100
    assert left < 500  # a key takes a dozen blocks
