"""The Loop: all that limiters need of the event loop that runs their callers, and of the clock. Never the wall clock.

There is one for asyncio, one for trio, and one for all loops and threads of a process together. Knows nothing of rates, nor who is next.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from asyncio import Future, InvalidStateError
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from aiorate._meter import FAR, LoopCheck
from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


GRAIN_NS = 1_000_000  # between wake-ups: loops' timers may fire early, and must not make a limiter spin (uvloop#233)
MOST = 1_000  # callers woken in one iteration of a loop; more would delay the next iteration for too long
LONGEST_NS = 86_400 * NS_PER_SECOND  # not all loops can wait for longer, and a deadline may be a float; the clock is read again then


ReadClock: TypeAlias = "Callable[[], int]"  # the cheapest callable that reads a clock, in ns


@runtime_checkable
class Clock(Protocol):
    """The source of a limiter's time.

    A clock may keep its own timers: if it has ``call_at(instant, callback)``, returning a handle with ``cancel()``, it wakes the
    limiter. Otherwise the loop's timers wake the limiter, which then reads the clock.
    """

    def now(self) -> int:
        """Return nanoseconds since any origin. It should not go back; if it does, no harm is done."""
        ...


class Handle(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Never call back."""
        ...


@runtime_checkable
class TimedClock(Clock, Protocol):
    """A clock that keeps its own timers, such as one that is moved by hand."""

    def call_at(self, instant: int, callback: Callable[[], None]) -> Handle:
        """Call back when the clock reads ``instant`` ns."""
        ...


class FutureTicket(Future[Any]):
    """A request that waits: a future for its outcome, and what its line keeps with it."""

    __slots__ = ("asked", "epoch", "left", "since", "wanted")
    wanted: Any
    """The permits that it wants."""
    since: int
    """The instant since when it stands in line."""
    asked: int
    """What the clock read when it was asked for."""
    epoch: int
    """That of its tree at the time."""
    left: bool
    """Whether it has left its line, and was not granted."""


class OutcomeTicket:
    """The same where its owner awaits a signal."""

    __slots__ = ("asked", "epoch", "left", "outcome", "signal", "since", "wanted")
    wanted: Any
    since: int
    asked: int
    epoch: int
    left: bool

    def __init__(self) -> None:
        self.outcome: Any = None
        self.signal: Any = None

    def done(self) -> bool:
        """Whether its owner may go on, which may be later than its `set_result`."""
        return self.outcome is not None

    def cancelled(self) -> bool:
        """Whether its owner is being cancelled, but has not run since."""
        return self.outcome is None and isinstance(self.signal, Future) and self.signal.cancelled()

    def result(self) -> Any:
        """The outcome. Raises InvalidStateError if it was not decided."""
        if self.outcome is None:
            raise InvalidStateError
        return self.outcome

    def set_result(self, outcome: Any, /) -> None:
        """Decide it, and let its owner go on."""
        raise NotImplementedError


Ticket: TypeAlias = FutureTicket | OutcomeTicket  # what a waiter holds; of a future, only what the other has too


class Decider(Protocol):
    """Decides for those who wait."""

    def look(self) -> None:
        """Decide as far as can be now."""
        ...

    def fail(self, error: BaseException) -> None:
        """Let all go on with that error."""
        ...


class Waker(ABC):
    """Lets those who hold its tickets wait, and wakes them."""

    __slots__ = ()

    def ticket(self) -> Ticket:
        """Make a ticket for somebody who is going to wait here."""
        raise NotImplementedError  # where the callers are in other threads, which bring theirs

    @abstractmethod
    def wait(self, ticket: Any, /) -> Awaitable[object]:
        """Return what its owner awaits, again and again until the ticket is done."""

    def leave(self, ticket: Any, /) -> None:
        """Forget a ticket whose owner was cancelled."""
        return

    def ring(self, decider: Decider) -> None:
        """The first is due: have the decider look, now or in a task of its own."""
        decider.look()

    def retire(self) -> None:
        """Have nothing decided from now on: its owners are in a loop that is no longer used."""
        return

    async def aclose(self) -> None:
        """Return once no task is left. All who waited have failed before."""
        return


class Loop(Waker):
    """An event loop of asyncio, uvloop or trio, as limiters with a certain clock see it; or all loops and threads of a process as one."""

    __slots__ = ("__weakref__", "_process", "_timers", "check", "grain", "manual", "monotonic", "native", "read", "steady")

    def __init__(self, native: Any, read: ReadClock, clock: Clock | None) -> None:
        self.native: Any = native
        """The loop itself, by which it is told from others; None: it is all of them."""
        self.read: ReadClock = read if clock is None else clock.now
        """Reads the clock that callers on this loop go by, in ns."""
        self.monotonic: bool = self.read is monotonic_ns
        """Whether that is ``time.monotonic_ns``, which other loops go by too."""
        self._timers = clock if isinstance(clock, TimedClock) else None
        self.manual: bool = self._timers is not None
        """Whether the clock keeps its own timers, and time does not pass by itself."""
        self.steady: bool = False
        """Whether its clock goes on by itself as long as the process runs, so that a caller may be served before anybody sees who it is."""
        self.grain: int = GRAIN_NS
        """Nanoseconds that wake-ups are kept apart."""
        self.check: LoopCheck = LoopCheck()
        """Until when no caller needs to ask whether the loop is `starved`."""
        self._process = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether it belongs to another process, and was copied by a fork."""
        return self._process != os.getpid()

    @property
    def running(self) -> bool:
        """Whether the loop runs now, in any thread of this process."""
        return not self.closed

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the loop can never run again in this process."""

    @abstractmethod
    def post(self, callback: Callable[[], object]) -> None:
        """Call back in the loop's next iteration. Any thread may ask. Raises RuntimeError or OSError if the loop never runs again."""

    @abstractmethod
    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        """Call back when the clock reads ``reading`` ns, or roughly then: a timer is a hint, the clock is the judge."""

    def filler(self, decider: Decider, name: str | None) -> Waker:
        """What wakes those who wait for a token pool: a task of that name, or the loop, as all others."""
        return self

    @abstractmethod
    def starved(self) -> bool:
        """Whether the loop has not run its other tasks for 5 to 10 ms, so that the calling task must await `turn` before it goes on.

        False where the clock is moved by hand, for a caller that is not a task of this loop, and in a thread without a loop.
        """

    @abstractmethod
    def turn(self) -> Awaitable[object]:
        """Return what to await in a starved loop: it runs its other tasks, and callers that came before go on first."""

    @property
    def most(self) -> int:
        """How many tasks may be woken in one iteration of the loop."""
        return FAR if self.manual else MOST


def call_back(callback: Callable[[], object], where: str) -> bool:
    """Call it where no caller could handle an error, which is logged with where it happened. Returns whether there was none."""
    try:
        callback()
    except Exception:
        import logging

        logging.getLogger("aiorate").exception("A limiter's callback failed %s.", where)
        return False
    return True
