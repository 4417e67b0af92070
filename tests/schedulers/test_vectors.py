"""Traces of the originals: each file of vectors/ is replayed by one test, but for lines marked ``quirk``, defects of the originals.

Guava counts in whole microseconds, so it may differ by one for each part that was costed; x/time/rate truncates delays to whole ns, and
the ticks family its intervals; ours are rounded up.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any

import pytest

import aiorate

SECOND = 1_000_000_000
BEYOND = 2**63 - 1  # where the originals saturate


def replayed(name: str) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """A test that replays each line of a file."""

    def decorate(replay: Callable[[Any], None]) -> Callable[[], None]:
        def test() -> None:
            for line in map(json.loads, (Path(__file__).parent / "vectors" / name).read_text(encoding="utf-8").splitlines()):
                try:
                    if not line.get("quirk"):
                        replay(line)
                except Exception as error:
                    error.add_note(f"{name}: {line['id']}")
                    raise

        return test

    return decorate


def reserve(scheduler: aiorate.Scheduler, n: int, now: int) -> int:
    """The wait of a caller that takes as soon as it may."""
    at = max(scheduler.peek(n, now), now)
    assert scheduler.take(n, at) <= at
    return at - now


def refused(call: Any, *args: Any) -> bool:
    with pytest.raises((ValueError, TypeError)):
        call(*args)
    return True


def guava(p: dict[str, Any]) -> tuple[Any, int]:
    start = p["created_at_us"] * 1000
    if p["kind"] == "smooth_bursty":
        return aiorate.SmoothBursty(p["rate"], max_burst=p["max_burst_s"], start=start), 1
    return aiorate.SmoothWarmingUp(p["rate"], Fraction(p["warmup_us"], 10**6), p["cold_factor"], start=start), 3


@replayed("guava.jsonl")
def test_guava(line: Any) -> None:
    """Waits, refusals, the store and rates. A scenario ends where it has an infinite rate, which is refused here."""
    params = {**line["params"], "kind": line["kind"]}
    if params["rate"] == "inf":
        assert refused(guava, {**params, "rate": float("inf")})
        return
    limiter, parts_each = guava(params)
    parts = 0
    for op in line["ops"]:
        now, rate, before = op["at_us"] * 1000, limiter.rate, limiter.next_free
        if op.get("error"):
            call = limiter.take if "n" in op else lambda rate, now: limiter.set_rate(aiorate.Rate(float(rate)), now)
            assert refused(call, op.get("n", op.get("rate")), now)
            assert (limiter.rate, limiter.next_free) == (rate, before)
        elif op["op"] == "set_rate" and op["rate"] == "inf":
            assert refused(aiorate.Rate, float("inf"))
            return
        elif op["op"] == "set_rate":
            limiter.set_rate(aiorate.Rate(op["rate"]), now)
        elif op["op"] == "get_rate":
            assert limiter.rate.per_second == op["rate"]
        elif op["op"] == "acquire" or max(limiter.peek(op["n"], now) - now, 0) <= max(op["timeout_us"], 0) * 1000 + parts * 1000:
            if op["op"] == "try_acquire" and not op["ok"]:  # within the rounding of Guava: refused by a hair
                assert limiter.peek(op["n"], now) - now >= max(op["timeout_us"], 0) * 1000
                continue
            wait = reserve(limiter, op["n"], now)
            assert abs(wait - op["wait_us"] * 1000) <= parts * 1000
            parts += parts_each
        else:
            assert op["ok"] is False
        if "stored" in op and not op.get("error") and op["next_free_us"] < BEYOND:
            assert abs(limiter.next_free - op["next_free_us"] * 1000) <= parts * 1000
            off = (parts + 1) * limiter.rate.per_second / 1e6
            assert limiter.stored == pytest.approx(op["stored"], rel=1e-9, abs=1e-9 + off)


@replayed("x_time_rate.jsonl")
def test_x_time_rate(line: Any) -> None:
    """Decisions, delays and levels.

    Refused here: a limit of 0 or infinity, a burst of 0, requests for 0 permits; and a TokenBucket keeps its burst. A cancelled
    reservation is given back if it was the last and has not begun. A line ends at one of others, since nothing is reserved ahead.
    """
    params, delays, last = line["params"], {}, None
    if params["limit"] in (0, "inf") or params["burst"] < 1:
        assert refused(aiorate.TokenBucket, float(params["limit"]), params["burst"])
        return
    bucket = aiorate.TokenBucket(params["limit"], burst=params["burst"], start=0)
    for op in line["ops"]:
        now, n = op["at_ns"], op.get("n")
        if n is not None and not 1 <= n <= bucket.burst:
            assert refused(bucket.peek, n, now)
            assert op["ok"] is (n == 0)
        elif op["op"] == "allow":
            assert (bucket.take(n, now) <= now) is op["ok"]
        elif op["op"] in ("reserve", "reserve_within"):
            wait = bucket.peek(n, now) - now
            assert op["ok"] is (wait - 1 < op.get("max_wait_ns", BEYOND))
            if op["ok"]:
                assert 0 <= reserve(bucket, n, now) - op["delay_ns"] <= 1
                delays[op["res"]] = last = (now + wait, n)
        elif op["op"] == "delay_from":
            assert max(0, delays[op["res"]][0] - now) - op["delay_ns"] in (0, 1)
        elif op["op"] == "cancel":
            at, n = delays.get(op["res"], (None, 0))
            if at is not None and at >= now:
                if delays[op["res"]] is not last:
                    return
                bucket.give_back(n, now)
                del delays[op["res"]]
                last = None
        elif op["op"] == "set_limit":
            if op["limit"] in (0, "inf"):
                assert refused(aiorate.Rate, float(op["limit"]))
                return
            bucket.set_rate(aiorate.Rate(op["limit"]), now)
        elif op["op"] == "set_burst":
            return
        if "tokens_after" in op:
            assert level(bucket, now) == pytest.approx(op["tokens_after"], rel=1e-9, abs=1e-9 + 2e-9 * bucket.rate.per_second)


def level(bucket: aiorate.TokenBucket, now: int) -> float:
    """The level of the bucket, from its answer about a full one."""
    missing = Fraction((bucket.peek(bucket.burst, now) - now) * bucket.rate.permits, bucket.rate.period_ns)
    return float(bucket.burst - missing)


@replayed("token_pool.jsonl")
def test_token_pool(line: Any) -> None:
    """Active, waiting and the sizes, as integers. A blocking take is `take_up_to` where there is enough."""
    p = line["params"]
    pool = aiorate.TokenPool(p.get("rate", 1000), burst_ratio=p["burst_ratio"], pool=p.get("pool_size"))
    pool.restart()  # the originals' pool begins empty; the permit is put in by their filler
    ns_per_op = p["ns_per_op"]
    assert (pool.max_active, pool.max_over_active) == (p["max_active"], p["max_over_active"])
    for op in line["ops"]:
        kind = op["op"]
        if kind == "refill":
            assert pool.refill(op["tokens"]) == op["total"]
        elif kind == "take_up_to":
            assert pool.take_up_to(op["tokens"]) == op["taken"]
        elif kind in ("block_and_take", "take_op"):
            tokens = op.get("tokens", ns_per_op)
            assert op["blocked"] is (pool.active < tokens)
            if not op["blocked"]:
                assert pool.take_up_to(tokens) == tokens
                assert pool.active + pool.waiting == op["untaken"]
        elif kind == "apply":
            pool.apply(op["rate"], op["burst_ratio"])
            ns_per_op = op["ns_per_op"]
            assert (pool.max_active, pool.max_over_active) == (op["max_active"], op["max_over_active"])
        elif kind == "restart":
            assert pool.restart() == op["returned"]
        assert (pool.active, pool.waiting) == (op["active"], op["waiting"])


@replayed("hybrid_lifecycle.jsonl")
def test_hybrid_lifecycle(line: Any) -> None:
    """A pool under specs. Ours needs no filler to be started; the original's does, and its restart of an idle one only starts it."""
    spec = aiorate.RateSpec.parse(line["params"]["spec"])
    pool = aiorate.TokenPool(spec.rate, burst_ratio=spec.burst_ratio)
    started = False
    for op in line["ops"]:
        cost, had = pool.rate.interval_ns, pool.active + pool.waiting
        if op["op"] == "take_op":
            assert op["blocked"] is (pool.active < cost)
            if not op["blocked"]:
                assert (pool.take_up_to(cost), had - cost) == (cost, op["returned"])
        elif op["op"] == "refill":
            assert pool.refill(op["tokens"]) == had + op["tokens"]
        elif op["op"] == "apply":
            spec = aiorate.RateSpec.parse(op["spec"])
            pool.apply(spec.rate, spec.burst_ratio)
        elif op["op"] == "restart":
            assert (pool.restart() if started else 0) == op["returned"]
        started = started or op["op"] == "restart" or spec.verb != "configure"
        assert started is (op["state"] == "started") is (op["fillers_started"] == 1)
        assert (pool.active, pool.waiting, pool.max_active) == (op["active"], op["waiting"], op["max_active"])
        assert pool.active + pool.waiting == op["wait_time"] == op["total_wait_time"]


@replayed("rate_spec.jsonl")
def test_rate_spec(line: Any) -> None:
    """A text that either parser reads is read alike; where they differ the later one counts.

    Refused here though an original takes it: rate 0, a ratio below 1 or NaN, and the scope "thread".
    """
    sane = [p for p in (line["pool_era"], line["sim_era"]) if not p.get("error") and p["rate"] > 0 and p["burst_ratio"] >= 1]
    if not sane or any(p.get("scope") == "thread" for p in sane):
        assert refused(aiorate.RateSpec.parse, line["in"])
        return
    expected = sane[-1]
    spec = aiorate.RateSpec.parse(line["in"])
    assert spec.rate.per_second == pytest.approx(expected["rate"], rel=1e-15)
    assert (spec.burst_ratio, spec.verb) == (expected["burst_ratio"], expected["verb"])
    if "ns_per_op" in expected:
        assert spec.rate.interval_ns == expected["ns_per_op"]


@replayed("ticks.jsonl")
def test_ticks(line: Any) -> None:
    """Lateness, slots and waits of the average and the dynamic limiter, at the original's truncated intervals.

    The original's strict limiter is another than `BurstCompensation`: its strictness is a power of two, and counts only where its cached
    clock is stale.
    """
    p = line["params"]
    if line["kind"] not in ("average", "dynamic"):
        assert refused(aiorate.BurstCompensation, "1/s", 1.5)
        return
    dynamic = line["kind"] == "dynamic"
    if dynamic:
        pace = aiorate.Rate(1, Fraction(p["ns_per_op"], SECOND))
        ticks: Any = aiorate.BurstRatio(pace, Fraction(p["ns_per_op"], p["burst_ns_per_op"]), start=p["created_at_ns"])
    else:
        ticks = aiorate.TicksAccumulator(aiorate.Rate(1, Fraction(p["ns_per_op"], SECOND)), start=p["created_at_ns"])
    seen = p["created_at_ns"]
    for op in line["ops"]:
        now = op["at_ns"]
        if op["op"] == "acquire":
            at = max(ticks.peek(1, now), now)
            if dynamic:
                seen = max(seen, now)
                slot = ticks.take(1, max(at, seen))
                assert max(at, seen) - slot == op["lateness_ns"]
            else:
                slot = ticks.take(1, at)
                if slot >= seen:
                    seen = now
                assert (max(seen - slot, 0), max(slot - now, 0)) == (op["lateness_ns"], op["slept_ns"])
                assert ticks.ticks == op["ticks_ns"]
        elif op["op"] == "wait_time":
            assert ticks.lag(now) == max(op["wait_ns"], 0)
        elif op["op"] == "set_rate":
            interval = int(SECOND / op["rate"])
            pace = aiorate.Rate(1, Fraction(interval, SECOND))
            if dynamic:
                ticks.apply(pace, Fraction(interval, int(SECOND / (op["rate"] * op["burst_ratio"]))), now)
            else:
                ticks.set_rate(pace, now)


@replayed("bursty_smooth.jsonl")
def test_bursty_smooth(line: Any) -> None:
    """Waits, within a nanosecond or two. The original drops fractions of a stored permit, ours keeps them and is then no later."""
    limiter = aiorate.SmoothBursty(line["params"]["tps"], max_stored=line["params"]["max_stored"], start=0)
    kept = False
    for op in line["ops"]:
        now = op["at_ns"]
        if not op["ok"]:
            assert refused(limiter.peek, op["n"], now)
            continue
        wait = reserve(limiter, op["n"], now)
        kept = kept or abs(limiter.stored - op["stored"]) > 1e-6
        assert wait - op["wait_ns"] <= 2
        if not kept:
            assert wait - op["wait_ns"] >= -2
            assert abs(limiter.next_free - op["next_free_ns"]) <= 2


@replayed("gcra.jsonl")
def test_gcra(line: Any) -> None:
    """Decisions and waits, exactly: time is counted in a unit of which every instant of the line is a whole number."""
    interval, burst = Fraction(line["params"]["emission_interval"]), line["params"]["burst"]
    times = ("at", "retry_after", "wait", "max_wait", "reset_after")
    fractions = [Fraction(op[key]) for op in line["ops"] for key in times if op.get(key)]
    unit = lcm(interval.denominator, *(fraction.denominator for fraction in fractions))
    bucket = aiorate.TokenBucket(aiorate.Rate(1, interval * unit / SECOND), burst=burst)
    real = aiorate.TokenBucket(aiorate.Rate(1, interval), burst=burst)
    for op in line["ops"]:
        now, n = int(Fraction(op["at"]) * unit), op["n"]
        if n > burst:
            assert op["ok"] is False
            assert refused(bucket.peek, n, now)
            continue
        wait = Fraction(bucket.peek(n, now) - now, unit)
        if op["op"] == "check":
            assert (bucket.take(n, now) <= now) is op["ok"]
            assert wait == Fraction(op["retry_after"])
            if op["ok"] and Fraction(op["at"]) * SECOND % 1 == 0:  # in real nanoseconds as well
                assert real.take(n, int(Fraction(op["at"]) * SECOND)) <= Fraction(op["at"]) * SECOND + 1
        elif op["op"] == "reserve" or wait <= Fraction(op["max_wait"]):
            assert op["ok"]
            assert Fraction(reserve(bucket, n, now), unit) == wait == Fraction(op["wait"])
        else:
            assert op["ok"] is False
        assert Fraction(bucket.peek(burst, now) - now, unit) == Fraction(op["reset_after"])
        if "remaining" in op:
            assert burst - -(-Fraction(bucket.peek(burst, now) - now, unit) // interval) == op["remaining"]
