"""Events, their log records, percentiles of waits, and `statistics().available`."""

from __future__ import annotations

import asyncio
import logging
import random
import subprocess
import sys
from copy import deepcopy
from typing import Any

import pytest
from helpers.driving import SECOND, SteppedClock, one_loop, turns
from helpers.strategies import EACH

import aiorate
from aiorate import BurstCompensation, Event, Limiter, SmoothBursty, TokenBucket
from aiorate.http import Feedback
from aiorate.waiting.counters import Counters

pytestmark = one_loop


@pytest.fixture
def events() -> list[Event]:
    return []


async def late(limiter: Limiter, clock: SteppedClock, seconds: float) -> None:
    """Let two tasks wait, and fire the timer of the first `seconds` too late."""
    while limiter.try_acquire():
        pass
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(2)]
    await turns(3)
    assert clock.next_timer is not None
    clock.set(clock.next_timer + round(seconds * SECOND))
    await turns(12)
    await clock.run(60)
    await asyncio.gather(*tasks)


async def test_a_pause_by_a_server_is_one_event(clock: SteppedClock, events: list[Event], caplog: pytest.LogCaptureFixture) -> None:
    """A WARNING of one line with name, length and reason. A pause that ends before another one does is not reported."""
    limiter = Limiter("10/s", clock=clock, name="api", on_event=events.append)

    for seconds in (5.0, 4.0, 5.0, 5.5):
        limiter.observe(Feedback(429, pause=seconds, source="Retry-After"))
    limiter.pause(10)  # the program's own pause is not an event

    assert events == [Event("paused", "api", seconds=5.0, source="Retry-After")]
    assert [(record.levelname, record.name, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "aiorate", "limiter 'api': paused for 5 s by the server (Retry-After)")
    ]


async def test_each_late_wake_up_is_one_event_of_skipped_permits(
    clock: SteppedClock, events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """INFO, since a late loop is not the server's fault; it explains a rate that was not reached."""
    caplog.set_level(logging.INFO, "aiorate")
    limiter = Limiter(BurstCompensation("10/s"), clock=clock, on_event=events.append)

    await late(limiter, clock, 1.02)
    await late(limiter, clock, 0.52)

    assert events == [Event("skipped", permits=10), Event("skipped", permits=5)]
    assert limiter.statistics().skipped == 15
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "limiter: 10 permits skipped because the event loop was late"),
        ("INFO", "limiter: 5 permits skipped because the event loop was late"),
    ]


async def test_skipped_slots_are_an_event(clock: SteppedClock, events: list[Event]) -> None:
    """A slow body of `async for slot in limiter.slots()` causes one."""
    limiter = Limiter(BurstCompensation("10/s"), clock=clock, on_event=events.append)
    slots = limiter.slots()
    await anext(slots)

    clock.advance(1.12)
    slot = await anext(slots)
    await turns(2)
    await slots.aclose()  # type: ignore[attr-defined]

    assert (slot.index, events) == (11, [Event("skipped", permits=10)])


async def test_a_log_record_has_a_field_for_each_part(clock: SteppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """Logs can be searched without parsing. The names begin with aiorate_, so that they collide with no other library's."""
    Limiter("10/s", clock=clock, name="api").observe(Feedback(429, pause=5.0, source="Retry-After"))

    (record,) = (each for each in caplog.records if each.name == "aiorate")  # asyncio may log what other tests left
    extra = {key: value for key, value in vars(record).items() if key.startswith("aiorate_")}
    assert extra == {
        "aiorate_kind": "paused",
        "aiorate_limiter": "api",
        "aiorate_key": None,
        "aiorate_seconds": 5.0,
        "aiorate_permits": None,
        "aiorate_source": "Retry-After",
    }


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Event("paused", "api", "chat 5", 2.5, source="GitHub"), "limiter 'api', key 'chat 5': paused for 2.5 s by the server (GitHub)"),
        (Event("skipped", permits=3), "limiter: 3 permits skipped because the event loop was late"),
        (Event("clamped", None, "tokens", permits=9), "limiter, key 'tokens': estimate lowered to 9, the most that can be granted at once"),
        (Event("evicted", key=("a", 1)), "limiter, key ('a', 1): evicted"),
    ],
)
async def test_an_event_is_one_line(event: Event, line: str) -> None:
    """str() of an event is the text that is logged."""
    assert str(event) == line


async def test_an_error_in_on_event_is_logged_and_harmless(clock: SteppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """The callback runs after the limiter has done its work."""

    def fail(event: Event) -> None:
        raise ZeroDivisionError

    limiter = Limiter(BurstCompensation("10/s"), clock=clock, on_event=fail)

    await late(limiter, clock, 1.02)
    limiter.observe(Feedback(429, pause=5.0))

    assert limiter.delay() == 5.0
    failed = [record for record in caplog.records if record.exc_info and record.name == "aiorate"]
    assert [record.getMessage() for record in failed] == [
        "on_event failed for limiter: 10 permits skipped because the event loop was late",
        "on_event failed for limiter: paused for 5 s by the server",
    ]


@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "TokenBucket-paced", "BurstCompensation-strict", "SmoothBursty", "AllOf"])
async def test_on_event_may_change_the_limiter(name: str, clock: SteppedClock) -> None:
    """reset(), charge() and refund() in the callback, while the line is being served: every request is still granted."""

    def changed(event: Event) -> None:
        limiter.reset()
        limiter.try_acquire()
        limiter.charge(1)
        limiter.refund(1)
        limiter.statistics()

    limiter = Limiter(EACH[name](), clock=clock, on_event=changed)

    for _ in range(3):
        await late(limiter, clock, 3.02)

    task = asyncio.ensure_future(limiter.acquire())
    await clock.run(60)
    assert task.done()
    assert (limiter.statistics().waiting, clock.timers) == (0, 0)


async def test_without_events_their_module_is_not_imported() -> None:
    """A limiter that is never paused and never late does not import logging either."""
    program = """
import asyncio, sys
import aiorate
async def main():
    limiter = aiorate.Limiter("1000/s", max_concurrency=2)
    for _ in range(5):
        async with limiter:
            pass
known = set(sys.modules)
import logging
assert "aiorate.events" not in known
"""
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("wrong", [5, "print", [print]])
async def test_a_callback_must_be_a_function(wrong: Any) -> None:
    """The error comes from the constructor, not from the first event."""
    with pytest.raises(TypeError, match="on_event"):
        Limiter("1/s", on_event=wrong)


# Percentiles.


@pytest.mark.parametrize("spread", ["even", "heavy", "equal", "tiny"])
async def test_percentiles_are_at_most_a_sixteenth_too_long(spread: str) -> None:
    """They are never too short. They are by nearest rank, for waits from a nanosecond to a day."""
    dice = random.Random(spread)
    draw = {
        "even": lambda: dice.randint(1, 10 * SECOND),
        "heavy": lambda: int(SECOND // 1000 * dice.paretovariate(0.5)) + 1,
        "equal": lambda: 123_456_789,
        "tiny": lambda: dice.randint(1, 40),
    }[spread]
    for count in (1, 2, 9, 100, 1234):
        counters = Counters()
        waits = sorted(draw() for _ in range(count))
        for waited in waits:
            counters.note(waited)
        for percent in (1, 50, 90, 99, 100):
            exact = waits[-(-count * percent // 100) - 1]
            assert exact <= counters.percentile(percent) <= min(exact * 17 / 16, waits[-1])
        assert (counters.waited_total, counters.waited_max) == (sum(waits), waits[-1])


async def test_every_length_of_wait_is_within_a_sixteenth() -> None:
    """Tested at the edges of the steps, where rounding shows."""
    lengths = [*range(1, 3000), *(2**power * step // 16 + off for power in range(12, 62) for step in range(16, 32) for off in (-1, 0, 1))]
    for length in lengths:
        counters = Counters()
        counters.note(length)
        counters.note(2**63)
        assert length <= counters.percentile(50) <= length * 17 / 16


async def test_the_memory_of_percentiles_is_bounded() -> None:
    """A limiter may run for months: a hundred thousand different waits take fewer than a thousand counts."""
    counters = Counters()
    dice = random.Random(1)
    for _ in range(100_000):
        counters.note(1 + int(10 ** (dice.random() * 18)))

    assert len(counters.waits) < 1000
    assert Counters().waits is Counters().waits  # one empty table, shared by all limiters without a wait


async def test_percentiles_count_only_requests_that_waited(clock: SteppedClock) -> None:
    """Ten are granted at once and ten wait from 0.1 to 1 s: the median is that of the latter. reset() forgets them."""
    limiter = Limiter(TokenBucket("10/s", burst=10), clock=clock)
    before = limiter.statistics()
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(20)]
    await clock.run(5)
    counts = limiter.statistics()

    assert (before.waited_p50, before.waited_p90, before.waited_p99) == (0.0, 0.0, 0.0)
    assert (counts.waited_p50, counts.waited_p90, counts.waited_p99) == (
        pytest.approx(0.5, rel=1 / 16),
        pytest.approx(0.9, rel=1 / 16),
        1.0,
    )
    assert counts.waited_total == sum(task.result() for task in tasks) == 5.5
    limiter.reset()
    assert limiter.statistics().waited_p99 == 0.0


# Available permits.


MORE = {
    "SmoothBursty-fraction": lambda: SmoothBursty("3/s", max_stored=2.5),
    "BurstCompensation-mild": lambda: BurstCompensation("7/s", strictness=0.1),
    "BurstCompensation-plain": lambda: BurstCompensation("7/s", strictness=0),
}


@pytest.mark.parametrize("name", [*EACH, *MORE])
async def test_available_is_what_a_newcomer_gets(name: str, clock: SteppedClock) -> None:
    """Exactly as many as try_acquire() would grant one after the other, after any history."""
    for seed in range(12):
        dice, scheduler = random.Random(seed), {**EACH, **MORE}[name]()
        clock.set(0)
        limiter = Limiter(scheduler, clock=clock)
        limiter.delay()
        for _ in range(25):
            clock.advance(dice.choice((0, 0, 1e-9, 0.05, 1 / 7, 1 / 3, 1, 5)))
            does = dice.random()
            if does < 0.7:
                limiter.try_acquire(min(dice.choice((1, 1, 2, 3)), scheduler.max_permits or 3))
            elif does < 0.8:
                limiter.charge(dice.randint(1, 4))
            elif does < 0.9:
                limiter.refund(dice.randint(1, 4))
            available = limiter.statistics().available
            copy, granted = deepcopy(limiter.scheduler), 0
            while granted <= available and copy.take(1, clock.now()) <= clock.now():
                granted += 1
            assert available == granted


async def test_nothing_is_available_if_a_newcomer_would_wait(clock: SteppedClock) -> None:
    """It would wait behind a line, while the limiter is paused or stopped, and once it is closed."""
    limiter = Limiter(TokenBucket("1/s", burst=5), clock=clock)

    def available() -> int:
        return limiter.statistics().available

    assert limiter.try_acquire(3)
    assert available() == 2
    task = asyncio.ensure_future(limiter.acquire(4))
    await turns(2)
    assert available() == 0
    await clock.run(7)
    assert (task.done(), available()) == (True, 5)
    limiter.pause(1)
    assert available() == 0
    clock.advance(1)
    assert available() == 5
    limiter.apply("1,1,stop")
    assert available() == 0
    limiter.apply("1,1,start")
    assert available() == 5
    await limiter.aclose()
    assert available() == 0
    assert isinstance(limiter.statistics(), aiorate.Statistics)
