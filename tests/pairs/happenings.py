"""Events that a limiter can meet while tasks wait for it. A new one is a line of the table: what it does, when and where it can come."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from helpers.driving import SECOND

import aiorate
from aiorate.http import Feedback, Quota

from .world import Stage

LATER = (8, 9, 10, 11)  # the numbers of the requests made afterwards
HERE = ("loop", "process")


@dataclass(frozen=True)
class Happening:
    """What it does, at one point of a program; the rest of the program stays the same."""

    does: Callable[[Stage], Any]
    when: str = "while"  # "before" any request, outside the loop; in it, "while" tasks wait; outside, "between" two runs of it
    scopes: tuple[str, ...] = (*HERE, "redis")
    needs: str | None = None  # a method that the limiter must have
    granted: bool = False  # all requests are granted before it


def cancel(stage: Stage, *numbers: int) -> None:
    for number in numbers:
        stage.cancel(number)


def cancel_granted(stage: Stage) -> None:
    """Cancel the next one that is granted, before its task runs."""

    def granted(scheduler: object) -> None:
        if scheduler is notes and stage.pending():
            notes.hook = None
            stage.loop.call_soon(stage.cancel, stage.pending()[0])

    line = stage.subject.path(stage.pending()[0])[0] if stage.pending() else next(iter(stage.subject.levels))
    notes: Any = stage.subject.levels[line].notes
    notes.hook = granted


def quiet(stage: Stage, *feedback: Feedback) -> None:
    """Nothing may be granted for a second."""
    verbs = stage.subject.verbs
    verbs.observe(*feedback) if feedback else verbs.pause(1)
    stage.quiet = stage.now() + 1, stage.now() + SECOND


def set_rate(rate: str) -> Callable[[Stage], None]:
    def does(stage: Stage) -> None:
        stage.changes()
        stage.subject.verbs.set_rate(rate)

    return does


def refund(stage: Stage) -> None:
    stage.extra += 2
    stage.subject.verbs.refund(2)


def reset(stage: Stage) -> None:
    stage.changes()
    stage.reset = True
    stage.subject.verbs.reset()


async def close(stage: Stage) -> None:
    stage.closed = True
    await stage.subject.limiter.aclose()


def loop_ends(stage: Stage) -> None:
    """End the loop like `asyncio.run()`, which cancels all tasks."""
    stage.cancelled.update(stage.pending())
    stage.new_loop()


def loop_is_left(stage: Stage) -> None:
    """Close the loop while its tasks wait, as some frameworks do."""
    stage.lost.update(stage.pending())
    stage.loop.close()
    stage.tasks.clear()
    stage.new_loop()


def fork(stage: Stage) -> None:
    """Fork: the child has the budget, and no waiters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a program with threads forks
        child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            stage.lost.update(stage.pending())
            stage.tasks.clear()
            stage.runner = asyncio.Runner(loop_factory=type(stage.loop))
            stage.runner.run(_asked_again(stage))
            stage.check_bounds()
            status = 0
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0, "the child was not served, or exceeded the bound"


async def _asked_again(stage: Stage) -> None:
    stage.ask(*LATER)
    await stage.done()
    assert all(number in stage.granted or issubclass(stage.told[number], aiorate.LimiterError) for number in LATER)


HAPPENINGS = {
    "nothing": Happening(lambda stage: None),
    "cancel_waiting": Happening(lambda stage: cancel(stage, *stage.pending()[:4:3])),  # the first in line and one in the middle
    "cancel_all": Happening(lambda stage: cancel(stage, *stage.pending())),
    "cancel_granted": Happening(cancel_granted, scopes=HERE),
    "pause": Happening(quiet, needs="pause"),
    # A server reports that one permit is left for a second.
    "quota": Happening(lambda s: s.subject.verbs.observe(Feedback(200, quotas=(Quota("requests", 10, 1, 1.0),))), needs="observe"),
    "retry_after": Happening(lambda stage: quiet(stage, Feedback(429, 1.0)), needs="observe"),
    "faster": Happening(set_rate("40/s"), scopes=HERE, needs="set_rate"),
    "slower": Happening(set_rate("4/s"), scopes=HERE, needs="set_rate"),
    "refund": Happening(refund, needs="refund"),
    "charge": Happening(lambda stage: stage.subject.verbs.charge(3), needs="charge"),
    "reset": Happening(reset, scopes=HERE, needs="reset"),
    "close": Happening(close),
    "stall": Happening(lambda stage: stage.stall(1)),
    "loop_ends": Happening(loop_ends, "between"),
    "loop_is_left": Happening(loop_is_left, "between"),
    "second_run": Happening(lambda stage: stage.new_loop(), "between", granted=True),
}
if hasattr(os, "fork"):
    HAPPENINGS["fork"] = Happening(fork, "between", HERE)
if sys.version_info >= (3, 12):
    HAPPENINGS["eager_tasks"] = Happening(lambda stage: stage.loop.set_task_factory(asyncio.eager_task_factory), "before")
