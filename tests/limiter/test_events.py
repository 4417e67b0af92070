"""Events, their log records, callbacks that fail, statistics, percentiles of waits and repr()."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from helpers.driving import SECOND, SteppedClock, crowd_of, one_loop, turns
from helpers.strategies import EACH

from aiorate import BurstCompensation, Event, Limiter, Rate, Statistics, TokenBucket
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
    (record,) = (each for each in caplog.records if each.name == "aiorate")  # asyncio may log what other tests left
    assert (record.levelname, record.getMessage()) == ("WARNING", "limiter 'api': paused for 5 s by the server (Retry-After)")
    fields = {key.removeprefix("aiorate_"): value for key, value in vars(record).items() if key.startswith("aiorate_")}
    assert fields == {"kind": "paused", "limiter": "api", "key": None, "seconds": 5.0, "permits": None, "source": "Retry-After"}


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


async def test_an_error_in_on_event_is_logged_and_harmless(clock: SteppedClock, caplog: pytest.LogCaptureFixture) -> None:
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


# Statistics.


async def test_statistics_after_one_of_everything() -> None:
    crowd = crowd_of("10/s", max_waiting=3)
    await crowd.queue("ABCD")
    assert not crowd.limiter.try_acquire()
    assert crowd.limiter.statistics().next_at == 0.1
    crowd.tasks["C"].cancel()
    await crowd.clock.run(0.1)
    crowd.limiter.refund(1)  # lets D go
    await turns(5)
    crowd.limiter.pause(2)

    seen = crowd.limiter.statistics()

    counts = {"granted": 2, "refused": 1, "cancelled": 1, "refunded": 1, "waiting": 0, "charged": 0, "available": 0, "skipped": 0}
    waits = {"waited_total": 0.2, "waited_max": 0.1, "waited_p50": 0.1, "waited_p90": 0.1, "waited_p99": 0.1}
    assert seen == Statistics(**counts, **waits, rate=Rate.parse("10/s"), paused_until=2.1, next_at=None, state="local")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        seen.granted = 0  # type: ignore[misc]


async def test_repr_shows_the_state() -> None:
    crowd = crowd_of("10/s", name="api")
    await crowd.queue("AB")

    assert repr(crowd.limiter).startswith("<Limiter 'api' TokenPool('10/s'")
    assert "1 waiting" in repr(crowd.limiter)
    crowd.limiter.pause(1)
    assert "paused" in repr(crowd.limiter)
    crowd.limiter.apply("10,1,stop")
    assert "stopped" in repr(crowd.limiter)
    await crowd.limiter.aclose()
    assert "closed" in repr(crowd.limiter)
    await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)


# Percentiles.


async def waits_of(lengths: list[int]) -> tuple[list[int], Limiter]:
    clock = SteppedClock()
    limiter = Limiter(TokenBucket("1000000000/s", burst=10**18, initial=0), clock=clock)
    assert limiter.delay() > 0  # the first reading of the clock starts the schedule
    waited = []
    for length in lengths:
        clock.advance(1)  # timers are kept apart
        assert limiter.try_acquire(limiter.statistics().available)
        task = asyncio.ensure_future(limiter.acquire(length))
        while not task.done():
            await turns(3)
            clock.fire()
        waited.append(round(task.result() * SECOND))
    return sorted(waited), limiter


async def test_percentiles_are_at_most_a_sixteenth_too_long() -> None:
    """And never too short. They are by nearest rank, for waits from a nanosecond to days; reset() forgets them."""
    dice = random.Random(4)
    draws = {
        "even": lambda: dice.randint(1, 10 * SECOND),
        "heavy": lambda: int(SECOND // 1000 * dice.paretovariate(0.5)) + 1,
        "equal": lambda: 123_456_789,
        "tiny": lambda: dice.randint(1, 40),
        "edges of steps": lambda: (dice.randint(16, 31) << dice.randint(0, 44)) + dice.randint(-1, 1),
    }
    for spread, draw in draws.items():
        for count in (1, 2, 9, 210):
            waits, limiter = await waits_of([draw() for _ in range(count)])
            seen = limiter.statistics()
            for percent, told in ((50, seen.waited_p50), (90, seen.waited_p90), (99, seen.waited_p99)):
                exact = waits[-(-count * percent // 100) - 1]
                assert exact <= round(told * SECOND) <= min(exact * 17 / 16, waits[-1]), (spread, count, percent)
            assert round(seen.waited_max * SECOND) == waits[-1]
            assert round(seen.waited_total * SECOND) == sum(waits)
            limiter.reset()
            assert limiter.statistics().waited_p99 == 0.0


async def test_nothing_is_available_if_a_newcomer_would_wait(clock: SteppedClock) -> None:
    """It would wait behind a line, while the limiter is paused or stopped, and once it is closed."""
    limiter = Limiter(TokenBucket("1/s", burst=5), clock=clock)
    seen = []

    def look(*_: object) -> None:
        seen.append(limiter.statistics().available)

    look(limiter.try_acquire(3))
    task = asyncio.ensure_future(limiter.acquire(4))
    look(await turns(2))
    look(await clock.run(7))
    look(limiter.pause(1))
    look(clock.advance(1))
    look(limiter.apply("1,1,stop"))
    look(limiter.apply("1,1,start"))
    look(await limiter.aclose())

    assert task.done()
    assert seen == [2, 0, 5, 0, 5, 0, 5, 0]
