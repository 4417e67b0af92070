"""AdaptiveRate: its arguments, what it does with its limiter, and its errors. Virtual time."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import random
import threading
import weakref
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from aiorate import (
    AllOf,
    Budget,
    BurstRatio,
    CalendarWindow,
    Event,
    KeyedLimiter,
    Limiter,
    Rate,
    SlidingWindow,
    SmoothBursty,
    TicksAccumulator,
    TokenBucket,
    TokenPool,
)
from aiorate.adaptive import AdaptiveRate, adaptive_of
from aiorate.testing import ManualClock

SECOND = 1_000_000_000


def made(rate: Any = "100/s", lowest: Any = "1/s", highest: Any = "1000/s", **options: Any) -> tuple[ManualClock, AdaptiveRate]:
    clock = ManualClock()
    return clock, AdaptiveRate(Limiter(rate, clock=clock, **options), lowest, highest)


def refuse(clock: ManualClock, adaptive: AdaptiveRate, times: int) -> None:
    for _ in range(times):
        clock.advance(0.1)
        adaptive.throttled(took=0.05)


def grant(clock: ManualClock, adaptive: AdaptiveRate, times: int) -> None:
    """Answers to callers that use every permit."""
    for _ in range(times):
        clock.advance(1 / adaptive.rate.per_second)
        adaptive.succeeded(took=0.005)


def test_it_starts_at_the_rate_of_the_limiter_within_the_range() -> None:
    """The user's guess is where the search begins."""
    table: list[tuple[Any, Any, str]] = [
        ("1/s", "1000/s", "100/s"),
        (1, Rate(1000), "100/s"),
        ("200/s", "300/s", "200/s"),
        ("1/min", "30/s", "30/s"),
        ("100/s", "100/s", "100/s"),
    ]
    for lowest, highest, starts in table:
        _, adaptive = made("100/s", lowest, highest)
        assert adaptive.rate == adaptive.limiter.rate == Rate.parse(starts)


def test_a_rate_that_somebody_sets_holds_until_the_next_answer() -> None:
    """At the highest rate, too, where the search has nothing to change."""
    clock, adaptive = made("100/s", "1/s", "100/s")
    adaptive.limiter.set_rate("5/s")
    assert adaptive.rate == Rate(5)
    grant(clock, adaptive, 1)
    assert adaptive.rate == Rate(100)


def test_a_rate_that_was_found_is_shown_as_people_write_it() -> None:
    clock, adaptive = made("34.2/s", "1/s", "50/s")
    assert str(adaptive.rate) == "34.2/s"
    for _ in range(50):
        grant(clock, adaptive, 1)
        assert str(adaptive.rate).endswith("/s")


def test_wrong_arguments_are_refused_at_once() -> None:
    """Where it is made, not at the first answer in the night."""
    table: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        (("10/s", "1/s", "5/s"), {}, TypeError, r"AdaptiveRate\(Limiter\('10/s'\)"),
        ((Budget(tokens="10/s"), 1, 5), {}, TypeError, "not Budget"),
        ((KeyedLimiter(lambda key: "1/s"), 1, 5), {}, TypeError, "not KeyedLimiter"),
        ((made()[1], 1, 5), {}, TypeError, "not AdaptiveRate"),
        ((None, 1, 5), {}, TypeError, "not NoneType"),
        ((made()[1].limiter, 1, 5), {}, ValueError, "adaptive_of"),
        ((Limiter(1), 5, 1), {}, ValueError, "Give the lower rate first"),
        ((Limiter(1), 0, 1), {}, ValueError, "Rate"),
        ((Limiter(1), None, 1), {}, TypeError, "NoneType"),
        ((Limiter(1), 1, float("nan")), {}, ValueError, "nan"),
        ((Limiter(1), 1, "fast"), {}, ValueError, "fast"),
        ((Limiter(1), 1, 5), {"refused": 0}, ValueError, "greater than 0 and less than 1"),
        ((Limiter(1), 1, 5), {"refused": 1}, ValueError, "greater than 0 and less than 1"),
        ((Limiter(1), 1, 5), {"refused": "2%"}, TypeError, "refused"),
        ((Limiter(1), 1, 5), {"refused": float("nan")}, ValueError, "refused"),
        ((Limiter(AllOf(TokenBucket("1/s", burst=1), TokenBucket("9/min", burst=9))), 1, 5), {}, ValueError, "several rates"),
        ((Limiter(SlidingWindow("10/10s")), 0.02, 0.03), {}, ValueError, "whole permits"),
    ]
    for arguments, options, error, hint in table:
        with pytest.raises(error, match=hint):
            AdaptiveRate(*arguments, **options)


def test_it_cannot_be_copied_or_pickled() -> None:
    """Since its limiter cannot."""
    _, adaptive = made()

    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(adaptive)


GARBAGE: list[Any] = [float("nan"), float("inf"), -1, -0.5, timedelta(seconds=-1), True, "1", b"1", [1], 10**500, 1 + 1j]


def test_garbage_changes_nothing() -> None:
    """A call that raises has changed nothing, of the limiter's pause too."""
    _, adaptive = made()

    for garbage in GARBAGE:
        for call in (
            lambda garbage: adaptive.succeeded(took=garbage),
            lambda garbage: adaptive.throttled(took=garbage),
            lambda garbage: adaptive.throttled(garbage),
            lambda garbage: adaptive.throttled(5, took=garbage),
        ):
            with pytest.raises((TypeError, ValueError)):
                call(garbage)
    assert adaptive.rate == Rate(100)
    assert adaptive.limiter.statistics().paused_until is None


def test_refused_always_it_asks_ever_more_rarely() -> None:
    """Whatever the lowest rate is; also if the limiter was closed, since answers arrive afterwards."""
    for closed in (False, True):
        clock, adaptive = made()
        if closed:
            asyncio.run(adaptive.limiter.aclose())
        refuse(clock, adaptive, 100)
        assert 0.15 < adaptive.rate.per_second < 0.3, closed  # it is refused for ten seconds
        refuse(clock, adaptive, 900)
        assert 0.015 < adaptive.rate.per_second < 0.03, closed


def test_any_share_between_0_and_1_is_taken() -> None:
    """A share too small for a float too."""
    for refused in ("1e-399", "0.999999999999999999999"):
        clock = ManualClock()
        adaptive = AdaptiveRate(Limiter("100/s", clock=clock), 1, 1000, refused=Decimal(refused))

        for _ in range(5):
            grant(clock, adaptive, 50)
            refuse(clock, adaptive, 5)

        assert 1 <= adaptive.rate.per_second <= 1000, refused


def test_a_retry_after_pauses_the_limiter() -> None:
    """In seconds or as a timedelta; a day is a day. Without one nobody is paused: a second would cost most of what the server gives."""
    for wait, seconds in ((2.5, 2.5), (timedelta(days=1), 86_400), (0, None), (None, None)):
        clock, adaptive = made()
        adaptive.throttled(wait, took=0.1)

        until = adaptive.limiter.statistics().paused_until
        assert until == (None if seconds is None else clock.now() / SECOND + seconds), wait


def test_never_refused_it_reaches_the_highest() -> None:
    """From a hundredth of it, while callers use all of it. One event for each change of more than 10 %, and none for what is tried."""
    events: list[Event] = []
    clock, adaptive = made("10/s", on_event=events.append, name="api")

    grant(clock, adaptive, 10_000)

    assert adaptive.rate == Rate(1000)
    assert [(event.kind, event.limiter, event.rate) for event in events] == [("rate", "api", Rate(1000))]


def test_every_strategy_takes_every_rate_tried() -> None:
    """A window takes whole permits in its period only."""
    for strategy in (
        TokenPool("72.9/s"),
        TokenBucket("72.9/s", burst=5),
        SlidingWindow("73/s"),
        SlidingWindow("730/10s"),
        SlidingWindow("4000/min"),
        CalendarWindow("4000/min", "UTC"),
        TicksAccumulator("72.9/s"),
        BurstRatio("72.9/s", 2),
        SmoothBursty("72.9/s"),
    ):
        clock, adaptive = made(strategy, "0.3/s", "1234.5/s")

        for _ in range(10):
            grant(clock, adaptive, 97)
            refuse(clock, adaptive, 7)
            assert 0.3 <= adaptive.rate.per_second <= 1234.5, strategy
        grant(clock, adaptive, 2_000)

        assert adaptive.rate.per_second > 100, strategy


def test_a_strategy_that_refuses_a_rate_is_refused_at_once() -> None:
    """Its own error says why."""

    class Fixed(TokenPool):
        __slots__ = ()

        def set_rate(self, rate: Rate, now: int) -> None:
            raise ValueError("this rate is fixed")

    with pytest.raises(ValueError, match="is fixed"):
        made(Fixed("5/s"))


def test_the_adaptive_rate_of_a_key_is_found() -> None:
    """The factory returns it, and the KeyedLimiter keeps its limiter."""
    keyed: KeyedLimiter[str] = KeyedLimiter(lambda key: AdaptiveRate(Limiter("10/s"), "1/s", "100/s"))

    adaptive = adaptive_of(keyed["a"])

    assert adaptive is not None
    assert adaptive.limiter is keyed["a"]
    assert adaptive_of(Limiter("10/s")) is None
    # A KeyedLimiter has one for each key, and a None would hide that.
    for wrong in (KeyedLimiter(lambda key: "10/s"), AdaptiveRate(Limiter("10/s"), 1, 100), 10, None):
        with pytest.raises(TypeError, match=r"adaptive_of\(\) takes a Limiter, not .*adaptive_of\(keyed\[key\]\)"):
            adaptive_of(wrong)  # type: ignore[arg-type]


def test_a_limiter_is_freed_with_its_adaptive_rate() -> None:
    """Nothing keeps either of them."""
    _, adaptive = made()
    limiter = weakref.ref(adaptive.limiter)

    del adaptive
    gc.collect()

    assert limiter() is None


# Which instant an answer counts for, and threads.


def test_the_time_of_a_pause_does_not_count() -> None:
    """What was granted in an hour, most of it paused, says what a second allows."""
    clock, adaptive = made()
    grant(clock, adaptive, 100)

    adaptive.limiter.pause(3600)
    clock.advance(3600)
    grant(clock, adaptive, 30)
    refuse(clock, adaptive, 1)

    assert adaptive.rate.per_second > 95


def test_a_pause_that_is_ended_early_costs_what_it_took() -> None:
    """After a Retry-After of a day and resume(), the next climb begins within a minute, not after weeks."""
    clock, adaptive = made()
    grant(clock, adaptive, 500)
    adaptive.throttled(86_400, took=0.001)
    lowered = adaptive.rate.per_second

    adaptive.limiter.resume()
    grant(clock, adaptive, 10_000)

    assert adaptive.rate.per_second > 2 * lowered


def test_answers_from_before_a_pause_belong_to_its_flight() -> None:
    """They were on their way when the first refusal came."""
    clock, adaptive = made()
    clock.advance(10)
    adaptive.throttled(2, took=0.5)
    lowered = adaptive.rate

    clock.advance(2.1)
    adaptive.throttled(took=2.3)

    assert adaptive.rate == lowered


def test_a_took_longer_than_the_search_is_cut() -> None:
    """As of a caller whose clock is another one."""
    clock, adaptive = made("10/s")

    for _ in range(2000):
        clock.advance(1 / adaptive.rate.per_second)
        adaptive.succeeded(took=10**9)
    grant(clock, adaptive, 2000)

    assert adaptive.rate == Rate(1000)


def test_answers_by_many_threads_leave_a_rate_within_the_range() -> None:
    """One critical section for the limiter and for what is known of its rate."""
    limiter = Limiter("1000/s", scope="process")
    adaptive = AdaptiveRate(limiter, 10, 2000)

    def answer(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(500):
            limiter.try_acquire()
            if chance.random() < 0.2:
                adaptive.throttled(took=0.001)
            else:
                adaptive.succeeded(took=0.001)

    threads = [threading.Thread(target=answer, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 10 <= adaptive.rate.per_second <= 2000
    assert adaptive.rate == limiter.rate
