"""The requests of one limiter that wait in one event loop. Knows nothing of rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.fair_line import FairLine
from aiorate.waiting.line import Line

if TYPE_CHECKING:
    from aiorate.waiting.deadlines import Deadlines
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.driver import Driver
    from aiorate.waiting.fair_line import AnyLine
    from aiorate.waiting.line import Ticket
    from aiorate.waiting.view import EventLoop

__all__ = ["NOBODY", "Waiters"]


class Waiters:
    """A line, the driver that wakes the requests in it, and their deadlines."""

    __slots__ = ("deadlines", "driver", "due", "granting", "head", "interrupted", "line", "loop", "resuming")

    driver: Driver
    loop: EventLoop

    def __init__(self) -> None:
        self.line: AnyLine = Line()
        self.deadlines: Deadlines | None = None
        """Of the requests with a ``max_wait``; None: there were none."""
        self.head: Ticket | None = None
        """The ticket for which the driver is armed; None: nobody waits."""
        self.due: int | None = None
        """The instant at which `head` is due; None: unknown, as while paused. Meaningless without `head`."""
        self.resuming: int = 0
        """Requests that were granted and whose tasks have not gone on yet."""
        self.granting: bool = False
        """Whether requests are being granted: the garbage collector may run the end of another request in the middle of that."""
        self.interrupted: bool = False
        """Whether it did, and something may have changed."""

    @classmethod
    def of(cls, dispatcher: Dispatcher, loop: EventLoop) -> Waiters:
        """The requests that are going to wait in that loop."""
        waiters = cls()
        waiters.loop, waiters.driver = loop, loop.make_driver(dispatcher)
        if dispatcher.passes is not None:
            waiters.line = FairLine()
        return waiters

    def leave(self, ticket: Ticket, permits: int) -> None:
        """Remove a request that was not granted."""
        self.line.leave(ticket, permits)
        if self.deadlines is not None:
            self.deadlines.leave(ticket, len(self.line))

    def fail(self, error: BaseException) -> None:
        """Fail every request in line."""
        request = self.line.first()
        while request is not None:  # one by one: if this is interrupted, no request is out of the line and undecided
            request[0].set_result(again(error))
            request = self.line.pop_first()
        self.head = None

    def disband(self) -> None:
        """The loop is no longer used: every request still waiting fails, if its loop can still wake it."""
        if not self.loop.forked:  # else the waiting tasks are in another process
            for ticket in self.line.clear():
                try:
                    ticket.set_result(RuntimeError("the limiter was moved to another event loop while this one stood still"))
                except RuntimeError:  # a closed loop wakes nobody
                    continue
            self.retire()
        if self.deadlines is not None:
            self.deadlines.retire()

    def retire(self) -> None:
        """Part with the driver, which refers to the dispatcher, so that both are freed at once."""
        self.driver.retire()


NOBODY = Waiters()
"""Shared by all limiters for which nobody has ever waited: a line weighs as much as the rest of a limiter. Has no driver and no loop."""


def again(error: BaseException) -> BaseException:
    """Another instance of the error: raised in many tasks, a single one would collect the frames of them all."""
    from copy import copy

    try:
        twin = copy(error)
    except Exception:  # its class wants other arguments than it has kept
        twin = RuntimeError(f"{type(error).__name__}: {error}")
    if twin is not error:
        twin.__cause__ = error.__cause__
    return twin
