"""Events that a limiter can meet while tasks wait for it. A new one is a function, and a line in `HAPPENINGS`."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from helpers.driving import LONG, SECOND, turns
from helpers.platforms import needs_fork, needs_signals

import aiorate
from aiorate.http import Feedback, Quota

from .world import Stage

__all__ = ["HAPPENINGS", "Happening"]

LATER = (8, 9, 10, 11)
"""The numbers of the requests made afterwards."""


@dataclass(frozen=True)
class Happening:
    """An event that acts at one of three points of a program; the rest of the program stays the same."""

    name: str
    before: Callable[[Stage], object] | None = None
    """Before any request, outside the loop."""
    act: Callable[[Stage], Any] | None = None
    """Inside the loop, while tasks wait."""
    between: Callable[[Stage], object] | None = None
    """Outside the loop, while tasks wait."""
    scopes: tuple[str, ...] = ("loop", "process", "redis")
    needs: str | None = None
    """A method that the limiter must have."""
    since: tuple[int, int] = (3, 11)
    alone: bool = False
    """True if it is tried without options only, because it takes long."""
    waits_first: bool = False
    """True if all requests are granted before it."""
    marks: tuple[pytest.MarkDecorator, ...] = ()
    """They skip it where the system does not have it."""

    def __str__(self) -> str:
        return self.name


def nothing(stage: Stage) -> None:
    """Run the program without an event."""


def eager(stage: Stage) -> None:
    stage.loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]  # of Python 3.12


def cancel_waiting(stage: Stage) -> None:
    """Cancel the first in line and one in the middle."""
    for number in stage.pending()[:4:3]:
        stage.cancel(number)


def cancel_all(stage: Stage) -> None:
    for number in stage.pending():
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


async def uncancelled(stage: Stage) -> None:
    """Cancel a task that catches its cancellation and goes on."""
    for number in stage.pending()[:1]:
        stage.cancel(number)
        await turns(1)
        stage.tasks[number].uncancel()


def pause(stage: Stage) -> None:
    stage.subject.verbs.pause(1)
    stage.quiet = stage.now() + 1, stage.now() + SECOND


async def pause_and_resume(stage: Stage) -> None:
    stage.subject.verbs.pause(60)
    await stage.sleep(0.3)
    stage.subject.verbs.resume()


def quota(stage: Stage) -> None:
    """Let a server report that one permit is left for a second."""
    stage.subject.verbs.observe(Feedback(200, quotas=(Quota("requests", 10, 1, 1.0),)))


def retry_after(stage: Stage) -> None:
    stage.subject.verbs.observe(Feedback(429, 1.0))
    stage.quiet = stage.now() + 1, stage.now() + SECOND


def faster(stage: Stage) -> None:
    stage.changes()
    stage.subject.verbs.set_rate("40/s")


def slower(stage: Stage) -> None:
    stage.changes()
    stage.subject.verbs.set_rate("4/s")


def refund(stage: Stage) -> None:
    stage.extra += 2
    stage.subject.verbs.refund(2)


def charge(stage: Stage) -> None:
    stage.subject.verbs.charge(3)


def reset(stage: Stage) -> None:
    stage.changes()
    stage.reset = True
    stage.subject.verbs.reset()


async def close(stage: Stage) -> None:
    stage.closed = True
    await stage.subject.limiter.aclose()


def stall(stage: Stage) -> None:
    stage.stall(1)


def short_stall(stage: Stage) -> None:
    stage.stall(0.015)


def stop_and_start(stage: Stage) -> None:
    """Stop and start by apply()."""
    stage.subject.verbs.apply("10,1,stop")
    stage.loop.call_soon(stage.subject.verbs.apply, "10,1,start")


def tried(stage: Stage) -> None:
    """Assert that try_acquire() does not pass the line."""
    assert not stage.subject.verbs.try_acquire() or not stage.pending()


def many(stage: Stage) -> None:
    """Make more requests than are woken in one iteration of the loop."""
    stage.ask(*range(1000, 3200))


def loop_ends(stage: Stage) -> None:
    """End the loop like `asyncio.run()`, which cancels all tasks."""
    stage.cancelled.update(stage.pending())
    stage.new_loop()


def loop_is_left(stage: Stage) -> None:
    """Close the loop while its tasks wait, as some frameworks do."""
    stage.lost.update(stage.pending())
    stage.left = True
    stage.loop.close()
    stage.tasks.clear()
    stage.new_loop()


def second_run(stage: Stage) -> None:
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


class Interrupted(Exception):
    """Raised by a signal handler."""


def interrupted_thread(stage: Stage) -> None:
    """Interrupt acquire_blocking() by a signal while it waits."""
    limit = stage.subject.limiter
    before = limit.statistics()

    def interrupt() -> None:
        for _ in range(LONG * 1000):
            if limit.statistics().waiting > before.waiting:
                break
            threading.Event().wait(0.001)
        signal.pthread_kill(main, signal.SIGUSR1)

    def handle(*arguments: object) -> None:
        raise Interrupted

    main = threading.get_ident()
    old = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        limit.acquire_blocking()
    except (Interrupted, aiorate.LineFull):
        with suppress(Interrupted):
            thread.join()
    else:
        raise AssertionError("acquire_blocking() passed the line")
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, old)


HAPPENINGS = [
    Happening("nothing", act=nothing),
    Happening("eager-tasks", before=eager, since=(3, 12)),
    Happening("cancelled-before-the-grant", act=cancel_waiting),
    Happening("all-cancelled", act=cancel_all),
    Happening("cancelled-after-the-grant", act=cancel_granted, scopes=("loop", "process")),
    Happening("pause", act=pause, needs="pause"),
    Happening("pause-and-resume", act=pause_and_resume, needs="resume"),
    Happening("quota", act=quota, needs="observe"),
    Happening("retry-after", act=retry_after, needs="observe"),
    Happening("faster", act=faster, needs="set_rate", scopes=("loop", "process")),
    Happening("slower", act=slower, needs="set_rate", scopes=("loop", "process")),
    Happening("refund", act=refund, needs="refund"),
    Happening("charge", act=charge, needs="charge"),
    Happening("reset", act=reset, needs="reset", scopes=("loop", "process")),
    Happening("stop-and-start", act=stop_and_start, needs="apply", scopes=("loop", "process")),
    Happening("try", act=tried, needs="try_acquire", scopes=("loop", "process")),
    Happening("close", act=close),
    Happening("many-waiting", act=many, alone=True, scopes=("loop", "process")),
    Happening("stalled-loop", act=stall),
    Happening("late-loop", act=short_stall),
    Happening("loop-that-ends", between=loop_ends),
    Happening("loop-that-is-left", between=loop_is_left),
    Happening("second-run", between=second_run, waits_first=True),
    Happening("fork", between=fork, scopes=("loop", "process"), marks=(needs_fork,)),
    Happening("interrupted-thread", between=interrupted_thread, scopes=("process",), marks=(needs_signals,)),
]
