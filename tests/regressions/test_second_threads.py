"""Defects found by the second attack: numbers 28, 29 and 38.

A signal handler that raises, as that of Ctrl-C does, is run by CPython after a call or at the start of a function, wherever the main
thread is. So every such instant of a decision is tried in turn, by a profile function that raises there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from helpers.driving import LONG
from helpers.threads import LoopThread, waiting

import aiorate
from aiorate.testing import ManualClock

ROOT = str(Path(aiorate.__file__).parent)
TOOLS = str(Path(aiorate.__file__).parent / "testing")


class Alarm(Exception):
    """What a handler of SIGALRM raises."""


class Interrupt:
    """A profile function that raises at one instant of aiorate's code: the first that was not tried, counting from 1."""

    def __init__(self, instant: int, error: type[BaseException]) -> None:
        self.left = instant
        self.error = error
        self.where = ""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        path = frame.f_code.co_filename
        if not path.startswith(ROOT) or path.startswith(TOOLS):
            return
        blocks = event == "c_call" and frame.f_code.co_name == "acquire_blocking"
        if event in ("call", "c_return"):
            self.left -= 1
        if not self.left or blocks:
            self.left = 0
            self.where = "blocked" if blocks else f"{Path(path).name}:{frame.f_lineno}, {event} in {frame.f_code.co_name}"
            raise self.error

    def run(self, action: Callable[[], object]) -> bool:
        """Run the action; False: it came to its end, or blocked, before that instant."""
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            with suppress(BaseException):
                action()
        finally:
            sys.setprofile(before)
        return self.where not in ("", "blocked")


STRATEGIES: dict[str, Callable[[], aiorate.Scheduler]] = {
    "TokenBucket": lambda: aiorate.TokenBucket("10/s", burst=2),
    "TokenPool": lambda: aiorate.TokenPool("10/s"),
    "BurstCompensation": lambda: aiorate.BurstCompensation("10/s"),
    "SlidingWindow": lambda: aiorate.SlidingWindow("2/200ms"),
    "SmoothBursty": lambda: aiorate.SmoothBursty("10/s", max_stored=2),
}


class Case:
    """A limiter for all threads whose permit is gone, with two tasks of another thread's event loop in line."""

    def __init__(self, thread: LoopThread, strategy: str, **options: Any) -> None:
        self.clock = ManualClock()
        self.limiter = aiorate.Limiter(STRATEGIES[strategy](), scope="process", clock=self.clock, **options)
        self.take_all()
        self.clock.advance(1)
        self.at_most = self.take_all()
        self.tasks: list[Future[Any]] = [thread.start(self.limiter.acquire) for _ in range(2)]
        waiting(self.limiter, 2)

    def take_all(self) -> int:
        """How many permits are to be had at once."""
        taken = 0
        while self.limiter.try_acquire():
            taken += 1
        return taken

    def settle(self) -> None:
        """Time passes, and somebody else asks now and then."""
        with suppress(aiorate.LimiterClosed):
            self.limiter.try_acquire()
        for _ in range(6):
            self.clock.advance(0.1)

    def outcomes(self) -> Iterator[object]:
        for task in self.tasks:
            try:
                yield task.result(LONG)
            except aiorate.LimiterClosed as error:
                yield error


ACTIONS: dict[str, Callable[[Case], object]] = {
    "refund": lambda case: case.limiter.refund(1),
    "refund for two": lambda case: case.limiter.refund(2),
    "charge": lambda case: case.limiter.charge(1),
    "set_rate": lambda case: case.limiter.set_rate("20/s"),
    "pause, resume": lambda case: (case.limiter.pause(0.01), case.limiter.resume()),
    "try_acquire": lambda case: case.limiter.try_acquire(),
    "acquire_blocking": lambda case: case.limiter.acquire_blocking(),
    "max_wait": lambda case: case.limiter.acquire_blocking(max_wait=100),
    "refused": lambda case: case.limiter.acquire_blocking(max_wait=0),
    "statistics": lambda case: case.limiter.statistics(),
    "reset": lambda case: case.limiter.reset(),
}


@pytest.mark.parametrize("error", [KeyboardInterrupt, Alarm])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("strategy", ["TokenBucket", *(pytest.param(name, marks=pytest.mark.slow) for name in list(STRATEGIES)[1:])])
def test_nobody_waits_for_ever_after_an_interrupt(strategy: str, action: str, error: type[BaseException]) -> None:
    """Number 28: 3 of 5500 interrupts in the main thread left the tasks of other threads waiting. Here it is each instant in turn.

    Nor does any other thread get the error: it is the main thread's alone, whatever its class.
    """
    instant, interrupted = 0, True
    with LoopThread() as thread:
        while interrupted:
            instant += 1
            case, interrupt = Case(thread, strategy), Interrupt(instant, error)
            interrupted = interrupt.run(lambda case=case: ACTIONS[action](case))

            case.settle()
            outcomes = list(case.outcomes())
            dispatcher = case.limiter.dispatcher

            assert all(isinstance(waited, float) for waited in outcomes), interrupt.where
            assert (0, 0, 0) == (len(dispatcher.line), dispatcher.resuming, case.limiter.statistics().waiting), interrupt.where
            case.limiter.set_rate("10/s")
            case.clock.advance(1)
            assert case.at_most == case.take_all(), interrupt.where
    assert instant > 20


IMPORT_ALL = "import aiorate, aiorate.process, aiorate.redis, aiorate.waiting.process.section, aiorate.waiting.asyncio.timerfd"


@pytest.mark.parametrize("platform", ["ios", "android", "wasi", "win32"])
def test_platforms_without_fork_import_everything(platform: str) -> None:
    """Number 38: they lack os.register_at_fork(), and only Windows was known to."""
    run_python(f"import asyncio, random, threading, os, sys; del os.register_at_fork; sys.platform = {platform!r}; {IMPORT_ALL}")


@pytest.mark.slow
def test_the_tests_can_be_collected_without_uvloop() -> None:
    """Number 38: there is none on Windows, and every test file of asyncio needed it."""
    collect = "pytest.main(['--collect-only', '-qq', '-p', 'no:cacheprovider', 'tests'])"
    run_python(f"import sys, pytest; sys.modules['uvloop'] = None; sys.exit({collect})")


def test_precise_falls_back_where_libraries_need_a_name() -> None:
    """Number 29: on Windows ctypes.CDLL(None) raises TypeError, and every acquire of a precise limiter did so too."""
    run_python(
        "import asyncio, sys; before = sys.platform; sys.platform = 'win32'; import aiorate, aiorate.waiting.asyncio.timerfd, ctypes;"
        "sys.platform = before\n"
        "def refuse(name, **options): raise TypeError(f'argument of type {type(name)} is not iterable')\n"
        "ctypes.CDLL = refuse\n"
        "limiter = aiorate.Limiter(aiorate.TokenBucket('1000/s', burst=1), precise=True)\n"
        "async def main(): return [await limiter.acquire() for _ in range(3)]\n"
        "assert len(asyncio.run(main())) == 3 and limiter.statistics().granted == 3"
    )


def run_python(program: str) -> None:
    """Run it in a process of its own, which must end well."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(ROOT).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout[-2000:] + done.stderr[-2000:]
