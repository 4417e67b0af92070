"""The EventLoop protocol: the view that a limiter has of the event loop that runs its callers.

Three of them: of asyncio, of trio, and of all loops and threads of a process, for ``scope="process"``.
A limiter whose own clock and timers are the loop's shares the view with all others of that loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiorate._loops.clock import Handle, ReadClock
    from aiorate._loops.driver import Driver
    from aiorate._tree.node import Node

__all__ = ["EventLoop"]


class EventLoop(Protocol):
    """What a limiter needs of an event loop: asyncio's, uvloop's or trio's, or of all loops and threads of a process as one."""

    monotonic: bool
    """Whether its clock is ``time.monotonic_ns``, which other loops go by too."""
    steady: bool
    """Whether its clock goes on by itself as long as the process runs, so that a caller may be served before anybody sees who it is."""
    manual: bool
    """Whether the clock keeps its own timers, and time does not pass by itself."""
    grain: int
    """Nanoseconds that wake-ups are kept apart."""
    check_after: int
    """The reading of the clock before which no caller needs to ask whether the loop is `starved`. `NEVER`, if it is moved by hand."""

    @property
    def native(self) -> object:
        """The loop itself, by which it is told from others."""
        ...

    @property
    def read(self) -> ReadClock:
        """Reads the clock that callers on this loop go by, in ns."""
        ...

    @property
    def running(self) -> bool:
        """Whether the loop runs now, in any thread of this process."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the loop can never run again in this process."""
        ...

    @property
    def forked(self) -> bool:
        """Whether the loop belongs to another process, and was copied by a fork."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call back in the loop's next iteration."""
        ...

    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        """Call back when the clock reads ``reading`` ns, or roughly then: a timer is a hint, the clock is the judge."""
        ...

    def yield_once(self) -> Awaitable[object]:
        """Return what to await to let the loop run one iteration."""
        ...

    def starved(self) -> bool:
        """Whether the loop has not run its other tasks for 5 to 10 ms, so that the calling task must await `turn` before it goes on.

        False where the clock is moved by hand, for a caller that is not a task of this loop, and in a thread without a loop.
        """
        ...

    def turn(self) -> Awaitable[object]:
        """Return what to await in a starved loop: it runs its other tasks, and callers that came before go on first."""
        ...

    def room(self, resuming: int) -> int:
        """How many more tasks a line may wake in this iteration, after ``resuming`` that it woke and that have not gone on yet."""
        ...

    def make_driver(self, node: Node) -> Driver:
        """Make the driver that wakes the requests in that node's line."""
        ...
