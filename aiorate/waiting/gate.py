"""The gate: how a request that is first in its own line, and due there, passes a limit that many lines share.

It stands in the line of the shared limit only from that moment on, and only the first of its own line does. So a busy key is one
request among those of all keys; and both limits are spent in one step, or neither. Knows nothing of rates, loops or keys.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from typing import TYPE_CHECKING, Protocol

from aiorate.errors import LimiterClosed
from aiorate.waiting.estimate import ONE_BY_ONE, ahead
from aiorate.waiting.line import outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.schedulers.interface import Scheduler
    from aiorate.waiting.line import Line, Outcome, Ticket
    from aiorate.waiting.timeline import Timeline
    from aiorate.waiting.watcher import Watcher

__all__ = ["Gate", "Passes", "Receipt", "Shared"]

_ROUNDS = 64  # how often two limits may name later instants by turns: enough for all that keep the laws


class Side(Protocol):
    """What a gate knows of a dispatcher, to foretell what it will do."""

    scheduler: Scheduler
    timeline: Timeline
    line: Line
    catch_up: int


class Shared(Side, Protocol):
    """What a gate knows of the dispatcher of the shared limit."""

    passes: Passes | None

    @property
    def is_closed(self) -> bool:
        """Whether it grants nothing any more, or a limit that it shares in turn does not."""
        ...

    @property
    def max_permits(self) -> int | None:
        """The most permits it grants at once; None: any number."""
        ...

    def available(self) -> int:
        """How many permits are to be had at once."""
        ...

    def try_take(self, permits: int, *, late: int = 0) -> tuple[int, int]:
        """Take the permits if they are due and nobody is in line: when they are due, and the instant now.

        The request comes so many ns late.
        """
        ...

    def join(self, permits: int, at: int, now: int, since: int, ticket: Ticket | None = None) -> object:
        """Stand in line with that ticket."""
        ...

    def withdraw(self, line: Line, ticket: Ticket, permits: int) -> None:
        """Undo a request of that line, waiting or granted."""
        ...

    @property
    def watcher(self) -> Watcher:
        """What it tells of itself, and whether its permits come on demand."""
        ...

    @property
    def shares_on_demand(self) -> bool:
        """Whether a limit that it shares in turn has permits only for requests that wait."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, or a limit that it shares in turn was."""
        ...

    @property
    def gate(self) -> Gate | None:
        """The way to the limit that it shares in turn."""
        ...

    def reaches(self, side: object) -> bool:
        """Whether what it grants takes from that one too."""
        ...

    def keep_receipt(self) -> None:
        """One more grant may be undone."""
        ...

    def drop_receipt(self, granted_at: int | None = None, line: Line | None = None) -> None:
        """One grant stands, of that line or of none."""
        ...

    def cancel(self, permits: int, granted_at: int, line: Line | None = None) -> None:
        """Undo a grant, of that line or of none."""
        ...

    def return_some(self, permits: int, granted_at: int) -> None:
        """Take back a part of a grant."""
        ...

    def refund(self, permits: int) -> None:
        """Take back permits of any grant."""
        ...

    def charge(self, permits: int) -> None:
        """Take permits after the fact."""
        ...

    def estimate(self, permits: int, now: int) -> int | None:
        """Nanoseconds until a request made now would be granted; None: nobody can say."""
        ...

    def look(self) -> int:
        """The instant."""
        ...

    def look_from_top(self) -> None:
        """Grant what is due there, and above."""
        ...


class Receipt(int):
    """The instant of a grant in its own line, with the receipt of the shared limit, whose pauses are its own."""

    shared: int
    """The instant of the grant there; where that limit shares another in turn, a receipt as well."""
    line: Line | None
    """The shared line in which the request stood, and which waits to hear that its owner went on; None: it did not stand there."""
    late: int
    """How many ns late the wake-up was at which the shared limit granted it, if it stood there."""

    def __new__(cls, granted_at: int, shared: int, line: Line | None = None, late: int = 0) -> Receipt:
        receipt = super().__new__(cls, granted_at)
        receipt.shared, receipt.line, receipt.late = shared, line, late
        return receipt


class Passes:
    """The passes that a shared limit has decided, and whose own lines are still to be served.

    They are served once the shared limit is done deciding, because they come back to it at once: with their next requests, or with
    a grant that nobody needs any more.
    """

    __slots__ = ("_decided", "_serving", "late")

    def __init__(self) -> None:
        self.late: int = 0
        """How many ns late the wake-up is at which the shared limit decides now."""
        self._decided: list[_Pass] = []
        self._serving = False

    def add(self, decided: _Pass) -> None:
        self._decided.append(decided)

    def serve(self) -> None:
        """Have the lines served, those included of passes that are decided meanwhile."""
        if self._serving or not self._decided:
            return
        self._serving = True
        try:
            for decided in self._decided:  # the list grows meanwhile
                if decided.serve is not None:
                    decided.serve()
        finally:
            self._decided.clear()
            self._serving = False


class _Pass:
    """A ticket in the shared line, for the first of another line. It wakes no task: once it is decided, that line is served."""

    __slots__ = ("_outcome", "_passes", "late", "line", "owner", "permits", "serve")

    def __init__(self, owner: Ticket, permits: int, passes: Passes) -> None:
        self.owner: Ticket = owner
        self.permits: int = permits
        self.late: int = 0  # how many ns the wake-up was at which it was decided
        self.line: Line | None = None
        self.serve: Callable[[], None] | None = None  # none while it joins: who has it join looks then
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


class Gate:
    """The way from one line through the shared limit. At most one request of the line stands there: the first.

    ``serve`` is called in place of what `pass_through` is given. The gate does not keep that: it belongs to the dispatcher that has
    the gate, and without such a circle a limiter that is evicted is freed at once.
    """

    __slots__ = ("_owner", "_pass", "_permits_of", "_serve", "_shared")

    def __init__(
        self,
        shared: Shared,
        serve: Callable[[], None] | None = None,
        permits_of: Callable[[int], int] | None = None,
        owner: object = None,
    ) -> None:
        if shared.passes is None:
            shared.passes = Passes()
        self._shared = shared
        self._owner = owner  # kept as long as the gate: a key of others that nobody holds is evicted
        self._serve = serve
        self._permits_of = _as_many if permits_of is None else permits_of
        self._pass: _Pass | None = None  # of the request that stands in the shared line

    def ask(self, permits: int, now: int, late: int) -> Receipt | None:
        """Take the shared permits if they are to be had at once, for a request that comes ``late`` ns late; None: they are not."""
        permits = self._permits_of(permits)
        if not permits:
            return Receipt(now, self._shared.timeline.now())
        at, shared_now = self._shared.try_take(permits, late=late)
        return Receipt(now, shared_now) if at <= shared_now else None

    def pass_through(self, ticket: Ticket, permits: int, now: int, serve: Callable[[], None], late: int) -> Receipt | BaseException | None:
        """The shared permits for the first of its line, which is due there, and was so for ``late`` ns before anybody looked.

        None: it stands in the shared line; ``serve`` is called once it was decided there, and is to come back with it.
        """
        standing = self._pass
        if standing is None or standing.owner is not ticket:
            self.withdraw()
            shared, permits = self._shared, self._permits_of(permits)
            if not permits:
                shared.keep_receipt()
                return Receipt(now, shared.timeline.now())
            if shared.is_closed:
                return LimiterClosed("acquire(): the limit that is shared with others is closed.")
            most = shared.max_permits
            if most is not None and permits > most:  # since its rate was changed
                return ValueError(f"acquire({permits}) can no longer be granted: {most} is the most at once of the limit that is shared.")
            at, shared_now = shared.try_take(permits, late=late)
            if at <= shared_now:
                shared.keep_receipt()
                return Receipt(now, shared_now)
            assert shared.passes is not None  # made with the gate
            standing = _Pass(ticket, permits, shared.passes)
            shared.join(permits, at, shared_now, shared_now - min(late, shared.catch_up), standing)
            standing.line, standing.serve, self._pass = shared.line, self._serve or serve, standing
        outcome = outcome_of(standing)
        if outcome is None:
            return None
        self._pass = None
        if isinstance(outcome, BaseException):
            return outcome
        return Receipt(now, outcome[1], standing.line, standing.late)

    def withdraw(self) -> None:
        """Nobody of this line stands in the shared one any more. What was granted there comes back."""
        standing, self._pass = self._pass, None
        if standing is not None:
            assert standing.line is not None  # it has joined
            standing.serve = None
            self._shared.withdraw(standing.line, standing, standing.permits)

    @property
    def closed(self) -> bool:
        """Whether the shared limit grants nothing any more."""
        return self._shared.is_closed

    @property
    def on_demand(self) -> bool:
        """Whether the shared limit, or one above it, has permits only for requests that wait."""
        return self._shared.watcher.on_demand or self._shared.shares_on_demand

    @property
    def is_stopped(self) -> bool:
        """Whether nobody can say when the shared limit grants anything."""
        return self._shared.is_stopped

    def reaches(self, side: object) -> bool:
        """Whether that one is the shared limit, or shared by it."""
        return self._shared is side or self._shared.reaches(side)

    @property
    def max_permits(self) -> int | None:
        """The most permits that the shared limit grants at once; None: any number."""
        return self._shared.max_permits

    def look(self) -> None:
        """Have all that is due above granted."""
        self._shared.look_from_top()

    def available(self) -> int:
        """How many permits the shared limit has at once."""
        return self._shared.available()

    # What may come back: the same is done in the shared limit.

    def keep_receipt(self) -> None:
        """One more grant may be undone."""
        self._shared.keep_receipt()

    def drop_receipt(self, granted_at: int | None) -> None:
        """One grant stands; None: any for which `keep_receipt` was called."""
        if isinstance(granted_at, Receipt):
            line, granted_at.line = granted_at.line, None  # it may be kept once more, and does not stand there then
            self._shared.drop_receipt(granted_at.shared, line)
        else:
            self._shared.drop_receipt()

    def cancel(self, permits: int, granted_at: int) -> None:
        """Undo a grant."""
        assert isinstance(granted_at, Receipt)
        permits = self._permits_of(permits)
        if permits:
            self._shared.cancel(permits, granted_at.shared, granted_at.line)
        else:
            self._shared.drop_receipt(granted_at.shared, granted_at.line)

    def return_some(self, permits: int, granted_at: int) -> None:
        """Take back a part of a grant: so many of the shared permits."""
        assert isinstance(granted_at, Receipt)
        self._shared.return_some(permits, granted_at.shared)

    def refund(self, permits: int) -> None:
        """Take back so many of the shared permits, of any grant."""
        self._shared.refund(permits)

    def charge(self, permits: int) -> None:
        """Take so many of the shared permits after the fact."""
        self._shared.charge(permits)

    # Foretelling.

    def estimate(self, permits: int) -> int | None:
        """Nanoseconds until the shared limit would grant so many, asked by somebody whose own line is empty; None: nobody can say."""
        if not self._permits_of(permits):
            return 0
        if self._shared.is_closed:
            return None
        return self._shared.estimate(self._permits_of(permits), self._shared.look())

    def estimate_in_line(self, dispatcher: Side, permits: int | None) -> int | None:
        """Nanoseconds until both limits would grant so many at the end of the line; None: nobody can say.

        Without permits: until they would grant the first of it. What is in both lines now is rehearsed. The other lines may bring
        more, so it may take longer.
        """
        if self._shared.is_closed or self._shared.is_stopped or dispatcher.timeline.stopped:
            return None
        shared, standing_at = self.rehearse()
        own = _Rehearsal(dispatcher, shared, self._permits_of)
        head = dispatcher.line.head(ONE_BY_ONE)
        for ticket, count, since in head:
            if self._pass is not None and ticket is self._pass.owner:
                at = own.take_standing(count, standing_at or 0)  # far back in the shared line: some time from now
            elif own.allows(count):
                at = own.take_next(count, since)
            else:
                continue
            if permits is None:
                return at
        own.take_ahead(dispatcher.line.rest(head))
        return None if permits is None else own.next_due(permits)

    def rehearse(self) -> tuple[_Rehearsal, int | None]:
        """The shared limit, once all in its line are granted; and when the one that stands there for this line is, if any does."""
        self._shared.look()
        above, standing_above, first_above = None, None, None
        gate = self._shared.gate
        if gate is not None:
            above, standing_above = gate.rehearse()
            first_above = gate.first
        shared = _Rehearsal(self._shared, above)
        standing_at: int | None = None
        head = self._shared.line.head(ONE_BY_ONE)
        for ticket, count, since in head:
            if first_above is not None and ticket is first_above:
                at = shared.take_standing(count, standing_above or 0)
            elif shared.allows(count):
                at = shared.take_next(count, since)
            else:
                continue
            standing_at = at if ticket is self._pass else standing_at
        shared.take_ahead(self._shared.line.rest(head))
        return shared, standing_at

    @property
    def first(self) -> Ticket | None:
        """The one of this line that stands in the shared line."""
        return None if self._pass is None else self._pass.owner


class _Rehearsal:
    """A rehearsal of a scheduler in which requests are granted that have yet to be, and of those above it.

    Time is in nanoseconds from now.
    """

    __slots__ = ("_above", "_begin", "_behind", "_catch_up", "_held_at", "_joined", "_permits_above", "_scheduler", "last")

    def __init__(self, dispatcher: Side, above: _Rehearsal | None = None, permits_above: Callable[[int], int] | None = None) -> None:
        timeline = dispatcher.timeline
        self._held_at = timeline.now()
        self._scheduler = ahead(dispatcher.scheduler, timeline)
        self._catch_up = dispatcher.catch_up
        self._behind = timeline.offset + timeline.pause_length
        self._begin = timeline.read()
        self._joined = self._held_at
        self._above = above
        self._permits_above = _as_many if permits_above is None else permits_above
        self.last = 0
        """When the latest of the requests is granted."""

    def allows(self, permits: int) -> bool:
        """Whether so many are ever granted."""
        most = self._scheduler.max_permits
        if most is not None and permits > most:
            return False
        return self._above is None or self._above.allows(self._permits_above(permits))

    def due_own(self, permits: int, wait: int) -> int:
        """When so many are due here, asked from then on; 0 are at once."""
        if not permits:
            return wait
        at = self._scheduler.peek(permits, self.instant(wait))
        return max(wait, at + self._behind - self._begin)

    def due(self, permits: int, wait: int) -> int:
        """When so many are due here and above, asked from then on."""
        permits_above = self._permits_above(permits)
        if self._above is None or not permits_above:
            return self.due_own(permits, wait)
        for _ in range(_ROUNDS):
            at = self.due_own(permits, self._above.due(permits_above, max(wait, self._above.last)))
            if at == wait:
                break
            wait = at
        return wait

    def next_due(self, permits: int) -> int:
        """When so many are due to the next in line, which joins the lines above when it is due here."""
        wait = self.due_own(permits, self.last)
        if self._above is not None:
            self._above.join(wait)
        return self.due(permits, wait)

    def join(self, wait: int) -> None:
        """The next request joins the line then, and those above."""
        self._joined = self.instant(wait)
        if self._above is not None:
            self._above.join(wait)

    def take(self, permits: int, wait: int, since: int | None = None) -> int:
        """Grant them then, when they are due here and above, to a request that stands in line since that instant; returns when."""
        if since is None and self._above is not None and self.due_own(permits, self.last) < wait:
            since = self.instant(wait)  # it stands in line above by then: not late here
        if self._above is not None:
            self._above.take(self._permits_above(permits), wait)
        return self.take_own(permits, wait, since)

    def take_next(self, permits: int, since: int) -> int:
        """Grant them to the next in line, which stands there since that instant; returns when."""
        due_here, wait = self.due_own(permits, self.last), self.next_due(permits)
        return self.take(permits, wait, since if wait == due_here else self.instant(wait))  # the limits above held it up: not late here

    def take_standing(self, permits: int, wait: int) -> int:
        """Grant them to the first in line, which is granted above by then; returns when."""
        wait = self.due_own(permits, wait)
        return self.take_own(permits, wait, self.instant(wait))

    def take_own(self, permits: int, wait: int, since: int | None = None) -> int:
        """As `take`, where it is taken above already."""
        if not permits:
            return wait
        now = self.instant(wait)
        since = self._joined if since is None else since
        self._scheduler.take(permits, now, min(max(since, now - self._catch_up), now))
        self.last = wait
        return wait

    def take_ahead(self, permits: int) -> None:
        """Have so many taken by then, and those that come next wait for them; 0 is nothing."""
        if permits:
            self._scheduler.take_ahead(permits, self.instant(self.last))
            if self._above is not None:
                self._above.take_ahead(self._permits_above(permits))

    def instant(self, wait: int) -> int:
        """The limiter's own time then."""
        return max(self._begin + wait - self._behind, self._held_at)


def _as_many(permits: int) -> int:
    return permits
