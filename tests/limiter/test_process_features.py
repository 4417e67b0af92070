"""HTTP hooks, the decorator, slots and events of a process-wide limiter, in several loops."""

from __future__ import annotations

from threading import Event, current_thread
from time import monotonic_ns
from typing import Any

import httpx2
from helpers.driving import LONG, SECOND
from helpers.threads import LoopThread, call_in_thread, in_thread, waiting

import aiorate
from aiorate.http import hooks, read_feedback
from aiorate.testing import ManualClock


def test_requests_of_two_loops_are_limited_together() -> None:
    """HTTP hooks take a process-wide limiter like any other."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", clock=clock)

    async def get() -> int:
        transport = httpx2.MockTransport(lambda request: httpx2.Response(200))
        async with httpx2.AsyncClient(transport=transport, event_hooks=hooks(limiter)) as client:
            return (await client.get("http://a.test")).status_code

    with LoopThread() as first, LoopThread() as second:
        assert 200 == first.start(get).result(LONG)
        other = second.start(get)
        waiting(limiter, 1)
        clock.advance(0.1)
        assert 200 == other.result(LONG)


def test_a_decorated_function_is_limited_in_every_loop() -> None:
    """The decorated function may be called in any loop."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", clock=clock)

    @limiter
    async def job() -> int:
        return clock.now()

    with LoopThread() as first, LoopThread() as second:
        asked = [first.start(job), second.start(job), first.start(job)]
        waiting(limiter, 2)
        clock.advance(0.1)
        assert asked[1].result(LONG) == SECOND // 10
        clock.advance(0.1)
        assert [0, 1, 2] == [future.result(LONG) * 10 // SECOND for future in asked]


def test_slots_of_two_loops_share_the_schedule() -> None:
    """Each loop has its own index, and the instants alternate."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", clock=clock)

    async def three() -> list[tuple[int, float]]:
        seen = []
        async for slot in limiter.slots():
            seen.append((slot.index, slot.scheduled_at))
            if len(seen) == 3:
                return seen
        raise AssertionError

    with LoopThread() as first, LoopThread() as second:
        one = first.start(three)
        two = second.start(three)
        for _ in range(5):
            waiting(limiter, 1 if one.done() else 2)
            first.turn()
            second.turn()
            clock.advance(0.1)
            first.turn()
            second.turn()

        assert [(0, 0.0), (1, 0.1), (2, 0.3)] == one.result(LONG)
        assert [(0, 0.2), (1, 0.4), (2, 0.5)] == two.result(LONG)


def test_missed_slots_are_skipped_and_reported() -> None:
    """There is a gap in the index, as in one loop, and an event whose callback may call the limiter."""
    clock = ManualClock()
    events: list[tuple[Any, int]] = []
    limiter = aiorate.Limiter(
        aiorate.TokenBucket("10/s", burst=1),
        scope="process",
        clock=clock,
        on_event=lambda event: events.append((event.kind, limiter.statistics().skipped)),
    )

    async def main() -> list[int]:
        seen = []
        async for slot in limiter.slots():
            seen.append(slot.index)
            if len(seen) == 3:
                return seen
            clock.set(clock.now() + SECOND)
        raise AssertionError

    with LoopThread() as thread:
        seen = thread.start(main).result(LONG)

    assert seen == sorted(set(seen))
    assert seen[1] > 1
    assert events
    assert events[0][0] == "skipped"


def test_on_event_may_call_the_limiter() -> None:
    """It runs after the decision, in the thread that decided."""
    told: list[tuple[str, float]] = []
    limiter = aiorate.Limiter(
        "10/s", scope="process", clock=ManualClock(), on_event=lambda event: told.append((event.kind, limiter.delay()))
    )
    call_in_thread(lambda: limiter.observe(read_feedback(429, {"Retry-After": "7"})))

    assert [("paused", 7.0)] == told


class Leaping:
    """A clock without timers that can leap ahead: the timekeeper's thread waits in real time and then reads it."""

    leapt = 0

    def now(self) -> int:
        return monotonic_ns() + self.leapt


def test_on_event_must_not_block_the_timekeeper() -> None:
    """The timekeeper's thread reports a late grant; acquire_blocking() in the callback would block it, and every waiter with it.

    Now and then, another thread is as fast, and makes the call.
    """
    told: list[BaseException] = []

    def report_late_grant() -> None:
        reported = Event()
        clock = Leaping()

        def on_event(event: aiorate.Event) -> None:
            if current_thread().name.startswith("aiorate"):
                limiter.charge(1000)  # so that it would have to wait
                try:
                    limiter.acquire_blocking()
                except RuntimeError as error:
                    told.append(error)
            reported.set()

        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", on_event=on_event, clock=clock)
        limiter.charge(3)
        late = in_thread(limiter.acquire_blocking)
        waiting(limiter, 1)
        clock.leapt = 60 * SECOND
        late.result(LONG)
        assert reported.wait(LONG)

    while not told:
        report_late_grant()

    assert "would deadlock" in str(told[0])
