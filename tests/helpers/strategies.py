"""One scheduler of each strategy, for tests that all strategies must pass."""

from __future__ import annotations

from collections.abc import Callable

import aiorate

EACH: dict[str, Callable[[], aiorate.Scheduler]] = {
    "TokenPool": lambda: aiorate.TokenPool("10/s"),
    "TokenPool-burst": lambda: aiorate.TokenPool("7/s", burst_ratio=1.5),
    "TicksAccumulator": lambda: aiorate.TicksAccumulator("10/s"),
    "BurstCompensation-strict": lambda: aiorate.BurstCompensation("10/s"),
    "BurstCompensation-half": lambda: aiorate.BurstCompensation("7/s", strictness=0.5),
    "BurstRatio": lambda: aiorate.BurstRatio("7/s", ratio=1.5),
    "SmoothBursty": lambda: aiorate.SmoothBursty("10/s"),
    "SmoothBursty-stored": lambda: aiorate.SmoothBursty("7/s", max_stored=3),
    "SmoothWarmingUp": lambda: aiorate.SmoothWarmingUp("10/s", warmup=2),
    "TokenBucket": lambda: aiorate.TokenBucket("10/s", burst=5),
    "TokenBucket-paced": lambda: aiorate.TokenBucket("7/s", burst=1),
    "SlidingWindow": lambda: aiorate.SlidingWindow("10/s"),
    "CalendarWindow": lambda: aiorate.CalendarWindow("10/s", "UTC", origin=0),
    "AllOf": lambda: aiorate.AllOf(aiorate.TokenBucket("10/s", burst=3), aiorate.SlidingWindow("20/3s")),
}
