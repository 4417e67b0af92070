"""The Loop: all that limiters need of the event loop that runs their callers.

There is one for asyncio, one for trio, and one for all loops and threads of a process together. Knows nothing of rates.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from asyncio import Future
from collections import OrderedDict, deque
from contextlib import suppress
from itertools import islice
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from aiorate._meter import FAR, LoopCheck

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


_AT_ONCE = 64  # callers let through in one iteration: resuming so many in vain takes 0.2 ms
LOOP_CHECK_NS = 5_000_000  # two checks within the 10 ms for which callers may keep a loop busy


ReadClock: TypeAlias = "Callable[[], int]"  # the cheapest callable that reads a clock, in ns


@runtime_checkable
class Clock(Protocol):
    """The source of a limiter's time.

    A clock may keep its own timers: if it has ``call_at(instant, callback)``, returning a handle with ``cancel()``, it wakes the
    limiter. Otherwise the loop's timers do.
    """

    def now(self) -> int:
        """Return nanoseconds since any origin. It should not go back; if it does, no harm is done."""
        ...


class Handle(Protocol):
    """A timer."""

    def cancel(self) -> None: ...


class _Request:
    """What the line of a request keeps with its ticket."""

    __slots__ = ()
    wanted: Any  # the permits
    since: int  # the instant since when it stands in line
    asked: int  # what the clock read when it was made
    most_ns: int | None  # for how long it may wait; None: as long as it takes
    epoch: int  # that of its tree at the time
    left: bool  # whether its owner waits no longer: then it is not granted


class FutureTicket(Future[Any], _Request):
    """A request that waits: a future for its outcome."""

    __slots__ = ("asked", "epoch", "left", "most_ns", "since", "wanted")

    @property
    def outcome(self) -> Any:
        """None: not decided, or only after its owner was cancelled."""
        return self.result() if self.done() and not self.cancelled() else None


class OutcomeTicket(_Request):
    """The same where its owner awaits a signal."""

    __slots__ = ("asked", "epoch", "left", "most_ns", "outcome", "signal", "since", "waker", "wanted")

    def __init__(self, waker: Waker, signal: Any = None) -> None:
        self.outcome: Any = None
        self.signal: Any = signal
        self.waker: Waker = waker

    def done(self) -> bool:
        return self.outcome is not None

    def set_result(self, outcome: Any, /) -> None:
        self.outcome = outcome
        self.waker.wake(self.signal)


Ticket: TypeAlias = FutureTicket | OutcomeTicket  # of a future, use only what the other has


class Waker(ABC):
    """Lets the owners of its tickets wait, and wakes them."""

    __slots__ = ()

    def ticket(self) -> Ticket:
        raise NotImplementedError  # where the callers are in other threads, which bring theirs

    @abstractmethod
    def wait(self, ticket: Any, /) -> Awaitable[object]:
        """Return what its owner awaits, again until the ticket is done."""

    def wake(self, signal: Any, /) -> None:
        """Let the owner of a signal go on, if it still waits. Called where the owner waits."""
        raise NotImplementedError  # there, the loops of the callers wake them

    def ring(self) -> bool:
        """The first is due. Returns whether a task of its own looks."""
        return False

    async def aclose(self) -> None:
        """Return once no task is left. Nobody waits by then."""
        return


class Loop(Waker):
    """An event loop; or all loops and threads of a process as one."""

    __slots__ = ("__weakref__", "_process", "check", "monotonic", "native", "read", "steady")

    def __init__(self, native: Any, read: ReadClock) -> None:
        self.native: Any = native  # the loop itself; None: it is all of them
        self.read: ReadClock = read
        self.monotonic: bool = read is monotonic_ns  # whether other loops go by the same clock
        # Whether its clock goes on by itself while the process runs, so that a caller may be served before anybody sees who it is.
        self.steady: bool = False
        self.check: LoopCheck = LoopCheck()  # until when no caller needs to ask whether the loop is `starved`
        self._process = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether a fork copied it from another process."""
        return self._process != os.getpid()

    @property
    def running(self) -> bool:
        """Whether it runs now, in any thread of this process."""
        return not self.closed

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether it can never run again in this process."""

    @abstractmethod
    def post(self, callback: Callable[[], object], /) -> None:
        """Call back in the loop's next iteration, from any thread. Raises RuntimeError or OSError if there is none."""

    @abstractmethod
    def call_after(self, ns: int, callback: Callable[[], object], precise: bool) -> Handle:
        """Call back in about so many nanoseconds: a timer is a hint, the clock is the judge."""

    def filler(self, look: Callable[[], object], fail: Callable[[BaseException], object], name: str | None) -> Waker:
        """What wakes those who wait for a token pool: a task, which calls ``fail`` if ``look`` raises; or the loop, as all others."""
        return self

    @abstractmethod
    def starved(self) -> OneLoop | None:
        """The caller's loop, if it has not run its other tasks for 5 to 10 ms, so that the calling task must await its `turn`.

        None for a caller that is not a task of this loop, and in a thread without a loop.
        """


class OneLoop(Loop):
    """What the loops of all families have in common: whether they turn.

    A caller that finds the loop starved waits for its turn. Each iteration lets some callers through, in order of arrival. Those that find
    the loop starved again keep their places, but the first of them always goes on. Without callers, there is no timer or callback in it.
    """

    __slots__ = ("_first", "_handed", "_queue", "_since")

    @staticmethod
    @abstractmethod
    def here() -> object | None:
        """The loop of this family that runs in this thread, if any."""

    @staticmethod
    @abstractmethod
    def task() -> object | None:
        """The task of this family that runs in this thread, if any."""

    def __init__(self, native: Any, read: ReadClock) -> None:
        super().__init__(native, read)
        self._queue: OrderedDict[object, Any] = OrderedDict()  # callers in order of arrival, each with its signal
        self._first: object = None  # of those let through last
        self._since: int | None = None  # the first reading in this iteration; None: it is not watched
        self._handed: deque[Any] = deque()

    @property
    def ended(self) -> bool:
        """Whether it is known to be closed. Asking `closed` may wake it."""
        return self.closed

    @abstractmethod
    def signal(self) -> Any:
        """Make what to `wait` for once, in the loop."""

    def hand(self, signal: Any) -> bool:
        """Have the loop wake the owner of that signal, from any thread. Returns whether `send` must follow: once for any number of them."""
        self._handed.append(signal)
        return len(self._handed) == 1

    def send(self) -> None:
        """Wake the loop, unless it is closed."""
        with suppress(RuntimeError, OSError):
            self.post(self._deliver)

    def _deliver(self) -> None:
        while self._handed:
            self.wake(self._handed.popleft())

    def starved(self) -> OneLoop | None:
        now = self.read()
        if now < self.check.until or self.here() is not self.native or self.task() is None:
            return None  # the caller may be a task of a guest of the loop, such as a trio run
        held_for = self._held_for()
        until = now - held_for + LOOP_CHECK_NS
        self.check.until = until if -FAR < until < FAR else 0  # virtual time may be anything
        return self if held_for >= LOOP_CHECK_NS else None

    def _held_for(self) -> int:
        """Nanoseconds since the loop last ran its other tasks; 0 if it was not watched. Watches it from now on."""
        now = self.read()
        since = self._since
        if since is None:
            since = self._since = now
            self.post(self._on_iteration)
        return now - since  # another thread may ask, and the loop may have run an iteration meanwhile

    async def turn(self) -> None:
        """In a starved loop: return once it has run its other tasks, and callers that came before have gone on."""
        self._held_for()
        me = object()
        try:
            while True:
                signal = self._queue[me] = self.signal()
                await self.wait(signal)
                if self._first is me or self._held_for() < LOOP_CHECK_NS:
                    return
        finally:
            self._queue.pop(me, None)

    def _on_iteration(self) -> None:
        self._since, self._first = None, next(iter(self._queue), None)
        for signal in islice(self._queue.values(), _AT_ONCE):
            self.wake(signal)
        if self._queue:
            self._held_for()


def call_back(callback: Callable[[], object], where: str) -> None:
    """Call it where no caller could handle an error: errors are logged."""
    try:
        callback()
    except Exception:
        import logging

        logging.getLogger("aiorate").exception("A limiter's callback failed %s.", where)
