"""Every bad argument of every public call is refused at once, with an error that says what is allowed, and changes nothing."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock, simulate

NAN, INF, HUGE = math.nan, math.inf, 10**500
WORDS: list[Any] = [None, "", "x", b"1", [], {}, object(), 1j]
NO_COUNT: list[Any] = [0, -1, -HUGE, True, False, 1.0, 0.5, NAN, INF, Decimal(1), Fraction(1), *WORDS]
NO_SECONDS: list[Any] = [-1, -0.001, NAN, INF, -INF, HUGE, Decimal("NaN"), Decimal("Infinity"), Decimal("1e999"), True, False, *WORDS]
NO_RATE: list[Any] = [0, -1, 0.0, -0.5, NAN, INF, HUGE, Decimal(0), Decimal("sNaN"), Fraction(-1, 2), True, False]
NO_RATE += [
    None,
    b"10/s",
    [],
    object(),
    1j,
    "",
    " ",
    "x",
    "0/s",
    "-1/s",
    "10/m",
    "10/fortnight",
    "nan/s",
    "inf",
    "1e999/s",
    "10/0s",
    "10//s",
]
NO_NS: list[Any] = [1.0, True, NAN, INF, Decimal(1), *[word for word in WORDS if word is not None]]
NO_RATIO: list[Any] = [0, -1, 0.99, NAN, INF, HUGE, True, False, *WORDS]
NO_SPEC: list[Any] = [
    "",
    "x",
    ",",
    "0",
    "-1,1,start",
    "10,0.5",
    "10,nan",
    "10,1.1,begin",
    "1,000",
    "10,1,start,stop",
    10,
    None,
    1.5,
    b"10",
    object(),
]
NO_TRUE_UP = [x for x in NO_COUNT if type(x) is not int or x != 0]  # 0 is allowed: nothing to correct
HELP = (
    "must",
    "not",
    "never",
    "allowed",
    "takes",
    "Write",
    "cannot",
    "needs",
    "greater",
    "pass",
    "either",
    "neither",
    "Say which",
    "Leave",
    "counted from",
)

LIMITER: dict[str, tuple[Callable[[aiorate.Limiter, Any], Any], list[Any]]] = {
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
    "decorator": (lambda limiter, x: limiter(x), [0, *WORDS, len, lambda: None]),
}
SCHEDULER: dict[str, tuple[Callable[[Any, Any], Any], list[Any]]] = {
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
POOL: dict[str, tuple[Callable[[Any, Any], Any], list[Any]]] = {
    "refill": (lambda pool, x: pool.refill(x), [-1, None, *NO_NS]),
    "take_up_to": (lambda pool, x: pool.take_up_to(x), [-1, None, *NO_NS]),
    "apply": (lambda pool, x: pool.apply(x, 1), NO_RATE),
    "apply(burst_ratio)": (lambda pool, x: pool.apply("10/s", x), NO_RATIO),
}
NO_STORE: list[Any] = [-1, NAN, INF, HUGE, True, *[word for word in WORDS if word is not None]]
BUILD: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    **{f"{kind.__name__}(rate)": (lambda x, kind=kind: kind(x), NO_RATE) for kind in (aiorate.TokenPool, aiorate.TicksAccumulator)},
    **{f"{kind.__name__}(rate)": (lambda x, kind=kind: kind(x), NO_RATE) for kind in (aiorate.BurstCompensation, aiorate.BurstRatio)},
    **{f"{kind.__name__}(rate)": (lambda x, kind=kind: kind(x), NO_RATE) for kind in (aiorate.SmoothBursty, aiorate.SlidingWindow)},
    "SmoothWarmingUp(rate)": (lambda x: aiorate.SmoothWarmingUp(x, 1), NO_RATE),
    "TokenBucket(rate)": (lambda x: aiorate.TokenBucket(x, 1), NO_RATE),
    "CalendarWindow(rate)": (lambda x: aiorate.CalendarWindow(x, "UTC"), [*NO_RATE, "10/7s", "10/250ms", "3/36h"]),
    "TokenPool(burst_ratio)": (lambda x: aiorate.TokenPool(10, x), NO_RATIO),
    "TokenPool(pool)": (lambda x: aiorate.TokenPool(10, pool=x), [0, -1, *NO_NS]),
    "TokenBucket(burst)": (lambda x: aiorate.TokenBucket(10, x), NO_COUNT),
    "TokenBucket(initial)": (lambda x: aiorate.TokenBucket(10, 5, x), [-1, 6, *NO_NS]),
    "BurstCompensation(strictness)": (lambda x: aiorate.BurstCompensation(10, x), [-0.1, 1.1, NAN, INF, True, *WORDS]),
    "BurstRatio(ratio)": (lambda x: aiorate.BurstRatio(10, x), NO_RATIO),
    "SmoothBursty(max_burst)": (lambda x: aiorate.SmoothBursty(10, max_burst=x), NO_STORE),
    "SmoothBursty(max_stored)": (lambda x: aiorate.SmoothBursty(10, max_stored=x), NO_STORE),
    "SmoothWarmingUp(warmup)": (lambda x: aiorate.SmoothWarmingUp(10, x), [0, *NO_SECONDS]),
    "SmoothWarmingUp(cold_factor)": (lambda x: aiorate.SmoothWarmingUp(10, 1, x), NO_RATIO),
    "CalendarWindow(tz)": (lambda x: aiorate.CalendarWindow("10/s", x), [5, *WORDS, "Nowhere/Land", "../etc", "UTC\0"]),
    "CalendarWindow(origin)": (lambda x: aiorate.CalendarWindow("10/s", "UTC", x), NO_NS),
    "start": (lambda x: [make(x) for make in (lambda s: aiorate.TokenPool(10, start=s), lambda s: aiorate.BurstRatio(10, start=s))], NO_NS),
    "AllOf": (lambda x: aiorate.AllOf(x), [0, 1.5, *WORDS, aiorate.TokenBucket]),
    "Limiter": (aiorate.Limiter, [*NO_RATE, aiorate.TokenPool]),
    "Limiter(catch_up)": (lambda x: aiorate.Limiter(10, catch_up=x), NO_SECONDS),
    "Limiter(max_waiting)": (lambda x: aiorate.Limiter(10, max_waiting=x), [-1, *NO_NS]),
    "Limiter(max_waiting of nothing)": (lambda x: aiorate.Limiter(10, max_waiting=x), [False, 0.0]),
    "Limiter(precise)": (lambda x: aiorate.Limiter(10, precise=x), [0, 1, None, "yes"]),
    "Limiter(rate, per)": (lambda x: aiorate.Limiter(10, x), [1, 60.0, "s"]),
    "Limiter(clock)": (lambda x: aiorate.Limiter(10, clock=x), [0, 1.5, "x", object()]),
    "Limiter(name)": (lambda x: aiorate.Limiter(10, name=x), [0, b"x", object()]),
    "RateSpec(burst_ratio)": (lambda x: aiorate.RateSpec(10, x), NO_RATIO),
    "RateSpec(verb)": (lambda x: aiorate.RateSpec(10, 1, x), ["", "begin", "START ", None, 5]),
    "RateSpec.parse": (aiorate.RateSpec.parse, NO_SPEC),
    "Rate.parse": (aiorate.Rate.parse, [5, None, *[text for text in NO_RATE if isinstance(text, str)]]),
    "Rate(per)": (lambda x: aiorate.Rate(1, x), [0, *NO_SECONDS]),
    "ManualClock": (ManualClock, [None, *NO_NS]),
    "ManualClock.set": (lambda x: ManualClock().set(x), [None, *NO_NS]),
    "ManualClock.advance": (lambda x: ManualClock().advance(x), NO_SECONDS),
    "ManualClock.call_at": (lambda x: ManualClock().call_at(x, print), [None, *NO_NS]),
    "simulate": (lambda x: simulate(aiorate.TokenBucket(10, 5), [x]), [*NO_NS, (1,), (1, 0), (1, 6), (1, True), (1.5, 1), (1, 2, 3)]),
    "simulate(requests)": (lambda x: simulate(aiorate.TokenBucket(10, 5), x), [None, 5, [5, 1]]),
}


def rows(table: dict[str, Any]) -> list[Any]:
    """Make a parameter set for each call."""
    return [pytest.param(call, values, id=name) for name, (call, values) in table.items()]


def seen(limiter: aiorate.Limiter) -> Any:
    """The visible state of a limiter, and all attributes of its strategy."""
    return limiter.statistics(), repr(limiter), limiter.lag, limiter.delay(), snapshot(limiter.scheduler)


def snapshot(thing: Any) -> Any:
    """Copy all slots and attributes, deeply; objects from outside aiorate are represented by their repr()."""
    if isinstance(thing, (tuple, list)):
        return [snapshot(item) for item in thing]
    if isinstance(thing, (int, float, str, bytes, dict, set, frozenset, type(None), aiorate.Rate)):
        return copy.deepcopy(thing)
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()) if not name.startswith("__")]
    names += list(getattr(thing, "__dict__", ()))
    if not names or not type(thing).__module__.startswith("aiorate"):
        return repr(thing)
    return {name: snapshot(getattr(thing, name)) for name in names if hasattr(thing, name) and not callable(getattr(thing, name))}


def refuses(call: Callable[[], Any], value: Any) -> None:
    """Assert that the call raises an error with a message that helps."""
    try:
        result = call()
        if inspect.isawaitable(result):
            asyncio.run(_drive(result))
    except (ValueError, TypeError, RuntimeError) as error:
        text = str(error)
        assert any(word in text for word in HELP), f"{value!r}: {text!r} does not say what is allowed"
        assert len(text) < 400, f"{value!r}: too long"
    else:
        pytest.fail(f"{value!r} was accepted")


async def _drive(awaitable: Any) -> None:
    await asyncio.wait_for(awaitable, 60)


@pytest.mark.parametrize(("call", "values"), rows(BUILD))
def test_bad_arguments_fail_in_the_constructor(call: Callable[[Any], Any], values: list[Any]) -> None:
    """A mistake shows where it is written, not at the first use."""
    for value in values:
        refuses(lambda value=value: call(value), value)


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize(("call", "values"), rows(LIMITER))
def test_a_refused_call_of_a_limiter_changes_nothing(name: str, call: Callable[[Any, Any], Any], values: list[Any]) -> None:
    """I1, I2, I3: negative amounts that mint permits, zeros that mean for ever."""
    limiter = aiorate.Limiter(EACH[name](), clock=ManualClock(10**9))
    limiter.try_acquire()
    before = seen(limiter)

    for value in values:
        refuses(lambda value=value: call(limiter, value), value)

    assert before == seen(limiter)


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize(("call", "values"), rows(SCHEDULER))
def test_a_refused_call_of_a_scheduler_changes_nothing(name: str, call: Callable[[Any, Any], Any], values: list[Any]) -> None:
    """Schedulers are public too, and programs may use them directly."""
    scheduler = EACH[name]()
    scheduler.take(1, 10**9)
    before = snapshot(scheduler)

    for value in values:
        refuses(lambda value=value: call(scheduler, value), value)

    assert snapshot(scheduler) == before


@pytest.mark.parametrize(("call", "values"), rows(POOL))
def test_a_refused_call_of_a_token_pool_changes_nothing(call: Callable[[Any, Any], Any], values: list[Any]) -> None:
    """refill(), take_up_to() and apply(), for programs that drive a pool by hand."""
    pool = aiorate.TokenPool("10/s")
    pool.refill(10**8)
    before = snapshot(pool)

    for value in values:
        refuses(lambda value=value: call(pool, value), value)

    assert snapshot(pool) == before


@pytest.mark.parametrize("name", ["TokenBucket", "SlidingWindow", "CalendarWindow", "AllOf"])
def test_an_impossible_request_is_refused_at_once(name: str) -> None:
    """google/guava#7130: a request larger than the burst waited until its timeout."""
    limiter = aiorate.Limiter(EACH[name](), clock=ManualClock(10**9))
    most = limiter.scheduler.max_permits
    assert most is not None

    for call in (limiter.acquire, limiter.try_acquire, limiter.of, limiter.delay, lambda n: limiter.acquire(n, max_wait=1)):
        refuses(lambda call=call: call(most + 1), most + 1)
        refuses(lambda call=call: call(HUGE), HUGE)

    assert limiter.statistics().granted == 0


@pytest.mark.parametrize("reading", [1e9, float("nan"), None, "now"])
@pytest.mark.parametrize("make", [aiorate.TokenPool, lambda rate: aiorate.TokenBucket(rate, burst=2), aiorate.TicksAccumulator])
def test_a_clock_without_whole_nanoseconds_is_refused(make: Any, reading: object) -> None:
    """``time.monotonic() * 1e9`` is a float: schedules computed with it would drift, and NaN would grant for ever."""

    class Clock:
        def now(self) -> Any:
            return reading

    limiter = aiorate.Limiter(make("10/s"), clock=Clock())

    with pytest.raises(TypeError):
        limiter.try_acquire()
    with pytest.raises(TypeError):
        asyncio.run(limiter.acquire())
