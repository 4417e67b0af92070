"""Strategies from which fast callers take permits in batches."""

from __future__ import annotations

from collections.abc import Callable

import aiorate

STRATEGIES: dict[str, Callable[[int], aiorate.Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenPool-burst": lambda rate: aiorate.TokenPool(rate, burst_ratio=1.5),
    "TokenPool-small": lambda rate: aiorate.TokenPool(rate, pool=200_000),
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=40),
    "TokenBucket-large": lambda rate: aiorate.TokenBucket(rate, burst=10_000, initial=0),
}
