"""Which loop runs here: loops one after the other, loops that are freed, or moved to by a fork."""

from __future__ import annotations

import asyncio
import gc
import weakref

from helpers.driving import descriptors, turns
from helpers.platforms import needs_kernel_timers

import aiorate


def test_a_limiter_keeps_no_closed_loop() -> None:
    """Nor its own state for that loop, once another limiter or nobody uses it."""
    limiter = aiorate.Limiter("1000/s")
    native = asyncio.new_event_loop()
    native.run_until_complete(limiter.acquire())
    native.close()
    gone, freed = weakref.ref(native), weakref.ref(limiter)

    limiter.statistics()
    asyncio.run(limiter.acquire())
    del native
    gc.collect()
    assert gone() is None

    del limiter
    gc.collect()
    assert freed() is None


@needs_kernel_timers
def test_a_loop_closed_with_a_timer_set_leaves_no_descriptor() -> None:
    """The timer knows its limiter, which knows the loop: nothing else may hold them, or they hold each other for ever."""

    async def wait_in_vain() -> None:
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1), precise=True)
        await limiter.acquire()
        tasks.append(asyncio.ensure_future(limiter.acquire()))
        await turns(3)
        assert descriptors() == 1

    tasks: list[asyncio.Task[float]] = []
    native = asyncio.new_event_loop()
    native.set_exception_handler(lambda _, context: None)  # the program left a task pending
    native.run_until_complete(wait_in_vain())
    native.close()
    gone = weakref.ref(native)

    del native
    tasks.clear()

    assert descriptors() == 0
    assert gone() is None
