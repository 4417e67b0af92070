"""The stage of a short program: a loop in virtual time that knows its timers, a scheduler that notes its grants, and those who ask."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from helpers.driving import SECOND, others

import aiorate
from aiorate.testing import ManualClock, VirtualLoop

__all__ = ["HOLDS", "Level", "Stage", "Subject", "World", "noted"]

HOLDS = 0.15  # seconds that a caller stays inside
FAR = 50  # grants in a row that windows are compared with bounds for
PATIENT = 400  # virtual seconds: what was not granted by then never will be


class World(VirtualLoop):
    """Virtual time that can also pass while the loop stands still. It knows the timers that were set."""

    def __init__(self) -> None:
        self.leapt = 0.0
        self._handles: list[asyncio.TimerHandle] = []
        super().__init__()
        self.set_exception_handler(lambda loop, context: None)  # tasks that a loop leaves behind are what some programs are about

    def time(self) -> float:
        return super().time() + self.leapt

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._handles.append(handle)
        return handle

    def timers(self) -> int:
        """How many are still to fire."""
        self._handles = [handle for handle in self._handles if not handle.cancelled() and handle.when() > self.time()]
        return len(self._handles)


class Notes:
    """A mixin of a strategy that notes its grants and what came back."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.grants: list[int] = []
        self.back: list[int] = []
        self.hook: Callable[[object], object] | None = None
        """Called after the next grant, with the one that granted: a copy, made for an estimate, has the same one."""

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at: int = super().take(permits, now, since)  # type: ignore[misc]
        if at <= now:
            self.grants += [now] * permits
            if self.hook is not None:
                self.hook(self)
        return at

    def charge(self, permits: int, now: int) -> None:
        grants = list(self.grants)
        super().charge(permits, now)  # type: ignore[misc]  # which may take them
        self.grants = grants

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        super().give_back(permits, now, taken)  # type: ignore[misc]
        if taken is not None:
            self.back += [taken] * permits


def noted(strategy: type[aiorate.Scheduler], *args: Any, **options: Any) -> Any:
    """A strategy whose ``kept()`` are the instants of what it granted."""
    return type(f"Noted{strategy.__name__}", (Notes, strategy), {})(*args, **options)


@dataclass
class Level:
    """One limit on the way of a request."""

    grants: Callable[[], list[int]]
    """The instants of what it granted and what did not come back."""
    bound: Callable[[int], int | None]
    """What it promises for a window of that many ns."""
    notes: Notes | None = None
    held: object = None
    """What must not be evicted."""

    @classmethod
    def of(cls, scheduler: Any, catch_up: int = SECOND // 50, largest: int = 1) -> Level:
        def kept() -> list[int]:
            counted = Counter(scheduler.grants)
            counted.subtract(scheduler.back)
            return sorted(counted.elements())

        return cls(kept, lambda window: scheduler.bound_when_late(window, largest, catch_up), scheduler)


@dataclass
class Subject:
    """A limiter of some kind, as the programs see it."""

    who: Any
    """What is closed, and what has the verbs that change it, unless ``steered`` says otherwise."""
    enter: Callable[[int], AbstractAsyncContextManager[Any]]
    """How request number ``i`` asks."""
    levels: dict[str, Level]
    path: Callable[[int], tuple[str, ...]]
    """The levels of a request; the first one is its line."""
    looks: Callable[[], list[Any]]
    """What has the statistics of all requests."""
    steered: Callable[[], Any] | None = None
    also: tuple[Any, ...] = ()
    """What has to be closed besides."""

    @property
    def verbs(self) -> Any:
        return self.who if self.steered is None else self.steered()


@dataclass
class Stage:
    """One program: a subject, those who ask it, and what became of them."""

    options: dict[str, Any]
    clock: ManualClock | None = None
    server_has_time: bool = False
    runner: asyncio.Runner = field(default_factory=lambda: asyncio.Runner(loop_factory=World))
    subject: Subject = None  # type: ignore[assignment]  # made of the options and the clock
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    granted: dict[int, int] = field(default_factory=dict)
    told: dict[int, type[BaseException]] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    """Those whose loop was closed under them while they waited."""
    left: bool = False
    """Whether a loop was closed under its tasks."""
    waits: dict[int, float] = field(default_factory=dict)
    """Seconds from asking until granted or told."""
    stalled: float = 0.0
    extra: int = 0
    """Permits more that any window may hold, because they were given back."""
    since: dict[str, int] = field(default_factory=dict)
    """For each level, how many grants were made before its rate was changed."""
    closed: bool = False
    reset: bool = False
    quiet: tuple[int, int] = (0, 0)
    """From when until when nothing may be granted."""

    @property
    def loop(self) -> World:
        loop = self.runner.get_loop()
        assert isinstance(loop, World)
        return loop

    def now(self) -> int:
        return self.clock.now() if self.clock is not None else round(self.loop.time() * SECOND)

    async def sleep(self, seconds: float) -> None:
        """Let that much time pass."""
        if self.clock is None:
            await asyncio.sleep(seconds)
        else:
            await self.clock.run(seconds)

    def stall(self, seconds: float) -> None:
        """Let time pass while the loop does not turn."""
        self.stalled += seconds
        if self.clock is None:
            self.loop.leapt += seconds
        else:
            self.clock.advance(seconds)

    async def hold(self, seconds: float) -> None:
        """Be inside for so long."""
        if self.clock is None:
            await asyncio.sleep(seconds)
        else:
            over, loop = asyncio.Event(), asyncio.get_running_loop()
            self.clock.call_at(self.clock.now() + round(seconds * SECOND), lambda: loop.is_closed() or over.set())
            await over.wait()

    def ask(self, *numbers: int) -> None:
        """Start tasks that each ask once."""
        for number in numbers:
            self.asked.append(number)
            self.tasks[number] = self.loop.create_task(self._one(number), name=str(number))

    async def _one(self, number: int) -> None:
        asked = self.now()
        try:
            async with self.subject.enter(number):
                self.granted[number] = self.now()
                self.waits[number] = (self.now() - asked) / SECOND
                await self.hold(HOLDS)
        except GeneratorExit:  # collected with its loop
            raise
        except BaseException as error:
            if number not in self.granted:
                self.waits[number] = (self.now() - asked) / SECOND
                self.told[number] = type(error)  # the class, as its traceback would keep the loop
            if not isinstance(error, (aiorate.WaitTooLong, aiorate.LineFull, aiorate.LimiterClosed, asyncio.CancelledError)):
                raise

    def cancel(self, number: int) -> None:
        if not self.tasks[number].done():
            self.cancelled.add(number)
            self.tasks[number].cancel()

    def pending(self) -> list[int]:
        """Those who have neither been granted nor told, in order of arrival."""
        return [number for number in self.asked if number not in self.granted and number not in self.told | dict.fromkeys(self.cancelled)]

    async def done(self) -> None:
        """Return when all have been granted or told."""
        for second in range(PATIENT):
            if all(task.done() for task in self.tasks.values()):
                break
            if self.left and second < 2:
                gc.collect()  # as time will do: the tasks of a closed loop leave their places
            await self.sleep(1)

    def close(self) -> None:
        """End the loop, and with it whatever still runs."""
        self.runner.close()

    def begin_anew(self) -> None:
        """A loop that has not run yet, as after `asyncio.run()`. Its time begins at 0, but for those whose server has the time."""
        time = self.loop.time()
        if not self.loop.is_closed():
            self.runner.close()
        asyncio.set_event_loop(None)
        self.runner = asyncio.Runner(loop_factory=World)
        if self.server_has_time:
            self.loop.leapt = time

    def check_bounds(self) -> None:
        """No window of any level holds more than its bound, of what was granted since the last change of its rate."""
        for name, level in self.subject.levels.items():
            grants = level.grants()[self.since.get(name, 0) :]
            for first, begin in enumerate(grants):
                for last in range(first + 1, min(first + FAR, len(grants))):
                    window = grants[last] - begin + 1
                    most = level.bound(window)
                    assert most is None or last - first + 1 <= most + self.extra, (
                        f"{name}: {last - first + 1} in {window / SECOND} s, where {most} are allowed: {grants}"
                    )

    def changes(self) -> None:
        """From here on, other bounds hold."""
        self.check_bounds()
        self.since = {name: len(level.grants()) for name, level in self.subject.levels.items()}

    def left_behind(self) -> list[str]:
        """What an idle limiter should not have."""
        found = [f"task {task!r}" for task in others()]
        timers = self.loop.timers() if self.clock is None else self.clock.timers
        found += [f"{timers} timers"] * bool(timers)
        for look in self.subject.looks():
            waiting = look.statistics().waiting
            found += [f"{waiting} wait in {look!r}"] * bool(waiting)
        return found
