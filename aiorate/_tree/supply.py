"""The part of a limit that grants at once: its permits, its own time, and how a permit that lies ready is taken, here and above."""

from __future__ import annotations

from functools import partial
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, cast

from aiorate._loops.loop import LOOP_CHECK_NS
from aiorate._meter import FAR, NO_LINE, PureMeter
from aiorate._schedulers.interface import claim
from aiorate._tree.counters import NOTHING, Counters
from aiorate._tree.line import NOBODY
from aiorate._tree.provider import OWN
from aiorate._tree.refusals import closed, too_large
from aiorate._tree.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Self

    from aiorate._events import Event
    from aiorate._loops.loop import Loop, ReadClock
    from aiorate._meter import Meter
    from aiorate._schedulers.amounts import AnyScheduler, Permits
    from aiorate._schedulers.interface import Scheduler
    from aiorate._tree.line import Line
    from aiorate._tree.provider import Provider
    from aiorate._tree.tree import Tree
    from aiorate._tree.watch import Watch


_SAME_WAKE_UP_NS = 1_500_000  # the average distance of two wake-ups


SAME = cast("Callable[[Permits], Permits]", int)
"""For a limiter, which takes as much of the limit above as here: the fastest function. It turns a `Visit` into plain permits."""


class Supply(Timeline):
    """One scheduler, and what is granted at once. `Node` adds the requests that wait."""

    __slots__ = (
        "above",
        "altered",
        "catch_up",
        "closed",
        "counters",
        "is_places",
        "late",
        "line",
        "max_waiting",
        "meter",
        "name",
        "on_event",
        "permits_above",
        "permitted",
        "provider",
        "resuming",
        "scheduler",
        "since",
        "tree",
        "unmetered",
        "waited_above",
        "watch",
    )

    above: Self | None

    def __init__(self, scheduler: Scheduler, catch_up: int, tree: Tree, name: str | None = None) -> None:
        super().__init__(tree.clock)
        claim("a limiter" if name is None else f"the limiter {name!r}", scheduler)
        self.scheduler: AnyScheduler = scheduler  # type: ignore[assignment]  # of permits of its kind
        self.permitted: AnyScheduler = self.scheduler  # the scheduler, or what servers said, as long as that holds
        self.catch_up: int = catch_up  # the most ns that are made up for when the loop is late
        self.late: tuple[int, int] | None = None
        """If the last wake-up was late and left nobody in line: the instant up to which it served, and its own.

        What delayed it also delayed the callers right after it, and until the tasks that it woke go on. They are booked from the first
        instant, at most `catch_up` back.
        """
        self.tree: Tree = tree
        self.name: str | None = name
        self.on_event: Callable[[Event], object] | None = None
        self.provider: Provider = OWN
        self.max_waiting: tuple[int, Sequence[Self]] | None = None
        """The most requests that may wait here and at these other limits."""
        own = scheduler._meter
        self.meter: Meter = PureMeter(scheduler.take) if own is None else own
        """The shortest way to a permit that lies ready: open while there is no line, pause, close or quota of a server.

        Where permits lie on a straight line here and above, it takes of the limit above too.
        """
        self.unmetered: Permits = 0  # permits granted otherwise than by the meter
        self.counters: Counters = NOTHING
        self.altered: bool = False  # whether its user has changed the rate since it was made
        self.is_places: bool = False  # its requests are those of the limit above
        self.closed: bool = False
        self.watch: Watch | None = None  # told of requests that waited
        self.line: Line[Any] = NOBODY
        self.above = None
        self.permits_above: Callable[[Permits], Permits] = SAME  # how many of its permits a request takes
        self.resuming: int = 0  # grants from here whose tasks have not gone on yet
        self.since: int = 0  # the instant, of the limit above, since which the first stands there
        self.waited_above: Callable[[Permits], None] | None = None
        """Told of the permits of a request that waited above, before they are granted."""

    # Looking.

    @property
    def is_held(self) -> bool:
        """Whether no newcomer is granted now, whatever the scheduler says."""
        return self.closed or self.held_at is not None or self.line.is_waited_in

    @property
    def wait_counters(self) -> Counters:
        """The counters of waits and refusals: of places, those of the limit above."""
        limit = self.above if self.is_places and self.above is not None else self
        return limit.own_counters()

    def own_counters(self) -> Counters:
        """Its counters, made when they are first changed."""
        if self.counters is NOTHING:
            self.counters = Counters()
        return self.counters

    @property
    def granted(self) -> Permits:
        return self.unmetered + self.meter.grabs

    @property
    def max_permits(self) -> int | None:
        """The largest request that can ever be granted; None: any."""
        own, above = self.scheduler.max_permits, None if self.above is None else self.above.max_permits
        return own if above is None or (own is not None and own < above) else above

    def impossible(self, permits: Permits) -> Exception | None:
        """The error of a request that can never be granted, here or above. Amounts are compared by the dimensions."""
        most = self.scheduler.max_permits
        if self.closed:
            return closed(self.name)
        if most is not None and isinstance(permits, int) and permits > most:
            return too_large(permits, most)
        return None if self.above is None else self.above.impossible(self.permits_above(permits))

    def _peek(self, permits: Permits, now: int, ahead: Permits) -> int:
        """When the scheduler would grant them once the present pause is over, which matters to a calendar."""
        scheduler, pause = self.permitted, self.pause_length
        if not pause:
            return scheduler.peek(permits, now, ahead)
        scheduler._shift(pause)
        try:
            return scheduler.peek(permits, now, ahead)
        finally:
            scheduler._shift(-pause)

    def follow(self, read: ReadClock) -> None:
        """Go by the loop's clock, here and above."""
        node: Supply | None = self
        while node is not None:
            if node.tree.clock is None and node.read is not read:
                node.switch(read)
                node.open_meter()
            node.begun = True
            node = node.above

    def begin(self) -> bool:
        """Open the meter of a limit that nobody has asked yet, if its tree is in use; returns whether it did."""
        loop = self.tree.loop
        if self.begun or loop is None or self.tree.threads:
            return False
        self.follow(loop.read)
        self.permitted.peek(1, self.now())  # the schedule begins
        self.open_meter()
        return self.meter.until > 0

    def take(
        self, permits: Permits, since: int | None = None, seen: bool = False
    ) -> tuple[int, tuple[tuple[Self, Permits, int], ...]] | None:
        """Take the permits here and above, or nowhere, if nobody is in line and they are due. They are wanted ``since`` then, or now.

        ``seen``: a limit below has checked that its loop is used and turns.
        Returns the instant for which they are scheduled, and what was taken; None if they are refused.
        """
        now, tree = self.now(), self.tree
        loop = tree.loop
        check = loop.check if loop is not None and loop.monotonic and self.begun and self.read is loop.read else None
        if (check is None or (not tree.threads and (now + self.offset >= check.until or check.thread != get_ident()))) and not seen:
            loop = self.here()
            now = self.now()
            if loop is not None and tree.steady and not tree.threads:
                loop.check.try_until, loop.check.thread = now + self.offset + LOOP_CHECK_NS, get_ident()
            if loop is not None and loop.monotonic:
                tree.starved()  # so that meters are open for as long as that is known
        if self.is_held:
            self.here()  # a line of another loop, or of the process before a fork, does not count
            if self.is_held:
                return None
        taken: tuple[tuple[Self, Permits, int], ...] = ()
        if self.above is not None:
            if permits and self.permitted.peek(permits, now) > now:  # the highest takes first, and says so itself
                self.late = None
                return None
            found = self.above.take(self.permits_above(permits), None, True)
            if found is None or not permits:
                return found
            taken = found[1]
        elif not permits:
            return now, ()
        if since is None and self.late is not None:
            since = self._booked_since(now)
        try:
            at = self.permitted.take(permits, now, since)
        except Exception:
            take_none(taken)
            raise
        if at <= now:
            self.unmetered += permits
            self.open_meter()
            own = ((self, permits, now),)
            return at, own + taken if taken else own
        if taken:
            take_none(taken)
        if self.late is not None:
            self.late = None
            self.open_meter()
        return None

    def here(self) -> Loop | None:
        """The running loop, whose clock it follows from now on; see `Tree.here`."""
        loop = self.tree.here()
        if loop is None:
            self.begun = True
        elif not self.begun or self.read is not loop.read or self.above is not None:
            self.follow(loop.read)
        return loop

    def _booked_since(self, now: int) -> int | None:
        """From when a caller is booked just after a late wake-up; None: as usual."""
        if self.late is not None and now - self.late[1] > _SAME_WAKE_UP_NS:
            self.late = (self.late[0], now) if self.resuming else None
        return None if self.late is None else max(self.late[0], now - self.catch_up)

    def credit(self, permits: Permits, instant: int) -> None:
        """Take back permits that were taken at that instant. Those from before a reset stay spent."""
        counters = self.own_counters()
        if counters.reset_at is None or instant > counters.reset_at:
            counters.given_back += permits
            self.permitted.give_back(permits, self.now(), instant)

    def tell(self, event: Event) -> None:
        """Log the event and call ``on_event``, once no decision is half made: the callback may use the limiter."""
        from aiorate._events import emit

        self.tree.after(partial(emit, event, self.on_event))

    def skip(self, ns: int) -> None:
        """Count ``ns`` of the schedule that are given up, and tell of them in the loop's next iteration."""
        counters, loop = self.own_counters(), self.tree.loop
        rate = self.scheduler.rate
        permits, counters.unused = divmod(ns * rate.permits + counters.unused, rate.period_ns)
        counters.skipped += permits
        if permits and loop is not None:
            from aiorate._events import Event

            loop.post(partial(self.tell, Event("skipped", self.name, permits=permits)))

    def open_meter(self) -> None:
        """Open the meter, or shut it if anything forbids it."""
        meter, loop, threads = self.meter, self.tree.loop, self.tree.threads
        meter.until = 0
        if self.permitted is not self.scheduler and self.held_at is None and self.permitted.left(self.now()) is None:  # type: ignore[attr-defined]
            self.permitted = self.scheduler  # what servers said is over
        if loop is None or not self.tree.steady or self.closed or self.permitted is not self.scheduler:
            return
        if self.held_at is not None or self.line.is_waited_in or (self.above is not None and meter.above is None):
            return
        if threads and (self.read is not monotonic_ns or meter.numbers[2] == NO_LINE):
            return  # a grab would not be one step
        if not -FAR < self.offset < FAR:  # as after a loop in virtual time: more than the compiled meter holds
            return
        meter.read, meter.offset, meter.check, meter.since, until = self.read, self.offset, loop.check, FAR, FAR
        if self.late is not None:
            meter.since, woken_at = self.late
            until = min(FAR, woken_at + _SAME_WAKE_UP_NS, meter.since + self.catch_up)
        meter.until = until


def take_none(path: Sequence[tuple[Supply, Permits, int]]) -> None:
    """Give back what was taken."""
    for limit, permits, instant in path:
        limit.permitted.give_back(permits, instant, instant)
        limit.unmetered -= permits
