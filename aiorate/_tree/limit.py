"""What the parts of a tree know of each other: a limit, a request, and what it took. `aiorate._tree.node` has the limits themselves."""

from __future__ import annotations

from asyncio import CancelledError, InvalidStateError
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiorate._loops.clock import ReadClock
    from aiorate._loops.loop import Loop, Waker
    from aiorate._meter import Meter
    from aiorate._schedulers.amounts import AnyQuotas, AnyScheduler, Permits
    from aiorate._tree.counters import Counters
    from aiorate._tree.fair_queue import Flow
    from aiorate._tree.line import Line, Ticket
    from aiorate._tree.provider import Provider
    from aiorate._tree.watch import Watch

__all__ = ["Answer", "Limit", "Outcome", "Source", "Taken", "outcome_of"]

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

    permitted: AnyScheduler | AnyQuotas

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
