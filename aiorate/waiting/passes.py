"""Passes: the tickets in the line of a shared limit that stand there for the first of other lines."""

from __future__ import annotations

from asyncio import InvalidStateError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.fair_queue import Flow
    from aiorate.waiting.line import Outcome, Ticket
    from aiorate.waiting.waiters import Waiters

__all__ = ["Pass", "Passes"]


class Passes:
    """The passes that a shared limit has decided, and whose lines have yet to be served.

    They are served between two grants of the shared limit, so that the next request of the same line stands there before the next permit
    is granted. Where the shared limit fails them, they are served once it is done, because they come back to it with a grant that
    nobody needs.
    """

    __slots__ = ("_decided", "_serving", "late")

    def __init__(self) -> None:
        self.late: int = 0
        """How many ns late the wake-up is at which the shared limit decides now."""
        self._decided: list[Pass] = []
        self._serving = False

    def add(self, decided: Pass) -> None:
        self._decided.append(decided)

    def serve(self) -> None:
        """Serve the lines, also those whose passes are decided meanwhile."""
        if self._serving or not self._decided:
            return
        self._serving = True
        try:
            for decided in self._decided:  # the list grows meanwhile
                if decided.serve is not None:
                    decided.serve()
        finally:
            self._serving = False  # first: a signal handler may raise after the call
            self._decided.clear()


class Pass:
    """A ticket in the shared line, for the first of another line. It wakes no task: once it is decided, that line is served."""

    __slots__ = ("_outcome", "_passes", "flow", "late", "owner", "permits", "serve", "waiters")

    def __init__(self, owner: Ticket, permits: int, flow: Flow, passes: Passes) -> None:
        self.owner: Ticket = owner
        self.permits: int = permits
        self.flow: Flow = flow  # of the line for which it stands
        self.late: int = 0  # how many ns the wake-up was at which it was decided
        self.waiters: Waiters | None = None
        self.serve: Callable[[], None] | None = None  # none while it joins: pass_through() looks then
        self._passes = passes
        self._outcome: Outcome | None = None

    def done(self) -> bool:
        return self._outcome is not None

    def cancelled(self) -> bool:
        return False

    def result(self) -> Outcome:
        if self._outcome is None:
            raise InvalidStateError
        return self._outcome

    def set_result(self, outcome: Outcome, /) -> None:
        self._outcome, self.late = outcome, self._passes.late
        if self.serve is not None:
            self._passes.add(self)
