"""The gate: how a request that is first in its own line, and due there, passes a limit that many lines share.

It stands in the line of the shared limit only from that moment on, and only the first of that line does. So a busy key is one
request among those of all keys; and both limits are spent in one step, or neither. Lines take turns there, in permits and by weight.
Knows nothing of rates or keys.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate.errors import LimiterClosed
from aiorate.waiting.fair_line import FairLine
from aiorate.waiting.fair_queue import Flow
from aiorate.waiting.line import Line, outcome_of
from aiorate.waiting.moving import find_loop
from aiorate.waiting.passes import Pass, Passes
from aiorate.waiting.questions import is_closed, max_permits
from aiorate.waiting.receipts import Receipt, give_back, keep
from aiorate.waiting.timeline import NOT_ASKED
from aiorate.waiting.waiters import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.line import Ticket

__all__ = ["Gate"]


class Gate:
    """The way from one line through the shared limit. At most one request of the line stands there: the first.

    ``permits_of`` says how many shared permits a request takes. ``serve`` is called in place of the dispatcher's own once the shared
    limit has decided. The gate does not keep the dispatcher, so that a limiter that is evicted is freed at once. ``owner`` is kept as
    long as the gate, because a key of others that nobody holds would be evicted.
    """

    __slots__ = ("_flow", "_owner", "_pass", "_serve", "permits_of", "shared")

    def __init__(
        self,
        shared: Dispatcher,
        serve: Callable[[], None] | None = None,
        permits_of: Callable[[int], int] = int,
        owner: object = None,
    ) -> None:
        if shared.passes is None:
            shared.passes = Passes()
        waiters = shared.waiters
        if waiters is not NOBODY and isinstance(waiters.line, Line):  # it was not shared until now
            waiters.line = FairLine(waiters.line)
        self.shared: Dispatcher = shared
        """The dispatcher of the shared limit."""
        self.permits_of: Callable[[int], int] = permits_of
        """How many shared permits a request takes."""
        self._flow: Flow | None = None
        self._owner = owner
        self._serve = serve
        self._pass: Pass | None = None  # of the request that stands in the shared line

    def take(self, dispatcher: Dispatcher, permits: int, now: int, since: int | None, late: int) -> tuple[int, int]:
        """Take the permits in both limits, or in neither, for a request that comes ``late`` ns late. Returns as `Dispatcher.take`."""
        at = dispatcher.scheduler.peek(permits, now)
        if at > now:
            return at, now
        shared = self.permits_of(permits)
        if shared:
            shared_at, shared_receipt = self.shared.take(shared, late=late)
            if shared_at > shared_receipt:
                return NOT_ASKED, now
        elif is_closed(self.shared):
            return NOT_ASKED, now
        else:
            shared_receipt = self.shared.timeline.now()
        at = NOT_ASKED
        try:
            at = dispatcher.scheduler.take(permits, now, since)
        finally:
            if at > now and shared:  # a strategy may fail
                keep(self.shared)
                give_back(self.shared, shared, shared_receipt)
        return at, Receipt(now, shared_receipt)

    def pass_through(self, dispatcher: Dispatcher, ticket: Ticket, permits: int, now: int, late: int) -> Receipt | BaseException | None:
        """The shared permits for the first in line, which is due here, and was so for ``late`` ns before anybody looked; or its error.

        None: it stands in the shared line. Once it was decided there, the line of this dispatcher is served, and comes back with it.
        """
        standing = self._pass
        if standing is None or standing.owner is not ticket:
            self.withdraw()
            shared, permits = self.shared, self.permits_of(permits)
            if is_closed(shared):
                return LimiterClosed("acquire(): the limit that is shared with others is closed.")
            if not permits:
                keep(shared)
                return Receipt(now, shared.timeline.now())
            most = max_permits(shared)
            if most is not None and permits > most:  # since its rate was changed
                return ValueError(f"acquire({permits}) can no longer be granted: {most} is the most at once of the limit that is shared.")
            at, receipt = shared.take(permits, late=late)
            if at <= receipt:
                keep(shared)
                return Receipt(now, receipt)
            assert shared.passes is not None  # made with the gate
            standing = Pass(ticket, permits, self.flow, shared.passes)
            try:
                shared.stand(standing, permits, at, receipt - min(late, shared.catch_up.limit))
            finally:  # a signal handler may raise
                standing.waiters, standing.serve, self._pass = shared.waiters, partial(_serve, dispatcher, self._serve), standing
        outcome = outcome_of(standing)
        if outcome is None:
            return None
        self._pass = None
        if isinstance(outcome, BaseException):
            return outcome
        return Receipt(now, outcome[1], standing.waiters, standing.late)

    def withdraw(self) -> None:
        """The first of this line leaves the shared one. A grant that it got there comes back."""
        standing, self._pass = self._pass, None
        if standing is not None:
            assert standing.waiters is not None  # it has joined
            standing.serve = None
            self.shared.withdraw(standing.waiters, standing, standing.permits, outcome_of(standing))

    def weigh(self, weight: int) -> None:
        """Set the line's share of the shared limit, relative to others, which is 1 at first. Called before anything stands there."""
        self._flow = None if weight == 1 else Flow(weight)

    @property
    def flow(self) -> Flow:
        """This line among those that share the limit. A line of weight 1 that never stands there has none."""
        if self._flow is None:
            self._flow = Flow(1)
        return self._flow

    @property
    def standing(self) -> Pass | None:
        """The ticket in the shared line for the first of this line."""
        return self._pass

    def forget(self) -> None:
        """The first of this line does not stand in the shared one: a signal handler interrupted it."""
        self._pass = None

    @property
    def first(self) -> Ticket | None:
        """The request of this line that stands in the shared line."""
        return None if self._pass is None else self._pass.owner


def _serve(dispatcher: Dispatcher, serve: Callable[[], None] | None) -> None:
    """The first in line was decided by the limit that is shared, which may go on to others whatever becomes of this one."""
    try:
        if serve is not None:
            serve()
        else:
            find_loop(dispatcher)
            dispatcher.serve_if_alive()
    except Exception as error:  # the limiter is used in another loop, or its clock is broken
        if not dispatcher.cut():
            dispatcher.fail(error)
