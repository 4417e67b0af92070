"""Events: pauses by a server, and permits that are skipped because the loop was late; their log records; callbacks that fail."""

from __future__ import annotations

import asyncio
import logging

import pytest
from helpers.driving import SECOND, SteppedClock, one_loop, turns
from helpers.strategies import EACH

from aiorate import BurstCompensation, Event, Limiter
from aiorate.http import Feedback

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


async def test_an_event_is_one_line() -> None:
    """str() of an event is the text that is logged."""
    lines = {
        Event("paused", "api", "chat 5", 2.5, source="GitHub"): "limiter 'api', key 'chat 5': paused for 2.5 s by the server (GitHub)",
        Event("clamped", None, "tokens", permits=9): "limiter, key 'tokens': estimate lowered to 9, the most that can be granted at once",
        Event("evicted", key=("a", 1)): "limiter, key ('a', 1): evicted",
    }

    assert {event: str(event) for event in lines} == lines


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


async def test_on_event_may_change_the_limiter(clock: SteppedClock) -> None:
    """reset(), charge() and refund() in the callback, while the line is being served: every request is still granted."""

    def changed(event: Event) -> None:
        limiter.reset()
        limiter.try_acquire()
        limiter.charge(1)
        limiter.refund(1)
        limiter.statistics()

    for name in ("TokenPool", "TokenBucket", "TokenBucket-paced", "BurstCompensation-strict", "SmoothBursty", "AllOf"):
        limiter = Limiter(EACH[name](), clock=clock, on_event=changed)

        for _ in range(3):
            await late(limiter, clock, 3.02)

        task = asyncio.ensure_future(limiter.acquire())
        await clock.run(60)
        assert task.done(), name
        assert (limiter.statistics().waiting, clock.timers) == (0, 0), name


async def test_a_callback_must_be_a_function() -> None:
    for wrong in (5, "print", [print]):
        with pytest.raises(TypeError, match="on_event"):
            Limiter("1/s", on_event=wrong)  # type: ignore[arg-type]
