"""What schedulers do, as lines that a reader can check by eye."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.testing import simulate

if TYPE_CHECKING:
    import aiorate


S = 1_000_000_000


def grants(scheduler: aiorate.Scheduler, count: int, begin: float = 0) -> str:
    """The instants, in seconds, of ``count`` grants of one permit each to a line that forms at ``begin``."""
    return " ".join(f"{at / S:.9g}" for at in simulate(scheduler, [round(begin * S)] * count))


def waits(scheduler: aiorate.Scheduler, asked: str) -> str:
    """The seconds that requests wait, if each takes its permits as soon as it may.

    ``"0 0:3 1.5"`` asks for one permit at 0 s, three at 0 s and one at 1.5 s. The answer has a number for each, such as ``"0 0.2 0"``.
    """
    answers = []
    for ask in asked.split():
        made, _, permits = ask.partition(":")
        now, n = round(float(made) * S), int(permits or 1)
        at = max(scheduler.peek(n, now), now)
        scheduler.take(n, at)
        answers.append(f"{(at - now) / S:.9g}")
    return " ".join(answers)
