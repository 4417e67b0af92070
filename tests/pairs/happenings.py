"""Events that a limiter can meet while tasks wait for it. A new one is a function with a line of when and where it can come."""

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

__all__ = ["HAPPENINGS", "LATER", "Happening"]

LATER = (8, 9, 10, 11)
"""The numbers of the requests made afterwards."""
HERE = ("loop", "process")


@dataclass(frozen=True)
class Happening:
    """An event that acts at one point of a program; the rest of the program stays the same."""

    does: Callable[[Stage], Any]
    when: str
    """``before`` any request, outside the loop; inside the loop, ``while`` tasks wait; outside the loop, ``between`` two runs of it."""
    scopes: tuple[str, ...]
    needs: str | None
    """A method that the limiter must have."""
    granted: bool
    """True if all requests are granted before it."""


HAPPENINGS: dict[str, Happening] = {}


def happens(
    when: str = "while", *scopes: str, needs: str | None = None, granted: bool = False, possible: bool = True
) -> Callable[[Any], Any]:
    def add(does: Any) -> Any:
        if possible:
            HAPPENINGS[does.__name__] = Happening(does, when, scopes or (*HERE, "redis"), needs, granted)
        return does

    return add


@happens()
def nothing(stage: Stage) -> None:
    """Run the program without an event."""


@happens("before", possible=sys.version_info >= (3, 12))
def eager_tasks(stage: Stage) -> None:
    stage.loop.set_task_factory(asyncio.eager_task_factory)


@happens()
def cancel_waiting(stage: Stage) -> None:
    """Cancel the first in line and one in the middle."""
    for number in stage.pending()[:4:3]:
        stage.cancel(number)


@happens()
def cancel_all(stage: Stage) -> None:
    for number in stage.pending():
        stage.cancel(number)


@happens("while", *HERE)
def cancel_granted(stage: Stage) -> None:
    """Cancel the next one that is granted, before its task runs."""

    def granted(scheduler: object) -> None:
        if scheduler is notes and stage.pending():
            notes.hook = None
            stage.loop.call_soon(stage.cancel, stage.pending()[0])

    line = stage.subject.path(stage.pending()[0])[0] if stage.pending() else next(iter(stage.subject.levels))
    notes: Any = stage.subject.levels[line].notes
    notes.hook = granted


@happens(needs="pause")
def pause(stage: Stage) -> None:
    stage.subject.verbs.pause(1)
    stage.quiet = stage.now() + 1, stage.now() + SECOND


@happens(needs="observe")
def quota(stage: Stage) -> None:
    """Let a server report that one permit is left for a second."""
    stage.subject.verbs.observe(Feedback(200, quotas=(Quota("requests", 10, 1, 1.0),)))


@happens(needs="observe")
def retry_after(stage: Stage) -> None:
    stage.subject.verbs.observe(Feedback(429, 1.0))
    stage.quiet = stage.now() + 1, stage.now() + SECOND


@happens("while", *HERE, needs="set_rate")
def faster(stage: Stage) -> None:
    stage.changes()
    stage.subject.verbs.set_rate("40/s")


@happens("while", *HERE, needs="set_rate")
def slower(stage: Stage) -> None:
    stage.changes()
    stage.subject.verbs.set_rate("4/s")


@happens(needs="refund")
def refund(stage: Stage) -> None:
    stage.extra += 2
    stage.subject.verbs.refund(2)


@happens(needs="charge")
def charge(stage: Stage) -> None:
    stage.subject.verbs.charge(3)


@happens("while", *HERE, needs="reset")
def reset(stage: Stage) -> None:
    stage.changes()
    stage.reset = True
    stage.subject.verbs.reset()


@happens()
async def close(stage: Stage) -> None:
    stage.closed = True
    await stage.subject.limiter.aclose()


@happens()
def stall(stage: Stage) -> None:
    stage.stall(1)


@happens("between")
def loop_ends(stage: Stage) -> None:
    """End the loop like `asyncio.run()`, which cancels all tasks."""
    stage.cancelled.update(stage.pending())
    stage.new_loop()


@happens("between")
def loop_is_left(stage: Stage) -> None:
    """Close the loop while its tasks wait, as some frameworks do."""
    stage.lost.update(stage.pending())
    stage.loop.close()
    stage.tasks.clear()
    stage.new_loop()


@happens("between", granted=True)
def second_run(stage: Stage) -> None:
    stage.new_loop()


@happens("between", *HERE, possible=hasattr(os, "fork"))
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
