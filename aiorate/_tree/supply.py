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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Self

    from aiorate._events import Event
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


class Supply:
    """One scheduler, and what is granted at once. `Node` adds the requests that wait.

    Its own time is the clock's less all the time spent paused or stopped, so that a schedule resumes where it was held up. There are two
    time scales: a *reading* is of the tree's clock, an *instant* is of the limiter's own time.
    """

    __slots__ = (
        "above",
        "altered",
        "catch_up",
        "closed",
        "counters",
        "held_at",
        "is_places",
        "late",
        "line",
        "max_waiting",
        "meter",
        "name",
        "offset",
        "on_event",
        "paused_until",
        "permits_above",
        "permitted",
        "provider",
        "resuming",
        "scheduler",
        "since",
        "stopped",
        "tree",
        "unmetered",
        "waited_above",
        "watch",
    )

    above: Self | None

    def __init__(self, scheduler: Scheduler, catch_up: int, tree: Tree, name: str | None = None) -> None:
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
        self.offset: int = 0  # how many ns the limiter's time is behind the clock
        self.held_at: int | None = None
        """The instant at which time stood still when it was last asked for; None: it moved."""
        self.paused_until: int | None = None
        """The reading at which a pause ends; None: not paused when it was last asked."""
        self.stopped: bool = False  # whether nothing moves until it is started
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

    def begin(self) -> bool:
        """Open the meter of a limit that has granted nothing yet, if its tree is in use; returns whether it did."""
        if self.granted or self.tree.loop is None or self.tree.threads:
            return False
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
        check = loop.check if loop is not None and loop.monotonic and tree.read is loop.read else None
        known = check is not None and (tree.threads or (now + self.offset + tree.shift < check.until and check.thread == get_ident()))
        if not known and not seen:
            loop = tree.here()
            now = self.now()
            if loop is not None and tree.steady and not tree.threads:
                loop.check.try_until, loop.check.thread = tree.read() + LOOP_CHECK_NS, get_ident()
            if loop is not None and loop.monotonic:
                tree.starved()  # so that meters are open for as long as that is known
        if self.is_held:
            tree.here()  # a line of another loop, or of the process before a fork, does not count
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
        if at > now:
            take_none(taken)
            self.late = None
            return None
        self.unmetered += permits
        self.open_meter()
        return at, ((self, permits, now), *taken)

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
        meter, tree, loop = self.meter, self.tree, self.tree.loop
        meter.until = 0
        if self.permitted is not self.scheduler and self.held_at is None and self.permitted.left(self.now()) is None:  # type: ignore[attr-defined]
            self.permitted = self.scheduler  # what servers said is over
        if loop is None or not tree.steady or self.closed or self.permitted is not self.scheduler:
            return
        if self.held_at is not None or self.line.is_waited_in or (self.above is not None and meter.above is None):
            return
        if tree.threads and (tree.read is not monotonic_ns or meter.numbers[2] == NO_LINE):
            return  # a grab would not be one step
        offset = self.offset + tree.shift
        if not -FAR < offset < FAR:  # as after a loop in virtual time: more than the compiled meter holds
            return
        meter.read, meter.offset, meter.check, meter.since, until = tree.read, offset, loop.check, FAR, FAR
        if self.late is not None:
            meter.since, woken_at = self.late
            until = min(FAR, woken_at + _SAME_WAKE_UP_NS, meter.since + self.catch_up)
        meter.until = until

    # Time.

    def now(self) -> int:
        """The limiter's time."""
        if self.held_at is not None:
            if self.stopped or self.paused:
                return self.held_at
            self._release()
        tree = self.tree
        return tree.read() - tree.shift - self.offset

    @property
    def paused(self) -> bool:
        """Whether a pause goes on."""
        return self.paused_until is not None and self.tree.now() < self.paused_until

    def move(self, tree: Tree) -> None:
        """Go by the clock of another tree, without a jump in limiter time."""
        if self.tree.begun:
            change = tree.now() - self.tree.now()
            self.offset += change
            if self.paused_until is not None:
                self.paused_until += change
        self.tree = tree

    @property
    def held_for(self) -> int:
        """Nanoseconds for which time has stood still until now; 0: it moves."""
        return 0 if self.held_at is None else self.tree.now() - self.held_at - self.offset

    @property
    def pause_length(self) -> int:
        """The same until the end of a pause; 0: it moves, or the end is unknown."""
        return 0 if self.held_at is None or self.stopped else self._end - self.held_at - self.offset

    def reading_at(self, instant: int) -> int | None:
        """The reading of the clock at that instant; None: unknown until it is started."""
        if self.held_at is None:
            return instant + self.offset
        return None if self.stopped else instant - self.held_at + self._end

    def pause(self, ns: int) -> None:
        """Stand still for ``ns`` from now; pauses merge by the later end."""
        self.held_at, until = self.now(), self.tree.now() + ns
        self.paused_until = until if self.paused_until is None else max(until, self.paused_until)

    def resume(self) -> None:
        """End a pause."""
        self.now()
        self.paused_until = None
        self.now()

    def stop(self) -> None:
        """Stand still until started."""
        self.held_at, self.stopped = self.now(), True

    def start(self) -> None:
        """End a stop; a pause goes on until its end."""
        self.now()
        if self.stopped and not self.paused:
            self.paused_until = None
        self.stopped = False
        self.now()

    @property
    def _end(self) -> int:
        return self.tree.now() if self.paused_until is None else self.paused_until

    def _release(self) -> None:
        assert self.held_at is not None
        held_at, length = self.held_at, self._end - self.held_at - self.offset
        self.offset += length
        self.held_at = self.paused_until = None
        if length:
            if self.watch is not None:
                self.watch.pause_ended = held_at
            self.permitted._shift(length)


def take_none(path: Sequence[tuple[Supply, Permits, int]]) -> None:
    """Give back what was taken."""
    for limit, permits, instant in path:
        limit.permitted.give_back(permits, instant, instant)
        limit.unmetered -= permits
