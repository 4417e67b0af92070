"""The originals' formulas written down naively, in fractions, and compared with aiorate's on random histories of any input."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from hypothesis import given, settings
from hypothesis import strategies as st

import aiorate

RATES = st.sampled_from([Fraction(n) for n in ("1", "2", "5", "7", "1000", "12345", "80000", "3/10", "1/86400", "9999999")])
SIZES = st.integers(1, 40)
GAPS = st.sampled_from([0, 0, 0, 1, 3, 4, 5, 9, 40, 400])  # between requests, in quarter intervals of the first rate
some = settings(max_examples=25)


def ns(seconds: Fraction) -> int:
    return ceil(seconds * 10**9)


@some
@given(RATES, st.sampled_from(["0", "1/2", "1", "2", "13/10"]), st.lists(st.tuples(GAPS, SIZES, st.integers(-1, 9), RATES | st.none())))
def test_smooth_bursty_is_guavas(rate: Fraction, burst: str, history: list[tuple[int, int, int, Fraction | None]]) -> None:
    """Guava's resync, reserve and set_rate without its truncation; a request with a time-out depends on next_free alone."""
    ours = aiorate.SmoothBursty(rate, max_burst=Fraction(burst), start=0)
    now, first, stored, free = 0, rate, Fraction(0), Fraction(0)
    for gap, n, timeout, new_rate in history:
        now += gap * int(10**9 / first) // 4
        seconds = Fraction(now, 10**9)
        if timeout >= 0 and ns(free) - now > timeout * 10**7:
            assert ours.peek(n, now) - now == ns(free) - now
            continue
        if ns(free) < now:
            stored, free = min(Fraction(burst) * rate, stored + (seconds - free) * rate), seconds
        wait = max(0, ns(free) - now)
        used = min(stored, n)
        stored, free = stored - used, free + (n - used) / rate

        at = ours.peek(n, now)
        ours.take(n, at)

        assert wait == at - now
        assert ns(free) == ours.next_free
        assert float(stored) == ours.stored
        if new_rate is not None and ns(free) >= now:
            # Ours keeps the debt in its own unit, rounded up by less than a nanosecond, and the store rounded down.
            ours.set_rate(aiorate.Rate(new_rate), now)
            unit, tick = ours.rate.permits * 10**9, ours.rate.period_ns
            free = Fraction(ceil(free * unit), unit)
            stored = Fraction(floor(stored * new_rate / rate * tick), tick)
            rate = new_rate
            assert float(stored) == ours.stored


@some
@given(RATES, st.sampled_from(["1/2", "4", "10"]), st.sampled_from([1, 2, 3, 10]), st.lists(st.tuples(GAPS, SIZES)))
def test_smooth_warming_up_is_guavas(rate: Fraction, warmup: str, cold: int, history: list[tuple[int, int]]) -> None:
    """The integral under Guava's line. Areas are whole ticks here, so an answer may differ by a nanosecond."""
    ours = aiorate.SmoothWarmingUp(rate, Fraction(warmup), cold, start=0)
    interval, period = 1 / rate, Fraction(warmup)
    threshold = period / interval / 2
    most = threshold + 2 * period / (interval + cold * interval)
    slope = (cold - 1) * interval / (most - threshold)
    now, stored, free = 0, most, Fraction(0)
    for gap, n in history:
        now += gap * int(10**9 / rate) // 4
        seconds = Fraction(now, 10**9)
        if ns(free) < now:
            stored, free = min(most, stored + (seconds - free) * most / period), seconds
        used = min(stored, n)
        above = max(stored - threshold, 0)
        dear = min(above, used)
        start, cost = free, dear * (2 * interval + (2 * above - dear) * slope) / 2 + interval * (n - dear)
        stored, free = stored - used, free + cost

        at = ours.peek(n, now)
        ours.take(n, at)

        assert -1 <= at - max(now, ns(start)) <= 1
        assert float(stored) == float(ours.stored) or abs(float(stored) - ours.stored) < 1e-6 * float(most)


@some
@given(RATES, st.integers(1, 50), st.lists(st.tuples(GAPS, SIZES, st.integers(-1, 9), RATES | st.none())))
def test_token_bucket_is_gos(rate: Fraction, burst: int, history: list[tuple[int, int, int, Fraction | None]]) -> None:
    """Tokens, advance and reserve of golang.org/x/time/rate, in fractions: debt may be reserved ahead, a new rate keeps it in tokens."""
    ours = aiorate.TokenBucket(rate, burst=burst, start=0)
    now, first, last, tokens = 0, rate, 0, Fraction(burst)
    slack = Fraction(0)  # permits: what rounding up to a tick at changes of the rate may have cost, never gained
    for gap, n, most_wait, new_rate in history:
        now += gap * int(10**9 / first) // 4
        if now < last or n > burst:
            continue
        level = min(Fraction(burst), tokens + Fraction(now - last, 10**9) * rate)
        wait = max(0, ns((n - level) / rate))

        at = ours.peek(n, now)

        assert 0 <= at - now - wait <= ns(slack / rate)
        if most_wait < 0 or wait <= most_wait * 10**7:
            assert ours.take(n, at) <= at
            tokens, last = level - n, now
        if new_rate is not None:
            tokens, last = min(Fraction(burst), tokens + Fraction(now - last, 10**9) * rate), now
            slack += Fraction(1, ours.rate.period_ns)
            rate = new_rate
            ours.set_rate(aiorate.Rate(rate), now)
            slack += Fraction(1, ours.rate.period_ns)


@some
@given(
    st.integers(1, 10**7) | st.sampled_from([0.1, 0.3, 7.5, 1e-3]),
    st.sampled_from([1, 1.05, 1.1, 1.15, 1.25, 1.3, 2, 7.3]) | st.floats(1, 20),
    st.none() | st.integers(1, 10**9),
    st.lists(st.tuples(st.sampled_from(["refill", "take", "restart", "apply"]), st.integers(0, 10**10), st.integers(1, 10**6))),
)
def test_token_pool_is_engineblocks(rate: float, burst: float, size: int | None, history: list[tuple[str, int, int]]) -> None:
    """To the last digit, doubles and truncation included. A shrunk pool hands its excess back to the waiting one."""
    ours = aiorate.TokenPool(rate, burst_ratio=burst, pool=size)
    ours.restart()
    active = waiting = 0
    per_op = int(1e9 / rate)
    for what, tokens, new_rate in history:
        full = size or max(1_000_000, 2 * per_op)
        over = int(full * burst)
        if what == "refill":
            add = min(tokens, max(full - active, 0))
            active, waiting = active + add, waiting + tokens - add
            allow = min(over - active, int(min(tokens / full, 1.0) * (over - full)))
            move = min(allow, waiting)
            active, waiting = active + move, waiting - move
            assert active + waiting == ours.refill(tokens)
        elif what == "take":
            taken = min(tokens, active)
            active -= taken
            assert taken == ours.take_up_to(tokens)
        elif what == "restart":
            assert active + waiting == ours.restart()
            active = waiting = 0
        else:
            per_op = int(1e9 / new_rate)
            full = size or max(1_000_000, 2 * per_op)
            over = int(full * burst)
            ours.apply(new_rate, burst)
        assert (full, over) == (ours.max_active, ours.max_over_active)
        assert (active, waiting) == (ours.active, ours.waiting)
