"""Limits in a tree: what was once wrong in it."""

from __future__ import annotations

import asyncio
import sys
import time
from types import FrameType
from typing import Any

import pytest
from helpers.driving import LONG, one_loop

from aiorate import KeyedLimiter, Limiter, SlidingWindow, TokenBucket
from aiorate._tree.deciding import Keeper
from aiorate._tree.tree import Tree
from aiorate.testing import VirtualLoop


@pytest.mark.parametrize("place", [Tree.resume, Keeper.put])
def test_ctrl_c_spends_nothing_wherever_it_comes(place: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """The permit and the place come back, also when the thread goes on already, or has not handed its request over yet."""
    limiter = Limiter(TokenBucket("100/s", burst=1), scope="process", max_concurrency=1)
    with limiter:
        pass

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is place.__code__:
            sys.settrace(None)
            raise KeyboardInterrupt

    def enter() -> None:
        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            limiter._enter_blocking(1)
        finally:
            sys.settrace(before)

    with pytest.raises(KeyboardInterrupt):
        enter()
    deadline = time.monotonic() + LONG
    while "0 of 1 places taken" not in repr(limiter):
        assert time.monotonic() < deadline, repr(limiter)
        time.sleep(0.001)
    with limiter:
        pass

    assert 2 == limiter.statistics().granted
    assert "Traceback" not in capfd.readouterr().err


def test_a_key_that_was_never_asked_follows_the_clock_of_its_loop() -> None:
    """It was looked at for eviction before its first request."""

    async def main() -> list[float]:
        root = Limiter("100/s")
        keys = KeyedLimiter[str](lambda key: TokenBucket("10/s", burst=5), shared=root)
        await root.acquire()
        first, second = keys["a"], keys["b"]
        return [await first.acquire(5), await second.acquire(), await first.acquire()]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert max(runner.run(main())) < 1


@one_loop
async def test_grants_after_a_turn_of_the_loop_are_counted_once_in_each_limit() -> None:
    """Of a shared limit they were counted when their tasks went on, and not when they were granted."""
    shared = Limiter(TokenBucket("1000/s", burst=1000))
    keys = KeyedLimiter[str](lambda key: TokenBucket("1000/s", burst=1000), shared=shared)
    for _ in range(3):
        time.sleep(0.015)  # noqa: ASYNC251 - the loop stands still
        await keys.acquire("a")

    assert [0, 0, 0] == [shared._node.resuming, keys["a"]._node.resuming, shared._node.tree.resuming]


@one_loop
async def test_a_request_that_became_impossible_above_is_counted() -> None:
    root = Limiter(SlidingWindow("10/s"))
    keys = KeyedLimiter[str](lambda key: TokenBucket("1/s", burst=8, initial=0), shared=root)
    task = asyncio.create_task(keys["a"].acquire(5))
    await asyncio.sleep(0)
    root.set_rate("2/s")

    assert 1 == keys["a"].statistics().waiting
    task.cancel()
