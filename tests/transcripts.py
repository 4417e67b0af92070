"""Schedulers at work, as lines that can be checked by eye."""

from __future__ import annotations

import aiorate
from aiorate.testing import simulate

S = 1_000_000_000


def waits(scheduler: aiorate.Scheduler, asked: str) -> str:
    """Seconds that callers wait, each of whom takes its permits as soon as it may.

    ``"0 0:3 1.5"``: one permit at 0 s, three at 0 s, one at 1.5 s.
    """
    answers = []
    for ask in asked.split():
        made, _, permits = ask.partition(":")
        now, n = round(float(made) * S), int(permits or 1)
        at = max(scheduler.peek(n, now), now)
        scheduler.take(n, at)
        answers.append(f"{(at - now) / S:.9g}")
    return " ".join(answers)


def grants(scheduler: aiorate.Scheduler, count: int, begin: float = 0) -> str:
    """Seconds at which so many permits are granted one by one to a line that began to form then."""
    return " ".join(f"{at / S:.9g}" for at in simulate(scheduler, [round(begin * S)] * count))
