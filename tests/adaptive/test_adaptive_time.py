"""Which instant an answer counts for, threads, and limiters of keys. Virtual time, except for the threads."""

from __future__ import annotations

import random
import threading

from aiorate import Limiter, Rate
from aiorate.adaptive import AdaptiveRate
from aiorate.testing import ManualClock


def test_the_time_of_a_pause_does_not_count() -> None:
    """What was granted in an hour, most of it paused, says what a second allows."""
    clock = ManualClock()
    adaptive = AdaptiveRate(Limiter("100/s", clock=clock), 1, 1000)
    for _ in range(100):
        clock.advance(0.01)
        adaptive.succeeded(took=0.001)

    adaptive.limiter.pause(3600)
    clock.advance(3600)
    for _ in range(30):
        clock.advance(0.01)
        adaptive.succeeded(took=0.001)
    clock.advance(0.01)
    adaptive.throttled(took=0.001)

    assert adaptive.rate.per_second > 95


def test_a_pause_that_is_ended_early_costs_what_it_took() -> None:
    """After a Retry-After of a day and resume(), the next climb begins within a minute, not after weeks."""
    clock = ManualClock()
    adaptive = AdaptiveRate(Limiter("100/s", clock=clock), 1, 1000)
    for _ in range(500):
        clock.advance(0.01)
        adaptive.succeeded(took=0.001)
    adaptive.throttled(86_400, took=0.001)
    lowered = adaptive.rate.per_second

    adaptive.limiter.resume()
    for _ in range(10_000):
        clock.advance(1 / adaptive.rate.per_second)
        adaptive.succeeded(took=0.001)

    assert adaptive.rate.per_second > 2 * lowered


def test_answers_from_before_a_pause_belong_to_its_flight() -> None:
    """They were on their way when the first refusal came."""
    clock = ManualClock()
    adaptive = AdaptiveRate(Limiter("100/s", clock=clock), 1, 1000)
    clock.advance(10)
    adaptive.throttled(2, took=0.5)
    lowered = adaptive.rate

    clock.advance(2.1)
    adaptive.throttled(took=2.3)

    assert adaptive.rate == lowered


def test_a_took_longer_than_the_search_is_cut() -> None:
    """As of a caller whose clock is another one."""
    clock = ManualClock()
    adaptive = AdaptiveRate(Limiter("10/s", clock=clock), 1, 1000)

    for _ in range(2000):
        clock.advance(1 / adaptive.rate.per_second)
        adaptive.succeeded(took=10**9)
    for _ in range(2000):
        clock.advance(1 / adaptive.rate.per_second)
        adaptive.succeeded(took=0.001)

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
