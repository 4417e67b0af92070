"""Every bad value of every public call is refused at once, with an error that says what is allowed, and changes nothing.

Arguments that are durations are in test_durations.py, those of budgets, keys, stores and HTTP with their own tests.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from helpers.driving import one_loop
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock, simulate

pytestmark = one_loop

NAN, INF, HUGE = math.nan, math.inf, 10**500
WORDS: list[Any] = [None, "", "x", b"1", [], {}, object(), 1j]
WORDS_NOT_NONE = [word for word in WORDS if word is not None]
NO_COUNT: list[Any] = [0, -1, -HUGE, True, False, 1.0, 0.5, NAN, INF, Decimal(1), Fraction(1), *WORDS]
NO_SECONDS: list[Any] = [-1, -0.001, NAN, INF, -INF, HUGE, Decimal("NaN"), Decimal("1e999"), True, False, *WORDS]
NO_RATE_TEXT = ["", " ", "x", "0/s", "-1/s", "10/m", "10/fortnight", "nan/s", "inf", "1e999/s", "10/0s", "10//s"]
NO_RATE: list[Any] = [0, -1, 0.0, -0.5, NAN, INF, HUGE, Decimal(0), Decimal("sNaN"), Fraction(-1, 2)]
NO_RATE += [True, False, None, b"10/s", [], object(), 1j, *NO_RATE_TEXT]
NO_NS: list[Any] = [1.0, True, NAN, INF, Decimal(1), *WORDS_NOT_NONE]
NO_RATIO: list[Any] = [0, -1, 0.99, NAN, INF, HUGE, True, False, *WORDS]
NO_STORE: list[Any] = [-1, NAN, INF, HUGE, True, *WORDS_NOT_NONE]
NO_SPEC: list[Any] = ["", "x", ",", "0", "-1,1,start", "10,0.5", "10,nan", "10,1.1,begin", "1,000", "10,1,start,stop"]
NO_SPEC += [10, None, 1.5, b"10", object()]
NO_TRUE_UP = [x for x in NO_COUNT if type(x) is not int or x != 0]  # 0 is allowed: nothing to correct
HELP = re.compile("must|not|never|allowed|takes|Write|needs|greater|pass|either|Leave|Say which|counted from")

Calls = dict[str, tuple[Callable[..., Any], list[Any]]]

LIMITER: Calls = {
    "acquire": (lambda limiter, x: limiter.acquire(x), NO_COUNT),
    "acquire(max_wait)": (lambda limiter, x: limiter.acquire(max_wait=x), [x for x in NO_SECONDS if x is not None]),
    "try_acquire": (lambda limiter, x: limiter.try_acquire(x), NO_COUNT),
    "of": (lambda limiter, x: limiter.of(x), NO_COUNT),
    "delay": (lambda limiter, x: limiter.delay(x), NO_COUNT),
    "refund": (lambda limiter, x: limiter.refund(x), NO_TRUE_UP),
    "charge": (lambda limiter, x: limiter.charge(x), NO_TRUE_UP),
    "pause": (lambda limiter, x: limiter.pause(x), NO_SECONDS),
    "set_rate": (lambda limiter, x: limiter.set_rate(x), NO_RATE),
    "set_rate(member)": (lambda limiter, x: limiter.set_rate("10/s", member=x), [-1, 99, *NO_NS]),
    "apply": (lambda limiter, x: limiter.apply(x), NO_SPEC),
    "bound": (lambda limiter, x: limiter.bound(x), [0, *NO_SECONDS]),
    "bound(largest)": (lambda limiter, x: limiter.bound(1, x), NO_COUNT),
    "decorator": (lambda limiter, x: limiter(x), [0, *WORDS]),
}
SCHEDULER: Calls = {
    "take": (lambda scheduler, x: scheduler.take(x, 10**9), NO_COUNT),
    "take(now)": (lambda scheduler, x: scheduler.take(1, x), [None, *NO_NS]),
    "take(since)": (lambda scheduler, x: scheduler.take(1, 10**9, x), NO_NS),
    "peek": (lambda scheduler, x: scheduler.peek(x, 10**9), NO_COUNT),
    "peek(now)": (lambda scheduler, x: scheduler.peek(1, x), [None, *NO_NS]),
    "give_back": (lambda scheduler, x: scheduler.give_back(x, 10**9), NO_COUNT),
    "give_back(now)": (lambda scheduler, x: scheduler.give_back(1, x), [None, *NO_NS]),
    "set_rate": (lambda scheduler, x: scheduler.set_rate(x, 10**9), NO_RATE),
    "bound": (lambda scheduler, x: scheduler.bound(x), [0, -1, None, *NO_NS]),
    "bound(largest)": (lambda scheduler, x: scheduler.bound(1, x), NO_COUNT),
}
BUILD: Calls = {
    "TokenPool(rate)": (aiorate.TokenPool, NO_RATE),
    "TicksAccumulator(rate)": (aiorate.TicksAccumulator, NO_RATE),
    "BurstCompensation(rate)": (aiorate.BurstCompensation, NO_RATE),
    "BurstRatio(rate)": (aiorate.BurstRatio, NO_RATE),
    "SmoothBursty(rate)": (aiorate.SmoothBursty, NO_RATE),
    "SlidingWindow(rate)": (aiorate.SlidingWindow, NO_RATE),
    "SmoothWarmingUp(rate)": (lambda x: aiorate.SmoothWarmingUp(x, 1), NO_RATE),
    "TokenBucket(rate)": (lambda x: aiorate.TokenBucket(x, 1), NO_RATE),
    "CalendarWindow(rate)": (lambda x: aiorate.CalendarWindow(x, "UTC"), [*NO_RATE, "10/7s", "10/250ms", "3/36h"]),
    "TokenPool(burst_ratio)": (lambda x: aiorate.TokenPool(10, x), NO_RATIO),
    "TokenPool(pool)": (lambda x: aiorate.TokenPool(10, pool=x), [0, -1, *NO_NS]),
    "TokenPool(start)": (lambda x: aiorate.TokenPool(10, start=x), NO_NS),
    "TokenBucket(burst)": (lambda x: aiorate.TokenBucket(10, x), NO_COUNT),
    "TokenBucket(initial)": (lambda x: aiorate.TokenBucket(10, 5, x), [-1, 6, *NO_NS]),
    "BurstCompensation(strictness)": (lambda x: aiorate.BurstCompensation(10, x), [-0.1, 1.1, NAN, INF, True, *WORDS]),
    "BurstRatio(ratio)": (lambda x: aiorate.BurstRatio(10, x), NO_RATIO),
    "BurstRatio(start)": (lambda x: aiorate.BurstRatio(10, start=x), NO_NS),
    "SmoothBursty(max_burst)": (lambda x: aiorate.SmoothBursty(10, max_burst=x), NO_STORE),
    "SmoothBursty(max_stored)": (lambda x: aiorate.SmoothBursty(10, max_stored=x), NO_STORE),
    "SmoothWarmingUp(cold_factor)": (lambda x: aiorate.SmoothWarmingUp(10, 1, x), NO_RATIO),
    "CalendarWindow(tz)": (lambda x: aiorate.CalendarWindow("10/s", x), [5, *WORDS, "Nowhere/Land", "../etc", "UTC\0"]),
    "CalendarWindow(origin)": (lambda x: aiorate.CalendarWindow("10/s", "UTC", x), NO_NS),
    "AllOf": (lambda x: aiorate.AllOf(x), [0, 1.5, *WORDS, aiorate.TokenBucket]),
    "Limiter": (aiorate.Limiter, [*NO_RATE, aiorate.TokenPool]),
    "Limiter(max_waiting)": (lambda x: aiorate.Limiter(10, max_waiting=x), [-1, False, 0.0, *NO_NS]),
    "Limiter(max_concurrency)": (lambda x: aiorate.Limiter(10, max_concurrency=x), [0, -1, *NO_NS]),
    "Limiter(rate, per)": (lambda x: aiorate.Limiter(10, x), [1, 60.0, "s", "5/s"]),
    "Limiter(clock)": (lambda x: aiorate.Limiter(10, clock=x), [0, 1.5, "x", object()]),
    "Limiter(on_event)": (lambda x: aiorate.Limiter(10, on_event=x), [5, "print", [print]]),
    "Limiter(name)": (lambda x: aiorate.Limiter(10, name=x), [0, b"x", object()]),
    "RateSpec(burst_ratio)": (lambda x: aiorate.RateSpec(10, x), NO_RATIO),
    "RateSpec(verb)": (lambda x: aiorate.RateSpec(10, 1, x), ["", "begin", "START ", None, 5]),
    "RateSpec.parse": (aiorate.RateSpec.parse, NO_SPEC),
    "Rate.parse": (aiorate.Rate.parse, [5, None, *NO_RATE_TEXT]),
    "ManualClock": (ManualClock, [None, *NO_NS]),
    "ManualClock.set": (lambda x: ManualClock().set(x), [None, *NO_NS]),
    "ManualClock.call_at": (lambda x: ManualClock().call_at(x, print), [None, *NO_NS]),
    "simulate": (lambda x: simulate(aiorate.TokenBucket(10, 5), [x]), [*NO_NS, (1,), (1, 0), (1, 6), (1, True), (1.5, 1), (1, 2, 3)]),
    "simulate(requests)": (lambda x: simulate(aiorate.TokenBucket(10, 5), x), [None, 5, [5, 1]]),
}


def refuses(row: str, call: Callable[..., Any], *arguments: Any) -> None:
    try:
        result = call(*arguments)
        if inspect.iscoroutine(result):
            result.send(None)
    except (ValueError, TypeError, RuntimeError) as error:
        text = str(error)
        assert HELP.search(text), f"{row}, {arguments!r}: {text!r} does not say what is allowed"
        assert len(text) < 400, f"{row}, {arguments!r}: too long"
    except StopIteration:
        pytest.fail(f"{row}: {arguments!r} was accepted")
    else:
        pytest.fail(f"{row}: {arguments!r} was accepted")


def asked(scheduler: aiorate.Scheduler) -> Any:
    """What a strategy answers to requests of several sizes, now and later."""
    most = min(3, scheduler.max_permits or 3)
    later = [10**9 + step for step in (0, 1, 10**8, 10**9, 10**10)]
    return repr(scheduler), scheduler.lag(10**9), [scheduler.peek(n, now) for n in range(1, most + 1) for now in later]


async def test_bad_arguments_fail_in_the_constructor() -> None:
    for row, (call, values) in BUILD.items():
        for value in values:
            refuses(row, call, value)


@pytest.mark.parametrize("name", EACH)
async def test_a_refused_call_changes_nothing(name: str) -> None:
    """Negative amounts that mint permits, zeros that mean for ever. Schedulers are public too, and programs may use them directly."""
    scheduler, limiter = EACH[name](), aiorate.Limiter(EACH[name](), clock=ManualClock(10**9))
    scheduler.take(1, 10**9)
    limiter.try_acquire()

    def state() -> Any:
        seen = limiter.statistics(), repr(limiter), limiter.lag, limiter.delay(), asked(limiter.scheduler)
        return seen, asked(scheduler)

    before = state()
    for table, thing in ((LIMITER, limiter), (SCHEDULER, scheduler)):
        for row, (call, values) in table.items():
            for value in values:
                refuses(row, call, thing, value)

    assert before == state()


async def test_an_impossible_request_is_refused_at_once() -> None:
    """google/guava#7130: a request larger than the burst waited until its timeout."""
    for name in ("TokenBucket", "SlidingWindow", "CalendarWindow", "AllOf"):
        limiter = aiorate.Limiter(EACH[name](), clock=ManualClock(10**9))
        most = limiter.scheduler.max_permits
        assert most is not None

        for call in (limiter.acquire, limiter.try_acquire, limiter.of, limiter.delay, partial(limiter.acquire, max_wait=1)):
            refuses(name, call, most + 1)
            refuses(name, call, HUGE)

        assert limiter.statistics().granted == 0


async def test_a_clock_without_whole_nanoseconds_is_refused() -> None:
    """``time.monotonic() * 1e9`` is a float: schedules computed with it would drift, and NaN would grant for ever."""
    for make in (aiorate.TokenPool, lambda rate: aiorate.TokenBucket(rate, burst=2), aiorate.TicksAccumulator):
        for reading in (1e9, NAN, None, "now"):
            clock = ManualClock()
            clock.now = lambda reading=reading: reading  # type: ignore[method-assign, misc]
            limiter = aiorate.Limiter(make("10/s"), clock=clock)

            with pytest.raises(TypeError):
                limiter.try_acquire()
            with pytest.raises(TypeError):
                await limiter.acquire()
