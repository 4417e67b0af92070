"""Kernel timers: shared, closed when no timer is set, and without effect where the system has none."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from helpers.driving import SECOND, alive, all_closed, descriptors, made_to_wait, turns, until
from helpers.platforms import needs_kernel_timers

import aiorate
from aiorate._loops import kernel_timer
from aiorate._loops.kernel_timer import KernelTimers

pytestmark = pytest.mark.asyncio


def paced(rate: str = "200/s", **options: Any) -> aiorate.Limiter:
    """A limiter that makes the second caller wait."""
    return aiorate.Limiter(aiorate.TokenBucket(rate, burst=1), precise=True, **options)


def timers() -> KernelTimers:
    return KernelTimers(asyncio.get_running_loop())


STRATEGIES: list[Callable[[], Any]] = [lambda: "7/s", lambda: aiorate.TokenBucket("7/s", burst=2)]


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_in_virtual_time_it_changes_nothing() -> None:
    """A loop that jumps cannot wait for the kernel."""
    loop = asyncio.get_running_loop()
    for make in STRATEGIES:
        waits: list[list[float]] = []
        for exact in (False, True):
            limiter = aiorate.Limiter(make(), precise=exact)
            began = loop.time()
            waits.append([])
            for _ in range(20):
                await limiter.acquire()
                waits[-1].append(round(loop.time() - began, 9))

        assert waits[0] == waits[1]
    assert descriptors() == 0


async def test_without_kernel_timers_the_loops_timers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it changes nothing: not on macOS or Windows, and not where the kernel refuses."""
    for error in (OSError(24, "too many open files"), AttributeError("timerfd_create"), NotImplementedError()):

        def refuse(error: Exception = error) -> int:
            raise error

        monkeypatch.setattr(kernel_timer, "create", refuse)
        limiter = paced()
        for _ in range(3):
            await limiter.acquire()

        assert (limiter.statistics().granted, descriptors()) == (3, 0), error


@needs_kernel_timers
async def test_when_no_descriptor_is_left_the_loops_timers_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor is opened again after an idle time, when the process may have reached its limit of descriptors."""

    def refuse() -> int:
        raise OSError(24, "too many open files")

    limiter = paced()
    await made_to_wait(limiter)
    await all_closed()
    monkeypatch.setattr(kernel_timer, "create", refuse)

    await made_to_wait(limiter)

    assert descriptors() == 0


@needs_kernel_timers
async def test_several_limiters_share_one_descriptor() -> None:
    """Ten thousand limiters must not need ten thousand descriptors; and it is closed soon after the last wait."""
    limiters = [paced("1/h") for _ in range(5)]
    for limiter in limiters:
        assert limiter.try_acquire()

    tasks = [asyncio.ensure_future(limiter.acquire()) for limiter in limiters for _ in range(3)]
    await turns(3)
    open_while_waiting = descriptors()
    for limiter in limiters:
        limiter.set_rate("1000/s")
    await asyncio.gather(*tasks)

    assert open_while_waiting == 1
    await all_closed()


@needs_kernel_timers
async def test_timers_fire_in_order_and_cancelled_ones_do_not() -> None:
    """One descriptor serves all timers. Each is absolute, so that nobody is woken in vain."""
    fired: list[tuple[int, bool]] = []
    base = time.monotonic_ns() + 5_000_000

    def note(number: int) -> None:
        fired.append((number, time.monotonic_ns() >= base + number))

    kernel = timers()  # one: it goes with the last limiter that uses it
    handles = [kernel.add(base + number, partial(note, number)) for number in (3, 1, 4, -SECOND, 2, 5)]
    for handle in (handles[0], handles[1], handles[1]):
        handle.cancel()
    await until(lambda: (5, True) in fired)

    assert fired == [(number, True) for number in (-SECOND, 2, 4, 5)]
    for handle in handles:
        handle.cancel()


@needs_kernel_timers
async def test_a_callback_that_fails_stops_no_other() -> None:
    """The descriptor is shared, but an error of one limiter concerns no other. The loop's exception handler is told."""
    loop = asyncio.get_running_loop()
    told: list[BaseException] = []
    kernel = timers()
    await all_closed()  # so that no other timer has them looked at meanwhile
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    fired: list[str] = []
    instant = time.monotonic_ns()

    def fail() -> None:
        raise ZeroDivisionError

    kernel.add(instant, fail)
    kernel.add(instant, lambda: fired.append("same"))
    kernel.add(instant + 3_000_000, lambda: fired.append("later"))
    await until(lambda: "later" in fired)

    assert fired == ["same", "later"]
    assert [ZeroDivisionError] == [type(error) for error in told]


async def test_an_instant_too_far_for_the_kernel_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut to 64 bits it could be any instant, also one in the past, and the loop would spin for ever."""
    fired: list[int] = []
    monkeypatch.setattr(os, "read", lambda fd, count: fired.append(fd))  # called when a descriptor has become readable
    for period in (10**300, 2**64, 10**10):
        limiter = aiorate.Limiter(aiorate.TokenBucket(aiorate.Rate(1, per=period), burst=1), precise=True)
        assert limiter.try_acquire()

        task = asyncio.ensure_future(limiter.acquire())
        await turns(3)
        await asyncio.sleep(0.01)

        assert fired == [], period
        assert (limiter.statistics().next_at or 0) > period / 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@needs_kernel_timers
async def test_cancelled_timers_do_not_pile_up_behind_the_first() -> None:
    """A pause that is extended two thousand times sets as many timers, and cancels all except one."""
    limiter, other = paced("1/day"), paced("1/h")
    waiting = [asyncio.ensure_future(each.acquire()) for each in (limiter, limiter, other, other)]
    await turns(2)

    for seconds in range(2_000):
        limiter.pause(seconds + 1)

    kind = type(timers().add(1, turns))
    assert 1 <= alive(kind) < 200
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await all_closed()
