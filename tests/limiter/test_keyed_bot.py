"""A bot that may send 30 messages a second in all and one a second to each chat, with real tasks in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

import aiorate
from aiorate.testing import VirtualLoop

WINDOWS = lambda chat: aiorate.SlidingWindow("1/s"), lambda: aiorate.SlidingWindow("30/s")
BUCKETS = lambda chat: aiorate.TokenBucket("1/s", burst=1), lambda: aiorate.TokenBucket("30/s", burst=1)
Bot = tuple[Callable[[object], aiorate.Scheduler], Callable[[], aiorate.Scheduler]]


def sent(bot: Bot, busy_first: bool) -> list[tuple[float, int]]:
    """(seconds, chat) of each message: 100 to chat 0, and one to each of 50 others."""
    at = []

    async def main() -> None:
        keyed = aiorate.KeyedLimiter(bot[0], shared=bot[1]())

        async def send(chat: int) -> None:
            async with keyed(chat):
                at.append((round(asyncio.get_running_loop().time(), 6), chat))

        busy, others = [0] * 100, list(range(1, 51))
        await asyncio.gather(*map(send, busy + others if busy_first else others + busy))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    return at


def test_windows_serve_the_busy_chat_beside_all_others() -> None:
    """30 messages in each whole second as long as there are enough chats, and then one a second to the busy chat."""
    assert [(0, 0), *[(0, chat) for chat in range(1, 30)], *[(1, chat) for chat in range(30, 51)], (1, 0)] == sent(WINDOWS, True)[:52]
    assert [*[(0, chat) for chat in range(1, 31)], *[(1, chat) for chat in range(31, 51)], (1, 0)] == sent(WINDOWS, False)[:51]


def test_buckets_serve_each_chat_in_order_of_its_due_time() -> None:
    """One message every 1/30 s: the busy chat's second message goes after all that were due before it."""
    slots = [round(slot / 30, 6) for slot in range(52)]

    assert list(zip(slots, [*range(51), 0], strict=True)) == sent(BUCKETS, True)[:52]
    assert list(zip(slots[:51], [*range(1, 51), 0], strict=True)) == sent(BUCKETS, False)[:51]


@pytest.mark.parametrize("busy_first", [True, False])
@pytest.mark.parametrize("bot", [WINDOWS, BUCKETS], ids=["windows", "buckets"])
def test_neither_limit_is_exceeded_and_neither_is_wasted(bot: Bot, busy_first: bool) -> None:
    """At most one message a second to a chat and 30 in all; the 50 others within 2 s, and the busy chat never misses a second."""
    at = sent(bot, busy_first)
    instants = [when for when, _ in at]
    busy = [when for when, chat in at if chat == 0]

    assert 150 == len(at)
    assert 30 == max(sum(begin <= when < begin + 1 - 2e-6 for when in instants) for begin in instants)
    assert max(when for when, chat in at if chat != 0) <= 1.7
    gaps = [round(later - when, 5) for when, later in pairwise(busy)]
    assert [1.0] * 98 == gaps[1:]
    assert 1.0 <= gaps[0] <= 1.7
