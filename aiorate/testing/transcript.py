"""Schedulers at work, as lines that a reader can check by eye."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from aiorate.schedulers.interface import Scheduler

__all__ = ["transcript"]


def transcript(scheduler: Scheduler, asked: str) -> str:
    """The seconds that requests wait, if each takes its permits as soon as it may.

    ``"0 0:3 1.5"`` asks for one permit at 0 s, three at 0 s and one at 1.5 s. The answer has a number for each request, such as
    ``"0 0.2 0"``. Raises ValueError for text of another form.
    """
    answers = []
    for ask in asked.split():
        made, _, permits = ask.partition(":")
        now, n = round(float(made) * NS_PER_SECOND), int(permits or 1)
        at = max(scheduler.peek(n, now), now)
        scheduler.take(n, at)
        answers.append(f"{(at - now) / NS_PER_SECOND:.9g}")
    return " ".join(answers)
