"""What the parts of a tree know of each other: a limit, where its permits come from, and what a request takes of each limit on its way.

`aiorate._tree.node` has the limits themselves.
"""

from __future__ import annotations

from asyncio import CancelledError, InvalidStateError
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aiorate._schedulers.interface import NOBODY_KNOWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiorate._loops.loop import Loop, ReadClock, Ticket, Waker
    from aiorate._meter import Meter
    from aiorate._schedulers.amounts import AnyScheduler, Permits
    from aiorate._tree.counters import Counters
    from aiorate._tree.fair_queue import Flow
    from aiorate._tree.line import Line
    from aiorate._tree.watch import Watch

# What a request took: of each limit from its own up, the permits, and the instant at which it took them.
Taken = tuple[tuple["Source", "Permits", int], ...]
# For when the request was scheduled, what it took, the clock's reading then, and what it waited for last; see `Waited.limited_by`.
Grant = tuple[int, Taken, int, str | None]
# An error is a result, not an exception: asyncio logs "exception was never retrieved" for abandoned futures.
Outcome = Grant | BaseException
# A ticket to wait with, or None if it was granted; the instant for which it is scheduled; the clock's reading, if it has to wait; and what
# was taken.
Answer = tuple["Ticket | None", int, int, Taken]


def outcome_of(ticket: Ticket) -> Outcome | None:
    """The outcome; None: not decided, or not before its owner was cancelled."""
    try:
        return ticket.result()  # type: ignore[no-any-return]
    except (InvalidStateError, CancelledError):
        return None


class Provider:
    """Told by a node what other processes, or a task on the event loop, have to hear of.

    The defaults are those of a limiter whose permits come from its own process.
    """

    __slots__ = ()

    @property
    def state(self) -> str:
        """Where permits come from: ``local``, this process; ``shared``, a store; ``degraded``, a store that does not answer."""
        return "local"

    @property
    def busy(self) -> bool:
        """Whether a store is yet to hear or to answer something."""
        return False

    @property
    def on_demand(self) -> bool:
        """Whether permits come only once a request waits for them."""
        return False

    def pausing(self, ns: int) -> None:
        """The limiter is about to be paused for ``ns`` from now. May raise to refuse the pause."""

    def resumed(self) -> None:
        """A pause was ended."""

    def held_up(self) -> None:
        """A request waits for the end of a pause."""

    def look(self) -> None:
        """Somebody is about to be told what is left: learn it, if that takes no time."""

    def closed(self) -> None:
        """The limiter was closed."""

    def moved(self) -> None:
        """The event loop is gone, or another one is used."""

    def shared(self) -> None:
        """Another limit is asked after this one."""


OWN = Provider()
"""That of all limiters whose permits come from their own process."""


class Source(Protocol):
    """A limit of which a request takes. `aiorate._tree.supply` and `aiorate._tree.node` say what each name means."""

    scheduler: AnyScheduler
    counters: Counters
    is_places: bool
    altered: bool
    read: ReadClock
    offset: int
    begun: bool
    held_at: int | None
    stopped: bool
    paused_until: int | None
    waited_above: Callable[[Permits], None] | None
    name: str | None
    taken: Permits
    resuming: int
    returnable: int
    since: int

    permitted: AnyScheduler

    @property
    def meter(self) -> Meter: ...
    @property
    def above(self) -> Source | None: ...
    @property
    def noted(self) -> Counters: ...
    @property
    def pause_length(self) -> int: ...

    def count(self) -> Counters: ...
    def now(self) -> int: ...
    def reading_at(self, instant: int) -> int | None: ...

    def follow(self, read: ReadClock) -> None: ...
    def changed(self) -> None: ...
    def look_if_alive(self) -> None: ...
    def fail(self, error: BaseException) -> None: ...


class Limit(Source, Protocol):
    """A limit, its line, and the limit above."""

    line: Line[Any]
    flow: Flow | None
    permits_above: Callable[[Permits], Permits]
    watch: Watch | None
    stood: Permits
    due: int | None
    closed: bool
    wake_at: int | None

    @property
    def above(self) -> Limit | None: ...
    @property
    def waker(self) -> Waker | None: ...
    @property
    def provider(self) -> Provider: ...
    @property
    def shut(self) -> bool: ...
    @property
    def granted(self) -> Permits: ...
    @property
    def is_held(self) -> bool: ...
    @property
    def loop(self) -> Loop | None: ...

    def exceeded(self, permits: Permits) -> int | None: ...
    def here(self) -> Loop | None: ...
    def take(self, permits: Permits, since: int | None = None) -> tuple[int, Taken] | None: ...
    def join(self, permits: Permits, since: int | None, ticket: Ticket | None) -> Ticket: ...
    def ticket(self, loop: Loop) -> Ticket: ...
    def leave(self, ticket: Ticket, permits: Permits) -> None: ...
    def first(self) -> Any: ...
    def ring(self) -> None: ...
    def look_from_top(self) -> None: ...
    def look_now(self) -> int: ...
    def disband(self, forked: bool) -> None: ...
    def expire(self, over: Sequence[Any]) -> None: ...


L = TypeVar("L", bound=Source)


# A path goes from the request's own limit up, with the permits and the instant at each. The highest limit takes first, from all or none.


def take_all(path: Sequence[tuple[L, Permits, int]], instants: Sequence[int | None], waited: bool = False) -> tuple[int, L | None]:
    """Take from the limits of the path, each booked since its instant; from all or none.

    Returns the instant for which the lowest scheduled it, and None; or when it is due, and the limit that refused. ``waited``: the
    request, or one before it, stood in the lines above.
    """
    at = NOBODY_KNOWS
    before: int | None = None
    for index in range(len(path) - 1, -1, -1):
        limit, permits, now = path[index]
        if waited:
            if before is not None and limit.since < before and limit.waited_above is not None:
                limit.waited_above(permits)
            before = now
        try:
            at = limit.permitted.take(permits, now, instants[index])
        except Exception as error:
            _take_none(path[index + 1 :])
            limit.fail(error)
            raise
        if at > now:
            _take_none(path[index + 1 :])
            return at, limit
        limit.taken += permits
    return at, None


def _take_none(path: Sequence[tuple[Source, Permits, int]]) -> None:
    """Take those back."""
    for limit, permits, instant in path:
        limit.permitted.give_back(permits, instant, instant)
        limit.taken -= permits


def limited_by(path: Taken) -> str | None:
    """The highest limit in whose line the request, or one before it, waited."""
    own = path[0][0]
    for (above, _, now), (below, _, _) in pairwise(reversed(path)):
        if below.since < now:
            return "max_concurrency" if above.is_places else None if below is own and own.is_places else above.name or "shared"
    return "max_concurrency" if own.is_places else None


def hold(taken: Taken, tasks: int = 0) -> None:
    """The grant may come back, so takes are recorded; ``tasks`` of it, 1 or none, have yet to go on."""
    for limit, _, _ in taken:
        limit.resuming += tasks
        limit.returnable += 1
        limit.scheduler._receipts = True


def kept(taken: Taken, tasks: int = 0) -> None:
    """The grant stands, and its task went on or never will. The last that may come back stops the recording."""
    for limit, _, _ in taken:
        limit.resuming -= tasks
        if limit.returnable:
            limit.returnable -= 1
        if not limit.returnable:
            limit.scheduler._receipts = False


def credit(limit: Source, permits: Permits, taken: int) -> None:
    """Permits that were taken at that instant come back. Those of before a reset stay spent."""
    counters = limit.count()
    if counters.reset_at is None or taken > counters.reset_at:
        counters.given_back += permits
        limit.permitted.give_back(permits, limit.now(), taken)


def undo(taken: Taken, held: bool = True, look: bool = True, tasks: int = 0) -> None:
    """What a request took comes back, as it was not made, and the next moves up. A grant of before a reset stays spent."""
    failed: Exception | None = None
    for limit, permits, instant in taken:
        limit.count().cancelled += not limit.is_places  # a request for a place is one of the limit above
        try:
            credit(limit, permits, instant)
        except Exception as error:  # of a strategy: the other limits get theirs back all the same
            failed = error
    if held:
        kept(taken, tasks)
    if look:
        for limit, _, _ in taken:
            limit.look_if_alive()
    if failed is not None:
        raise failed
