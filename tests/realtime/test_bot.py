"""A bot in real time: many messages to one chat and one to each of many others, from real tasks."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

import aiorate

pytestmark = pytest.mark.asyncio

Sent = list[tuple[float, int]]


async def send_all(keyed: aiorate.KeyedLimiter[int], busy: int, others: int, seconds: float) -> Sent:
    """Return when each message was sent and to which chat, until ``seconds``: ``busy`` to chat 0, and one to each of the others."""
    at: Sent = []
    loop = asyncio.get_running_loop()
    begin = loop.time()

    async def send(chat: int) -> None:
        async with keyed(chat):
            at.append((loop.time() - begin, chat))

    tasks = [asyncio.ensure_future(send(chat)) for chat in [0] * busy + list(range(1, others + 1))]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return at


async def test_no_message_is_sent_before_its_time() -> None:
    """On any machine at most 300 in a second, and 20 to any chat, none of which comes too soon."""
    keyed: aiorate.KeyedLimiter[int] = aiorate.KeyedLimiter(
        lambda chat: aiorate.TokenBucket("20/s", burst=1), shared=aiorate.TokenBucket("300/s", burst=1), idle=0
    )

    at = await send_all(keyed, busy=10, others=50, seconds=60)

    # At most 20 ms of lateness is made up for, and the first grant is not before the beginning.
    assert 60 == len(at)
    assert all(when >= place / 300 - 0.021 for place, (when, _) in enumerate(at))
    assert all(when >= place / 20 - 0.021 for place, when in enumerate(when for when, chat in at if chat == 0))
    assert keyed.shared is not None
    assert (60, 0) == (keyed.shared.statistics().granted, keyed.shared.statistics().waiting)


@pytest.mark.slow
async def test_a_busy_chat_holds_up_no_other() -> None:
    """With 30/s in all and 1/s to each chat, one gets 100 messages, and the 50 to others are sent within 2 s.

    The tolerance of 50 ms is for a loop that runs a task late, and the next one of that chat in time.
    """
    keyed: aiorate.KeyedLimiter[int] = aiorate.KeyedLimiter(lambda chat: aiorate.SlidingWindow("1/s"), shared=aiorate.SlidingWindow("30/s"))

    at = await send_all(keyed, busy=100, others=50, seconds=4.5)

    busy = [when for when, chat in at if chat == 0]
    assert 50 == sum(chat != 0 and when < 2 for when, chat in at)
    assert 5 == len(busy)
    assert all(later - when > 0.95 for when, later in pairwise(busy))
    assert max(sum(begin <= when < begin + 0.95 for when, _ in at) for begin, _ in at) <= 30
    assert keyed.shared is not None
    assert (55, 0) == (keyed.shared.statistics().granted, keyed.shared.statistics().waiting)
