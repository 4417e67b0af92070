"""The gate: how a request that is first in its own line, and due there, passes a limit that many lines share.

It stands in the line of the shared limit only from that moment on, and only the first of its own line does. So a busy key is one
request among those of all keys; and both limits are spent in one step, or neither. Knows nothing of rates, loops or keys.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from typing import TYPE_CHECKING, Protocol

from aiorate.errors import LimiterClosed
from aiorate.waiting.line import outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.line import Outcome, Ticket

__all__ = ["Gate", "Receipt", "Shared"]


class Shared(Protocol):
    """What a gate knows of the dispatcher of the shared limit."""

    @property
    def closed(self) -> bool:
        """Whether it grants nothing any more."""
        ...

    @property
    def max_permits(self) -> int | None:
        """The most permits it grants at once; None: any number."""
        ...

    def available(self) -> int:
        """How many permits are to be had at once."""
        ...

    def try_take(self, permits: int) -> tuple[int, int]:
        """Take the permits if they are due and nobody is in line: when they are due, and the instant now."""
        ...

    def join(self, permits: int, at: int, now: int, since: int, ticket: Ticket | None = None) -> object:
        """Stand in line with that ticket."""
        ...

    def withdraw(self, ticket: Ticket) -> None:
        """Leave the line again."""
        ...

    def keep_receipt(self) -> None:
        """The permits of a grant may come back."""
        ...

    def drop_receipt(self) -> None:
        """They may not any more."""
        ...

    def resume_one(self) -> None:
        """As `drop_receipt`, for a grant out of the line."""
        ...

    def cancel(self, permits: int, granted_at: int) -> None:
        """Undo a grant for which `keep_receipt` was called."""
        ...

    def cancel_in_line(self, permits: int, granted_at: int) -> None:
        """Undo a grant out of the line."""
        ...

    def estimate(self, permits: int, now: int) -> int | None:
        """Nanoseconds until a request made now would be granted; None: nobody can say."""
        ...

    def look(self) -> int:
        """The instant."""
        ...


class Receipt(int):
    """The instant of a grant in its own line, with that of the shared limit, whose pauses are its own."""

    shared: int
    stood: bool
    """Whether the request stood in the shared line, which then waits to hear that its owner went on."""

    def __new__(cls, granted_at: int, shared: int, stood: bool) -> Receipt:
        receipt = super().__new__(cls, granted_at)
        receipt.shared, receipt.stood = shared, stood
        return receipt


class _Pass:
    """A ticket in the shared line. It wakes no task: once decided, it has its own line served in the same step."""

    __slots__ = ("_decided", "_outcome")

    def __init__(self, decided: Callable[[], None]) -> None:
        self._decided = decided
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
        self._outcome = outcome
        self._decided()


class Gate:
    """The way from one line through the shared limit. At most one request of the line stands there: the first."""

    __slots__ = ("_entering", "_pass", "_permits_of", "_serve", "_shared", "_ticket")

    def __init__(self, shared: Shared, serve: Callable[[], None], permits_of: Callable[[int], int] | None = None) -> None:
        self._shared = shared
        self._serve = serve
        self._permits_of = _as_many if permits_of is None else permits_of
        self._pass: _Pass | None = None
        self._ticket: Ticket | None = None  # of the request that stands in the shared line, in its own
        self._entering = False

    def ask(self, permits: int, now: int) -> Receipt | None:
        """Take the shared permits if they are to be had at once; None: they are not."""
        at, shared_now = self._shared.try_take(self._permits_of(permits))
        return Receipt(now, shared_now, stood=False) if at <= shared_now else None

    def pass_through(self, ticket: Ticket, permits: int, now: int) -> Receipt | BaseException | None:
        """The shared permits for the first of its line, which is due there; None: it stands in the shared line until they are."""
        if self._ticket is not ticket or self._pass is None:
            self.withdraw()
            shared, permits = self._shared, self._permits_of(permits)
            if shared.closed:
                return LimiterClosed("acquire(): the limit that is shared with others is closed.")
            most = shared.max_permits
            if most is not None and permits > most:  # since its rate was changed
                return ValueError(f"acquire({permits}) can no longer be granted: {most} is the most at once of the limit that is shared.")
            at, shared_now = shared.try_take(permits)
            if at <= shared_now:
                shared.keep_receipt()
                return Receipt(now, shared_now, stood=False)
            self._ticket, self._pass = ticket, _Pass(self._decided)
            self._entering = True
            try:
                shared.join(permits, at, shared_now, shared_now, self._pass)
            finally:
                self._entering = False
        outcome = outcome_of(self._pass)
        if outcome is None:
            return None
        self._pass = self._ticket = None
        return outcome if isinstance(outcome, BaseException) else Receipt(now, outcome[1], stood=True)

    @property
    def max_permits(self) -> int | None:
        """The most permits that the shared limit grants at once; None: any number."""
        return self._shared.max_permits

    def available(self) -> int:
        """How many permits the shared limit has at once."""
        return self._shared.available()

    def withdraw(self) -> None:
        """Nobody of this line stands in the shared one any more."""
        standing, self._pass = self._pass, None
        self._ticket = None
        if standing is not None and not standing.done():
            self._shared.withdraw(standing)

    def keep_receipt(self) -> None:
        """The permits of one more grant may come back."""
        self._shared.keep_receipt()

    def drop_receipt(self) -> None:
        """Those of one no more."""
        self._shared.drop_receipt()

    def resume_one(self, granted_at: int) -> None:
        """The owner of a grant out of the line went on."""
        if isinstance(granted_at, Receipt) and granted_at.stood:
            granted_at.stood = False  # should it be undone yet, it no longer stands there
            self._shared.resume_one()
        else:
            self._shared.drop_receipt()

    def cancel(self, permits: int, granted_at: int) -> None:
        """Undo a grant."""
        assert isinstance(granted_at, Receipt)
        undo = self._shared.cancel_in_line if granted_at.stood else self._shared.cancel
        undo(self._permits_of(permits), granted_at.shared)

    def estimate(self, permits: int) -> int | None:
        """Nanoseconds until the shared limit would grant so many; None: nobody can say."""
        return self._shared.estimate(self._permits_of(permits), self._shared.look())

    def _decided(self) -> None:
        if not self._entering:
            self._serve()


def _as_many(permits: int) -> int:
    return permits
