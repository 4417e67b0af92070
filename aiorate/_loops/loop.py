"""The Loop protocol: all that limiters need of the event loop that runs their callers, and of the clock. Never the wall clock.

There is one for asyncio, one for trio, and one for all loops and threads of a process together. Knows nothing of rates, nor who is next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from aiorate._meter import LoopCheck


GRAIN_NS = 1_000_000  # between wake-ups: loops' timers may fire early, and must not make a limiter spin (uvloop#233)
LONGEST_NS = 86_400 * NS_PER_SECOND  # not all loops can wait for longer, and a deadline may be a float; the clock is read again then


@runtime_checkable
class Clock(Protocol):
    """The source of a limiter's time.

    A clock may keep its own timers: if it has ``call_at(instant, callback)``, returning a handle with ``cancel()``, it wakes the
    limiter. Otherwise the loop's timers wake the limiter, which then reads the clock.
    """

    def now(self) -> int:
        """Return nanoseconds since any origin. It should not go back; if it does, no harm is done."""
        ...


class ReadClock(Protocol):
    """The cheapest callable that reads a clock, in ns."""

    def __call__(self) -> int:
        """Read the clock."""
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


class Ticket(Protocol):
    """What a waiter holds: the part of `asyncio.Future` that tells an outcome."""

    def done(self) -> bool:
        """Whether its owner may go on, which may be later than its `set_result`."""
        ...

    def cancelled(self) -> bool:
        """Whether its owner is being cancelled, but has not run since."""
        ...

    def result(self) -> Any:
        """The outcome. Raises InvalidStateError or CancelledError if it was not decided."""
        ...

    def set_result(self, outcome: Any, /) -> None:
        """Decide it, and let its owner go on."""
        ...


class Decider(Protocol):
    """Decides for those who wait."""

    def look(self) -> None:
        """Decide as far as can be now."""
        ...

    def fail(self, error: BaseException) -> None:
        """Let all go on with that error."""
        ...


class Waker(Protocol):
    """Lets those who hold its tickets wait, and wakes them."""

    __slots__ = ()

    def ticket(self) -> Ticket:
        """Make a ticket for somebody who is going to wait."""
        ...

    def wait(self, ticket: Any, /) -> Awaitable[object]:
        """Return what its owner awaits, again and again until the ticket is done."""
        ...

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


class Loop(Waker, Protocol):
    """An event loop of asyncio, uvloop or trio, as limiters with a certain clock see it; or all loops and threads of a process as one."""

    __slots__ = ()

    # The clock.

    monotonic: bool
    """Whether its clock is ``time.monotonic_ns``, which other loops go by too."""
    steady: bool
    """Whether its clock goes on by itself as long as the process runs, so that a caller may be served before anybody sees who it is."""
    manual: bool
    """Whether the clock keeps its own timers, and time does not pass by itself."""
    grain: int
    """Nanoseconds that wake-ups are kept apart."""
    read: ReadClock
    """Reads the clock that callers on this loop go by, in ns."""

    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        """Call back when the clock reads ``reading`` ns, or roughly then: a timer is a hint, the clock is the judge."""
        ...

    # The loop itself.

    native: Any
    """The loop itself, by which it is told from others; None: it is all of them."""

    @property
    def running(self) -> bool:
        """Whether the loop runs now, in any thread of this process."""
        return not self.closed

    @property
    def closed(self) -> bool:
        """Whether the loop can never run again in this process."""
        ...

    @property
    def ended(self) -> bool:
        """Whether that is known without asking the loop, which would wake it."""
        return self.closed

    @property
    def forked(self) -> bool:
        """Whether the loop belongs to another process, and was copied by a fork."""
        ...

    def post(self, callback: Callable[[], object]) -> None:
        """Call back in the loop's next iteration. Any thread may ask. Raises RuntimeError or OSError if the loop never runs again."""
        ...

    # Its waiters.

    def filler(self, decider: Decider, name: str | None) -> Waker:
        """What wakes those who wait for a token pool: a task of that name, or the loop, as all others."""
        return self

    def signal(self) -> Any:
        """Make a ticket without an outcome. Called where it is waited for, as `wake` is."""
        ...

    def wake(self, signal: Any, /) -> None:
        """Let the owner of a signal go on, if it still waits."""
        ...

    def owner(self) -> asyncio.Task[Any] | None:
        """The task that runs here, if any thread can see whether it is being cancelled; otherwise None."""
        ...

    # Whether it has turned.

    check: LoopCheck
    """Until when no caller needs to ask whether the loop is `starved`."""

    def starved(self) -> bool:
        """Whether the loop has not run its other tasks for 5 to 10 ms, so that the calling task must await `turn` before it goes on.

        False where the clock is moved by hand, for a caller that is not a task of this loop, and in a thread without a loop.
        """
        ...

    def turn(self) -> Awaitable[object]:
        """Return what to await in a starved loop: it runs its other tasks, and callers that came before go on first."""
        ...

    def room(self, resuming: int, woken: int) -> int:
        """How many more tasks a line may wake in this iteration, after ``woken`` just now, with ``resuming`` that have yet to go on."""
        ...

    def yield_once(self) -> Awaitable[object]:
        """Return what to await to let the loop run one iteration."""
        ...


def call_back(callback: Callable[[], object], where: str) -> bool:
    """Call it where no caller could handle an error, which is logged with where it happened. Returns whether there was none."""
    try:
        callback()
    except Exception:
        import logging

        logging.getLogger("aiorate").exception("A limiter's callback failed %s.", where)
        return False
    return True
