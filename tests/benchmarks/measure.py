"""The tools of a measurement: figures, the plan of a run, fresh event loops, and jobs that take turns.

Knows neither a limiter nor a scenario.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from benchmarks.subjects import Subject

__all__ = ["LOOPS", "NO_CALL", "Failed", "Measured", "Plan", "alternate", "child", "environment", "in_tens", "part", "python", "run_in"]

K = TypeVar("K")
V = TypeVar("V")

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": lambda: import_module("uvloop").new_event_loop(),
}
NO_CALL = "no such call"
_GOODBYE = 5.0  # seconds in which cancelled tasks may end


class Failed(Exception):
    """A figure could not be measured. The message has a few words for a cell of a table."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell of a table: a sample for each round, or no sample and a remark that says why."""

    scenario: str
    loop: str  # "" where the loop does not matter
    subject: str
    case: str  # the column
    unit: str
    samples: tuple[float, ...]
    remark: str = ""

    @classmethod
    def of(cls, scenario: str, loop: str, subject: str, case: str, unit: str, values: Iterable[Any], remark: str = "") -> Measured:
        """From the values that `alternate` gathers for one job: numbers, and the `Failed` that ended the job, if any."""
        numbers = []
        for value in values:
            if isinstance(value, Failed):
                remark = str(value)
            else:
                numbers.append(float(value))
        return cls(scenario, loop, subject, case, unit, tuple(numbers), remark)

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def least(self) -> float:
        return min(self.samples)

    @property
    def most(self) -> float:
        return max(self.samples)


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run, its subjects and its loops. ``say`` shows one line of progress."""

    size: str  # "smoke", "quick" or "full"
    rounds: int
    loops: tuple[str, ...]
    subjects: tuple[Subject, ...]
    say: Callable[[str], None]

    def pick(self, smoke: V, quick: V, full: V) -> V:
        """The value for the size of the run."""
        return {"smoke": smoke, "quick": quick, "full": full}[self.size]

    def of(self, *families: str) -> tuple[Subject, ...]:
        """The subjects of these families."""
        return tuple(subject for subject in self.subjects if subject.family in families)

    def at_most(self, rounds: int) -> Plan:
        """The same plan with at most that many rounds, for jobs that take long."""
        return replace(self, rounds=min(self.rounds, rounds))


def alternate(plan: Plan, jobs: Mapping[K, Callable[[], V]]) -> dict[K, list[V | Failed]]:
    """Run every job once in each round. Each round begins one job later, so that all jobs see the same machine.

    A job that raises does not run again. The last value of its list is then a `Failed` with the reason.
    """
    names = list(jobs)
    gathered: dict[K, list[V | Failed]] = {name: [] for name in names}
    over: set[K] = set()
    for number in range(plan.rounds):
        first = number % max(1, len(names))
        for name in names[first:] + names[:first]:
            if name in over:
                continue
            label = " ".join(map(str, name)) if isinstance(name, tuple) else str(name)
            plan.say(f"round {number + 1} of {plan.rounds}: {label}")
            gc.collect()
            try:
                gathered[name].append(jobs[name]())
            except Exception as error:  # a peer may raise any error, and the other jobs go on
                over.add(name)
                gathered[name].append(error if isinstance(error, Failed) else Failed(f"{type(error).__name__}: {error}"[:80]))
    return gathered


def run_in(loop_name: str, function: Callable[[], Awaitable[V]], timeout: float) -> V:
    """The result of the coroutine function, in a fresh loop. Raises `Failed` if it takes more than ``timeout`` seconds.

    A function that never lets the loop turn cannot be stopped.
    """
    loop = LOOPS[loop_name]()
    loop.set_exception_handler(lambda loop, context: None)  # silences the leftovers of a function that was stopped
    try:
        asyncio.set_event_loop(loop)
        task: asyncio.Task[V] = loop.create_task(_coroutine(function))
        loop.run_until_complete(asyncio.wait({task}, timeout=timeout))
        if not task.done():
            raise Failed(f"stopped after {timeout:g} s")
        return task.result()
    finally:
        _end(loop)
        asyncio.set_event_loop(None)
        loop.close()


async def _coroutine(function: Callable[[], Awaitable[V]]) -> V:
    return await function()


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that still run, and wait for them, for a limited time."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_GOODBYE))
    for task in tasks:
        if task.done():
            if not task.cancelled():
                task.exception()
        else:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's
    loop.run_until_complete(loop.shutdown_asyncgens())


def child(module: str, *arguments: str, timeout: float = 120.0) -> str:
    """The output of ``child(*arguments)`` of a module of this package, in a new interpreter with cached bytecode."""
    code = "import sys; from importlib import import_module; import_module('benchmarks.' + sys.argv[1]).child(*sys.argv[2:])"
    return python(code, module, *arguments, timeout=timeout)


def python(code: str, *arguments: str, timeout: float = 120.0) -> str:
    """The output of the code in a new interpreter. Raises `Failed` with the last line of its error output."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=timeout, env=environment(), check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"stopped after {timeout:g} s") from None
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:80])
    return done.stdout


def environment() -> dict[str, str]:
    """The environment of a new interpreter that imports the same files as this one, with cached bytecode."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def part(values: Iterable[Any], place: int) -> list[Any]:
    """One of several figures of each round. A `Failed` stays as it is."""
    return [value if isinstance(value, Failed) else value[place] for value in values]


def in_tens(number: float) -> str:
    """The number with a space between thousands: "1 000 000"."""
    return f"{number:,.0f}".replace(",", " ")
