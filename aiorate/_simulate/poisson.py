"""Arrivals that are made: a Poisson process, which is what many independent clients look like."""

from __future__ import annotations

import random
from array import array
from typing import TYPE_CHECKING

from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from aiorate.rate import Rate

__all__ = ["poisson"]


def poisson(rate: Rate, requests: int | None, duration: int | None, seed: int) -> array[int]:
    """Instants in ns: the first at 0, the gaps exponential with the mean of ``rate``. The same seed makes the same instants.

    ``requests`` of them or, if that is None, those within ``duration`` ns.
    """
    chance = random.Random(seed).expovariate
    mean = NS_PER_SECOND / rate.per_second
    instants = array("q", [0])
    now = 0
    most = float("inf") if requests is None else requests
    end = float("inf") if duration is None else duration
    while len(instants) < most:
        now += round(chance(1.0) * mean)
        if now >= end:
            break
        instants.append(now)
    return instants
