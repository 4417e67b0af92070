"""A node: a limit, its line, and the lines of the limits below, whose first requests stand here.

The rule of the tree: the first of a line stands in the line of the limit above, once it is due in its own. A grant is one walk from the
root down to a request, and every limit on the way takes, or none does. Then every limit on the way looks again, the lowest first, so that
its next request stands above before the next permit is granted. All decisions are synchronous.
Knows nothing of how a rate is computed (it never multiplies or divides), of seconds, or of what kind of loop runs.
"""

from __future__ import annotations

import itertools
from asyncio import InvalidStateError
from typing import TYPE_CHECKING

from aiorate._errors import LimiterClosed
from aiorate._loops.loops import running_loop
from aiorate._loops.turnstile import LOOP_CHECK_NS
from aiorate._meter import FAR
from aiorate._schedulers.capped import Capped
from aiorate._schedulers.dimensions import Amounts
from aiorate._schedulers.interface import NOBODY_KNOWS, Scheduler
from aiorate._tree.asking import AskingMeter
from aiorate._tree.catch_up import CatchUp
from aiorate._tree.counters import Counters
from aiorate._tree.extras import NONE, Extras
from aiorate._tree.fair_queue import FairQueue, Flow
from aiorate._tree.line import Line, StandIn, outcome_of
from aiorate._tree.notices import Notices, skip
from aiorate._tree.refusals import ACQUIRE
from aiorate._tree.timeline import NOT_ASKED, Timeline
from aiorate._tree.tree import Tree
from aiorate._tree.watcher import UNWATCHED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiorate._loops.clock import Clock, ReadClock
    from aiorate._loops.driver import Driver
    from aiorate._loops.view import EventLoop
    from aiorate._meter import Meter
    from aiorate._tree.line import Request, Taken, Ticket
    from aiorate._tree.max_waiting import Admission
    from aiorate._tree.refusals import Refusals
    from aiorate._tree.watcher import Watcher

    Answer = tuple[Ticket | None, int, int, Taken]

__all__ = ["TURN", "Node", "amount_of", "hold", "kept", "undo"]

_COUNTED = 256  # limits below that a question counts
_ESTIMATED = 32  # requests that time out in one wake-up whose errors say how long each would have waited
_NOBODY = Line()  # the line of all limits for which nobody has ever waited; never joined


TURN: Ticket = StandIn(True)
"""The ticket of all requests that were refused in a starved loop: they are asked for again once it has turned."""


class Node:
    """One scheduler and the requests for it."""

    __slots__ = (
        "__weakref__",
        "_head",
        "_own",
        "_serving",
        "above",
        "catch_up",
        "closed",
        "counters",
        "driver",
        "due",
        "extras",
        "flow",
        "flows",
        "keeps",
        "line",
        "meter",
        "noted",
        "notices",
        "permits_above",
        "resuming",
        "scheduler",
        "seen",
        "seen_at",
        "since",
        "standing",
        "stood",
        "taken",
        "timeline",
        "tree",
        "waited_above",
        "wake_at",
        "watcher",
    )

    driver: Driver
    """Makes the tickets of its line, and wakes those who hold them. Set when somebody first waits."""

    def __init__(
        self,
        scheduler: Scheduler,
        catch_up: int,
        precise: bool = False,
        clock: Clock | None = None,
        name: str | None = None,
        tree: Tree | None = None,
    ) -> None:
        scheduler.claim("a limiter" if name is None else f"the limiter {name!r}")
        scheduler.receipts = False
        self.scheduler: Scheduler = scheduler
        self.catch_up: CatchUp = CatchUp(catch_up)
        self.tree: Tree = Tree(clock, precise) if tree is None else tree
        self.notices: Notices = Notices(name)
        self.watcher: Watcher = UNWATCHED
        self.timeline: Timeline = Timeline(clock)
        own = scheduler.meter
        self.meter: Meter = AskingMeter(scheduler) if own is None else own
        """The shortest way to a permit that lies ready.

        It is open while there is no line, pause, close, limit above or quota of a server, and the loop was seen to run its other tasks.
        """
        self.taken: int = 0
        """Permits granted otherwise than by the meter."""
        self.counters: Counters = Counters()
        self.noted: Counters = self.counters
        """Where waits and refusals are counted: of places, in the limit above."""
        self.closed: bool = False
        self.extras: Extras = NONE if clock is None else Extras(clock, precise)
        self.line: Line = _NOBODY
        """Those who wait here, other than the first of the limits below."""
        self.above: Node | None = None
        """The limit that this one shares with others."""
        self.keeps: object = None
        """The limiter or budget that it shares, which as a key of others would be evicted if nobody held it."""
        self.seen: int = 0
        """As a key of others: what `granted` was when it was looked at last, ..."""
        self.seen_at: int = 0
        """... and when it was first found to be that."""
        self.permits_above: Callable[[int], int] = int
        """How many of its permits a request takes."""
        self.flows: FairQueue[Request | Node] | None = None
        """Who takes turns here: the limits below, and the first of the line; None: nobody shares this limit."""
        self.flow: Flow | None = None
        """This limit among those that share the one above."""
        self.standing: Ticket | Node | None = None
        """The first here, which stands in the line above."""
        self.stood: int = 0
        """Its permits there."""
        self.since: int = 0
        """The instant of the limit above since which it stands there."""
        self.due: int | None = None
        """The instant at which the first is due here; None: unknown, as while paused."""
        self.waited_above: Callable[[int], None] | None = None
        """Told of the permits of a request here that waited for the limit above, just before they are granted."""
        self.wake_at: int | None = None
        """The reading of the clock at which the tree looks here; None: it does not."""
        self.resuming: int = 0
        """Grants from here whose tasks have not gone on yet."""
        self._own: Flow | None = None  # of the line, among the flows
        self._head: Ticket | None = None  # of the line, which stands among the flows; without flows: for which the timer is set
        self._serving = False

    def share(self, above: Node, permits_above: Callable[[int], int] = int) -> None:
        """Take from that limit too from now on."""
        self.above, self.permits_above, self.tree = above, permits_above, above.tree
        if above.flows is None:
            above.flows, above._own, above._head = FairQueue(), Flow(1), None
            self.tree.add(above)
        if self.flows is not None:
            self.tree.add(self)
        self.watcher.shared()
        self.open_meter()

    def weigh(self, weight: int) -> None:
        """Set its share of the limit above, relative to others. Called before anything stands there."""
        self.flow = Flow(weight)

    @property
    def loop(self) -> EventLoop | None:
        """The loop of its callers; None: not used in a loop yet."""
        return self.tree.loop

    @property
    def strategy(self) -> Scheduler:
        """The scheduler, without what a server said."""
        scheduler = self.scheduler
        return scheduler.inner if type(scheduler) is Capped else scheduler  # isinstance() is slow for classes with an ABC as their base

    @property
    def granted(self) -> int:
        """Permits granted in all."""
        return self.taken + self.meter.grabs

    @property
    def shut(self) -> bool:
        """Whether it is closed, or a limit above is."""
        return self.closed or (self.above is not None and self.above.shut)

    @property
    def max_permits(self) -> int | None:
        """The largest request that can ever be granted; None: any."""
        own, above = self.scheduler.max_permits, None if self.above is None else self.above.max_permits
        return own if above is None or (own is not None and own < above) else above

    def follow(self, read: ReadClock) -> None:
        """Go by the loop's clock, here and above."""
        node: Node | None = self
        while node is not None:
            if node.tree.clock is None and node.timeline.read is not read:
                node.timeline.follow(read)
                node.open_meter()
            node.timeline.begun = True
            node = node.above

    # Ask.

    def decide(
        self,
        permits: int,
        limit: int | None = None,
        most: Admission | None = None,
        refusals: Refusals = ACQUIRE,
        since: int | None = None,
        turned: bool = False,
        ticket: Ticket | None = None,
    ) -> Answer:
        """Take the permits, or put the request in line for at most ``limit`` ns; raises the error if it may not wait there.

        Returns no ticket, the instant for which the request is scheduled, the clock's reading and what was taken, if it is granted at
        once; otherwise a ticket for `wait`, `NOT_ASKED`, and the reading. In a starved loop, unless it has just ``turned``, grants and
        refusals come with a ticket too: the caller lets the loop turn before it goes on, and a refused request is asked for again.
        ``most`` raises if too many wait. ``ticket`` is that of a caller in another thread.
        """
        if self._head is not None and limit is None and most is None and ticket is None and self.above is None and not self.closed:
            asked = self.timeline.read()
            return self._join(permits, since, None), NOT_ASKED, asked, ()  # there is nothing else to ask
        try:
            found = self.take(permits, since)
            loop = self.tree.loop
            if found is None and (limit is not None or most is not None or self.shut):
                if not turned and loop is not None and loop.starved():
                    return TURN, NOT_ASKED, 0, ()
                self._admit(permits, limit, most, refusals)
        except Exception:
            if turned or self.tree.loop is None or not self.tree.loop.starved():
                raise
            return TURN, NOT_ASKED, 0, ()
        if found is None:
            asked = self.timeline.read()
            ticket = self._join(permits, since, ticket)
            if limit is not None:
                try:
                    self.tree.limit_wait(self, ticket, permits, asked, limit, refusals)
                except BaseException:  # no timer
                    self.leave(ticket, permits, self.tree.epoch)
                    raise
            return ticket, NOT_ASKED, asked, ()
        at, taken = found
        if turned or loop is None or taken[0][2] + self.timeline.offset < loop.check_after or not loop.starved():
            return None, at, 0, taken
        self._begin_line(loop)
        return self.grant_later(self.driver.ticket(permits), at, taken)

    def grant_later(self, ticket: Ticket, at: int, taken: Taken) -> Answer:
        """Have the ticket's task go on with what was taken at once, after the loop has turned. Returns the answer of `decide`."""
        hold(taken)
        for node, _, _ in taken:
            node.resuming += 1
        self.tree.resuming += 1
        reading = self.timeline.read()
        ticket.set_result((at, taken, reading, None))
        return ticket, at, reading, ()

    def take(self, permits: int, since: int | None = None) -> tuple[int, Taken] | None:
        """Take the permits here and above, or nowhere, if nobody is in line and they are due. ``since`` when they are wanted: now.

        Returns the instant for which they are scheduled, and what was taken; None if they were not.
        """
        now, tree, until = self.timeline.now(), self.tree, self.meter.until
        if not (until and now < until):
            loop = tree.loop
            if loop is None or not loop.monotonic or (now + self.timeline.offset >= loop.check_after and not tree.threads):
                loop = tree.here(self)
                if loop is not None and loop.monotonic:
                    loop.starved()  # so that the meter is open for as long as that is known
                now = self.timeline.now()
            if self.is_held:
                tree.here(self)  # a line of another loop, or of the process before a fork, does not count
                if self.is_held:
                    return None
        if self.above is not None:
            return self._take_up(permits, since)
        if since is None and self.catch_up.late is not None:
            since = self.catch_up.since(now, self.resuming)
        at = self.scheduler.take(permits, now, since)
        if at > now:
            self.catch_up.late = None
        else:
            self.taken += permits
        self.open_meter(now)
        return None if at > now else (at, ((self, permits, now),))

    def _take_up(self, permits: int, since: int | None) -> tuple[int, Taken] | None:
        path: list[tuple[Node, int, int]] = []
        node = self
        while True:
            now, above = node.timeline.now(), node.above  # now() ends a pause that is over
            if node.is_held:
                node.tree.here(node)
                if node.is_held:
                    return None
            if permits:
                if above is not None and node.scheduler.peek(permits, now) > now:  # the highest takes first, and says so itself
                    node.catch_up.late = None
                    return None
                path.append((node, permits, now))
            if above is None:
                break
            permits, node = node.permits_above(permits), above
        instants = [None if node.catch_up.late is None else node.catch_up.since(now, node.resuming) for node, _, now in path]
        if since is not None:
            instants[0] = since
        taken = tuple(path)
        at, refused = _take_all(taken, instants)
        if refused is None:
            return at, taken
        refused.catch_up.late = None
        return None

    def _admit(self, permits: int, limit: int | None, most: Admission | None, refusals: Refusals) -> None:
        """Raise the error of a request that was refused and may not wait in line, or not for ``limit`` ns."""
        if self.shut:
            raise refusals.closed(self)
        if most is not None:
            most.check(permits, refusals)
        if limit is not None:
            now = self.timeline.now()
            wait = self.wait_for(permits, now)
            if wait is None or wait > limit:
                if not limit and self.above_on_demand:
                    raise refusals.no_lease()
                self.noted.refused += 1
                raise refusals.too_long(permits, limit, wait, self, now)

    def _join(self, permits: int, since: int | None, ticket: Ticket | None) -> Ticket:
        """Put a request in line."""
        tree = self.tree
        loop = tree.loop
        if ticket is None:
            native = running_loop()
            if loop is None or native is not loop.native:
                loop = tree.here(self)
            if loop is None or native is None:
                instead = "acquire_blocking() waits without one." if tree.threads else "try_acquire() and delay() work without one."
                raise RuntimeError(f"acquire() can only wait in a running event loop; {instead}")
        assert loop is not None  # threads have one
        if self.line is _NOBODY:
            self._begin_line(loop)
        if ticket is None:
            ticket = self.driver.ticket(permits)
        self.line.join(ticket, permits, self.timeline.now() if since is None else since)
        if self._head is None:
            self.look()
        return ticket

    def _begin_line(self, loop: EventLoop) -> None:
        if self.line is _NOBODY:
            self.line, self.driver = Line(), loop.make_driver(self)
            self.tree.add(self)

    # Wait, go on, leave.

    async def wait(
        self,
        ticket: Ticket,
        permits: int,
        asked: int,
        limit: int | None = None,
        most: Admission | None = None,
        refusals: Refusals = ACQUIRE,
        since: int | None = None,
    ) -> tuple[int, int, Taken]:
        """Wait until the ticket of `decide`, whose arguments these are, is decided and the loop has turned. Returns what `resume` does.

        Cancelled meanwhile, the request is undone. `aiorate.Limiter.acquire` has these lines too: a coroutine in between would cost
        each of 100 000 waiters 220 bytes and a twentieth of the time.
        """
        tree = self.tree
        if ticket is TURN:
            assert tree.loop is not None  # it is starved
            await tree.loop.turn()
            again, at, reading, taken = tree.ask(self, permits, limit, most, refusals, since, True)
            if again is None:
                return 0, at, taken
            ticket, asked = again, asked or reading
        epoch, decided, loop = tree.epoch, ticket.done(), tree.loop
        try:
            while not ticket.done():
                await tree.wait(self, ticket)
            # Of tasks that resume in one iteration, only the last may be sure that another follows.
            if (decided or tree.resuming > 1) and loop is not None and loop.starved():
                await loop.turn()
        except BaseException:
            tree.leave(self, ticket, permits, epoch)
            raise
        return self.resume(ticket, asked, permits, epoch, refusals)

    def resume(self, ticket: Ticket, asked: int, permits: int, epoch: int, refusals: Refusals = ACQUIRE) -> tuple[int, int, Taken]:
        """Go on with a decided request, which was asked for when the clock read ``asked``, or raise its error.

        Returns the nanoseconds waited, the instant for which the request was scheduled, and what was taken. Told are those who watch.
        """
        outcome = ticket.result()
        if isinstance(outcome, BaseException):
            self.tree.release(ticket)
            raise outcome
        at, taken, reading, limited_by = outcome
        waited = max(reading - asked, 0)  # by the clock of another loop, it may be less
        self.tree.go_on(self, ticket, taken, epoch, waited)
        watch = self.extras.watch
        if watch is not None:
            watch.tell(self, waited, permits, refusals, refusals.dimension(permits) or limited_by)
        return waited, at, taken

    def go_on(self, taken: Taken, epoch: int, waited: int) -> None:
        """The task of a granted request goes on."""
        if epoch == self.tree.epoch:
            self.tree.resuming -= 1
            for node, _, _ in taken:
                node.resuming -= 1
            kept(taken)
        if waited > 0:
            self.noted.note(waited)

    def leave(self, ticket: Ticket, permits: int, epoch: int) -> None:
        """Undo a request whose task was cancelled, in line or granted but not yet resumed. Never raises, and never waits."""
        outcome, current = outcome_of(ticket), epoch == self.tree.epoch
        if outcome is None:
            self.counters.cancelled += 1
            if current:
                self.driver.leave(ticket)
                self.line.leave(ticket, permits)
                self.tree.left(ticket)
                if ticket is self._head:
                    self.look_if_alive()
        elif not isinstance(outcome, BaseException):
            taken = outcome[1]
            if current:
                self.tree.resuming -= 1
                for node, _, _ in taken:
                    node.resuming -= 1
            undo(taken, held=current)

    # Look.

    def first(self) -> Request | Node | None:
        """Who is next: a request, or a limit below whose first stands here; None: nobody."""
        line, flows = self.line, self.flows
        if flows is None:
            return line.first()
        request, own = line.first(), self._own
        assert own is not None  # with the flows
        ticket = None if request is None else request[0]
        if ticket is not self._head:
            if own.number:
                flows.leave(own)
            self._head = ticket
            if request is not None:
                flows.join(own, amount_of(request[1]), request)
        found = flows.first()
        if found is None:
            flows.forget()
            return None
        return found[1]

    def look(self) -> None:
        """Decide as far as can be now: something may have changed for the first, here and above."""
        node: Node | None = self
        while node is not None:
            node = node._look()

    def ring(self) -> None:
        """The first is due."""
        if self.line is _NOBODY:  # only limits below wait here
            self.look()
        else:
            self.driver.ring(self)

    def look_if_alive(self) -> None:
        """`look`, unless the loop is closed, where nobody can be woken."""
        loop = self.tree.loop
        if loop is not None and not loop.closed:
            self.look()

    def _look(self) -> Node | None:
        """Grant what is due, or stand above, or set the timer. Returns the limit above if its first may be another one now."""
        tree = self.tree
        if self._serving or tree.loop is None:
            return None
        self._serving = True
        self.meter.until = self.meter.try_until = 0
        try:
            return self._look_on(self.timeline.now())
        except Exception as error:  # of a strategy or a clock: nobody hangs
            self._fail(error)
            return self._sit()
        finally:
            self._serving = False
            if self.flows is None and not self.line:
                self._head = None
            self.open_meter()

    def _look_on(self, now: int) -> Node | None:
        above, tree = self.above, self.tree
        moved: Node | None = None
        while True:
            first = self.first()
            if self.flows is None:
                self._head = None if first is None else first[0]  # type: ignore[index]  # without flows, it is a request
            if first is None or self.timeline.held_at is not None:
                self.due = None
                if first is not None:
                    self.watcher.held_up()
                tree.wake(self, None if first is None or self.timeline.stopped else self.timeline.paused_until)
                return self._sit() or moved
            if above is None:
                self._serve(now)
                return None
            standing, permits = (first, first.stood) if isinstance(first, Node) else (first[0], first[1])
            up = self.permits_above(permits)
            error = self._impossible(up)
            if error is not None:
                moved = self._sit() or moved
                if isinstance(first, Node):  # which finds that out too
                    first._sit()
                    first._look()
                else:
                    self._remove(first[0], permits)
                    first[0].set_result(error)
                continue
            at = self.scheduler.peek(permits, now) if permits else now
            if at > now:
                self._await(at)
                return self._sit() or moved
            due = self._due_of(first, now) if self.due is None and isinstance(first, Node) else self.due
            late = 0 if due is None else min(now - due, self.catch_up.limit)
            if not up:  # nothing is taken above
                moved = self._sit() or moved
                self._serve(now, only=True)
                if self.due is not None:
                    return moved
                continue
            self.due = now - late
            tree.wake(self, None)
            if self.standing is standing and self.stood == up:
                return moved
            moved = self._sit() or moved
            if self.flow is None:
                self.flow = Flow(1)
            assert above.flows is not None  # since it is shared
            self.standing, self.stood, self.since = standing, up, above.timeline.now() - min(late, above.catch_up.limit)
            above.meter.until = above.meter.try_until = 0
            above.flows.join(self.flow, amount_of(up), self)
            return above if moved is not None or above.flows.may_be_first(self.flow) else None

    def _sit(self) -> Node | None:
        """The first stands above no longer. Returns the limit above if it did."""
        if self.standing is None:
            return None
        self.standing = None
        assert self.above is not None
        assert self.above.flows is not None
        assert self.flow is not None
        self.above.flows.leave(self.flow)
        return self.above

    def _impossible(self, up: int) -> BaseException | None:
        """The error of a request that the limits above can never grant: they are closed, or allow less since a rate was changed."""
        above = self.above
        assert above is not None
        if above.shut:
            return LimiterClosed("acquire(): the limit that is shared with others is closed.")
        most = above.max_permits
        if most is not None and up > most:
            return ValueError(f"acquire({up}) can no longer be granted: {most} is the most at once of the limit that is shared.")
        return None

    def _await(self, at: int) -> None:
        """The first is due at that instant."""
        self.due = None if at >= NOBODY_KNOWS else at
        self.tree.wake(self, None if self.due is None else self.timeline.reading_at(at))

    def _remove(self, ticket: Ticket, permits: int) -> None:
        """Take the first request out of the line."""
        if self.flows is not None and self._own is not None and self._own.number:
            self.flows.leave(self._own)
        self._head = None
        self.line.pop_first()

    # Grant.

    def _serve(self, now: int, only: bool = False) -> None:
        """Grant what is due, in order, and set the timer for the next. ``only`` those that take nothing above."""
        line, scheduler, flows, tree, limit = self.line, self.scheduler, self.flows, self.tree, self.catch_up.limit
        loop = tree.loop
        assert loop is not None
        earliest, reading = now - limit, now + self.timeline.offset
        due = now if self.due is None else self.due
        late = min(max(now - due, 0), limit)
        spilled = scheduler.spilled if due < earliest else None  # too late to make up for all
        room = None if loop.manual else loop.room(tree.resuming)  # None: wake all
        woken, served, watched = 0, now, self.extras.watch
        taken: Taken = ()
        try:
            while True:
                first = self.first()
                if flows is None:
                    self._head = None if first is None else first[0]  # type: ignore[index]  # without flows, it is a request
                if first is None:
                    self.due = None
                    tree.wake(self, None)
                    if served < now:
                        self.catch_up.late = served, now
                    break
                if room is not None and woken >= room:
                    self._await(now)  # that is, as soon as the loop has turned
                    break
                if isinstance(first, Node):
                    granted = self._grant_below(first, now, late, reading)
                    if granted is None:
                        break
                    woken += granted
                    continue
                ticket, permits, since = first
                if only and self.permits_above(permits):
                    self.due = None
                    break
                left = line.left
                at = scheduler.take(permits, now, since if since > earliest else earliest)
                if at > now:
                    self._await(at)
                    break
                if not taken or taken[0][1] is not permits:
                    taken = ((self, permits, now),)
                try:
                    if line.left != left and line.first() != first:
                        raise InvalidStateError
                    ticket.set_result((at, taken, reading, None if watched is None else watched.paused(at, since)))
                except InvalidStateError:  # a finalizer has closed or cancelled its task since it was named
                    scheduler.give_back(permits, now, now)
                    continue
                if not woken:
                    scheduler.receipts = True
                woken += 1
                self.taken += permits
                self.resuming += 1
                self.counters.returnable += 1
                tree.resuming += 1
                served = at
                line.pop_first()
                if flows is not None:
                    assert self._own is not None
                    flows.grant(self._own)
                    self._head = None
        finally:
            if spilled is not None:
                skip(self, scheduler.spilled - spilled)

    def _due_of(self, below: Node, now: int) -> int:
        """When the first of that limit, which is due here now, became due: so much later somebody looks."""
        since = min(max(below.since, now - self.catch_up.limit), now)
        return min(self.scheduler.peek(below.stood, since), now) if below.stood and self.scheduler.books_since else since

    def _grant_below(self, below: Node, now: int, late: int, reading: int) -> int | None:
        """Grant the first of that limit, or of one below it. Returns the number of requests granted; None: it has to wait here."""
        path: list[tuple[Node, int, int]] = [(self, below.stood, now)]
        node, request = below, None
        while request is None:
            first = node.first()
            key, permits = (None, 0) if first is None else (first, first.stood) if isinstance(first, Node) else (first[0], first[1])
            if first is None or node.standing is not key or node.stood != node.permits_above(permits):
                return _again(path, node)  # another is first now than when it joined the line above
            path.append((node, permits, node.timeline.now()))
            if isinstance(first, Node):
                node = first
            else:
                request = first
        late = max(late, now - self._due_of(below, now))
        taken = tuple(reversed(path))
        at, refused = _take_all(taken, [each - min(late, limit.catch_up.limit) for limit, _, each in taken], waited=True)
        if refused is not None:
            refused._await(at)
            if refused is self:
                return None
            # A strategy below had said that they were due.
            for limit, _, _ in path[1:]:
                limit._sit()
                if limit is refused:
                    break
            return 0
        ticket, permits, _since = request
        limited_by = _limited_by(path) if node.extras.watch is not None else None
        try:
            ticket.set_result((at, taken, node.timeline.read(), limited_by))
        except InvalidStateError:  # as in _serve()
            undo(taken, held=False, look=False)
            return _again(path, node)
        hold(taken)
        self.tree.resuming += 1
        node.line.pop_first()
        lower: Node | None = None
        for limit, _, _ in taken:
            limit.resuming += 1
            if limit is not self:  # the next ones could not stand above before
                limit.due = limit.timeline.now() - min(late, limit.catch_up.limit)
            if limit.flows is not None:
                flow = limit._own if lower is None else lower.flow
                assert flow is not None
                limit.flows.grant(flow)
            if lower is None:
                limit._head = None
            else:
                lower.standing = None
                lower._look()
            lower = limit
        return 1

    # Changes, for those in line too.

    def changed(self) -> None:
        """Something changed for those in line too: the rate, what lies ready, or whether time passes."""
        self.catch_up.late = None
        self.look()
        self.open_meter()

    def check_below(self, most: int) -> None:
        """Have limits below look again whose first asks for more than ``most``: it can no longer be granted."""
        for _, below in [] if self.flows is None else self.flows.requests():
            if isinstance(below, Node) and below.stood > most:
                below._sit()
                below.look()

    def look_now(self) -> int:
        """Grant all that is due; returns the instant."""
        self.tree.here(self)
        now = self.timeline.now()
        if self.is_waited_for and (self.due is None or self.due <= now):
            self.look()
        self.open_meter(now)
        return now

    def look_from_top(self) -> None:
        """Grant all that is due, first in the limits above."""
        if self.above is not None:
            self.above.look_from_top()
        self.look_now()

    def fail(self, error: BaseException) -> None:
        """Fail every request in line: nobody hangs, and the limiter works on."""
        self._fail(error)
        above = self._sit()
        if above is not None:
            above.look()
        self.look_if_alive()

    def _fail(self, error: BaseException) -> None:
        request = self.line.first()
        while request is not None:
            self._remove(request[0], request[1])
            request[0].set_result(again(error))
            request = self.line.first()
        flows = self.flows
        if flows is not None:
            for flow, below in flows.requests():
                if isinstance(below, Node):
                    below.standing = None
                    flows.leave(flow)
                    below._fail(error)
        self.due = None
        self.tree.wake(self, None)

    def close(self, error: BaseException) -> None:
        """Fail every request in line, and grant nothing from now on."""
        self.look_now()
        self.closed = True
        self.fail(error)

    async def finish(self) -> None:
        """After `close`: return once no task is left."""
        if self.line is not _NOBODY:
            await self.driver.aclose()

    def disband(self, forked: bool) -> None:
        """The loop is no longer used: every request in line fails, if its loop can still wake it."""
        line, self.line = self.line, _NOBODY
        if line is not _NOBODY:
            if not forked:  # else the waiting tasks are in another process
                for ticket in line.clear():
                    try:
                        ticket.set_result(RuntimeError("the limiter was moved to another event loop while this one stood still"))
                    except RuntimeError:  # a closed loop wakes nobody
                        continue
            self.driver.retire()
        if self.flows is not None:
            for flow, _ in self.flows.requests():
                flow.number = 0
            self.flows = FairQueue()
        self.standing = self.due = self.wake_at = self._head = self.catch_up.late = None
        self.watcher.moved()
        # Grants whose tasks will never go on cannot come back; those that are held may.
        counters = self.counters
        counters.returnable = 0 if forked else max(counters.returnable - self.resuming, 0)
        self.resuming = 0
        self.scheduler.receipts = counters.returnable > 0

    def dismiss(self) -> None:
        """Nobody asks it again: its key was evicted."""
        self.watcher.dismissed()
        self.tree.forget(self)
        if self.line is not _NOBODY:
            self.driver.retire()
            self.line = _NOBODY

    def expire(self, over: Sequence[tuple[Ticket, int, int, Refusals]]) -> None:
        """Fail undecided requests in line, which wait no longer: their permits, their limit in ns, and their errors."""
        for ticket, permits, _, _ in over:
            self.noted.refused += 1
            self.line.leave(ticket, permits)
        more: int | None = 0
        for place, (ticket, permits, limit, refusals) in enumerate(over):
            if place < _ESTIMATED:
                try:
                    more = self.wait_for(permits, self.timeline.now())
                except Exception:  # of a strategy, a clock, or a store that is lost: those that left the line must be told
                    more = None
            ticket.set_result(refusals.overdue(permits, limit, more))
        if any(ticket is self._head for ticket, _, _, _ in over):
            self.look_if_alive()

    # Questions. Answers change nothing.

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits here, or a limit below does."""
        return self._head is not None or (self.flows is not None and self.flows.length > 0)

    @property
    def is_held(self) -> bool:
        """Whether no newcomer is granted now, whatever the scheduler says."""
        return self.closed or self.timeline.held_at is not None or self.is_waited_for

    @property
    def above_on_demand(self) -> bool:
        """Whether a limit above has permits only for requests that wait."""
        above = self.above
        return above is not None and (above.watcher.on_demand or above.above_on_demand)

    @property
    def waiting(self) -> int:
        """The requests that wait here. Every limit below whose first stands here counts as one."""
        flows = self.flows
        return self.line.count() + (0 if flows is None or self._own is None else flows.length - (self._own.number > 0))

    def wait_for(self, permits: int, now: int) -> int | None:
        """Nanoseconds until a request made now would be granted, those in line included, or less; None: unknown.

        It is exact in a line of its own where permits lie on a straight line. Where lines share a limit, those that are not there yet may
        come before it: then it takes longer.
        """
        return self._wait(permits, now, self.line.total, None)

    def _wait(self, permits: int, now: int, ahead: int, below: Node | None) -> int | None:
        """Nanoseconds until the permits are granted here and above to a request with ``ahead`` permits before it in its own line."""
        timeline, above = self.timeline, self.above
        if self.flows is not None and self.flows.length:
            mine = self._own if below is None else below.flow
            for each in self.flows.before(Flow(1) if mine is None else mine, amount_of(ahead), _COUNTED):
                ahead += each.stood if isinstance(each, Node) else each[1]
        at = max(self._peek(permits, now, ahead), now)
        reading = None if at >= NOBODY_KNOWS else timeline.reading_at(at)
        if reading is None:
            return None
        wait = max(0, reading - timeline.read()) if at != now or timeline.held_at is not None else 0
        if above is None:
            return wait
        up, ahead_up = self.permits_above(permits), self.permits_above(ahead) if ahead else 0
        if not up and type(ahead_up) is int and ahead_up:  # it takes nothing above, but comes after those that do
            up, ahead_up = 1, ahead_up - 1
        if not up:
            return wait
        most = above.max_permits
        if above.shut or (most is not None and up > most):
            return None
        there = above._wait(up, above.look_now(), ahead_up, self)
        return None if there is None else max(wait, there)

    def _peek(self, permits: int, now: int, ahead: int) -> int:
        """When the scheduler would grant them, once the present pause is over, which matters to one that follows the calendar."""
        scheduler, pause = self.scheduler, self.timeline.pause_length
        if not pause:
            return scheduler.peek(permits, now, ahead)
        scheduler.shift(pause)
        try:
            return scheduler.peek(permits, now, ahead)
        finally:
            scheduler.shift(-pause)

    def next_reading(self) -> int | None:
        """What the clock reads when the first in line is granted, or less; None: unknown, as before a stopped limiter is started."""
        first = self.first()
        assert first is not None
        if self.above is None and self.due is not None:
            return self.timeline.reading_at(self.due)
        permits, below = (first.stood, first) if isinstance(first, Node) else (first[1], None)
        wait = self._wait(permits, self.timeline.now(), 0, below)
        return None if wait is None else self.timeline.read() + wait

    def above_wait(self, permits: int) -> int | None:
        """Nanoseconds until the limit above, if there is one, would grant them to the first in line here, or less; None: unknown."""
        above = self.above
        if above is None or not (up := self.permits_above(permits)):
            return 0
        return None if above.shut else above._wait(up, above.look_now(), 0, self)

    def available(self) -> int:
        """How many permits a newcomer would get at once."""
        self.tree.here(self)  # a limit above may not have been used yet: see is_rested()
        now = self.timeline.now()  # which ends a pause that is over
        if self.is_held:
            return 0
        if self.watcher.state == "local":
            own = self.scheduler.available(now)
        else:  # a store that processes share has more than is in hand here
            own = min(left for left, _ in self.scheduler.standings(now))
        return own if self.above is None else min(own, self.above.available())

    def is_rested(self) -> bool:
        """Whether nothing would be lost, and nothing granted sooner, with a new limiter in its place."""
        loop = self.tree.loop
        if loop is None or (self.is_waited_for and loop.closed):
            self.tree.here(self)
        elif not self.timeline.begun:
            self.follow(loop.read)  # a schedule begins at the first instant that it is given, which must be one of the loop's clock
        now = self.timeline.now()  # which ends a pause that is over
        if self.counters.returnable or self.counters.altered or self.is_held or self.watcher.busy:
            return False
        return self.scheduler.rested(now)

    def open_meter(self, now: int | None = None) -> None:
        """Open or shut the meter, after anything that matters to it; for callers that only try, too, if it is ``now`` known who calls."""
        meter, timeline, loop = self.meter, self.timeline, self.tree.loop
        if type(self.scheduler) is Capped and timeline.held_at is None and self.scheduler.ended(timeline.now()):
            self.scheduler = self.scheduler.inner
        meter.until = meter.try_until = 0
        if loop is None or not loop.steady or self.closed or self.above is not None or type(self.scheduler) is Capped:
            return
        if timeline.held_at is not None or self.is_waited_for:
            return
        if not -FAR < timeline.offset < FAR:  # as after a loop in virtual time: more than the compiled meter holds
            return
        meter.read, meter.offset, meter.since = timeline.read, timeline.offset, FAR
        until = loop.check_after - timeline.offset
        meter.until = until if until < FAR else FAR
        if now is not None:
            meter.try_until = now + LOOP_CHECK_NS
        if self.catch_up.late is not None:
            meter.since, meter.until = self.catch_up.span(meter.until)
            meter.try_until = min(meter.try_until, meter.until)


def amount_of(permits: int) -> int:
    """The permits that count for a share: of a budget, its first dimension."""
    return permits.of[0] if isinstance(permits, Amounts) else permits


def _take_all(path: Taken, instants: Sequence[int | None], waited: bool = False) -> tuple[int, Node | None]:
    """Take from the limits of the path, the highest last in it and first to take, each booked since its instant; from all or none.

    Returns the instant for which the lowest scheduled it, and None; or when it is due, and the limit that refused. ``waited``: the
    request, or one before it, stood in the lines above.
    """
    at = NOBODY_KNOWS
    before: int | None = None
    for index in range(len(path) - 1, -1, -1):
        node, permits, now = path[index]
        if waited:
            if before is not None and node.since < before and node.waited_above is not None:
                node.waited_above(permits)
            before = now
        try:
            at = node.scheduler.take(permits, now, instants[index])
        except Exception as error:
            _take_none(path[index + 1 :])
            node.fail(error)
            raise
        if at > now:
            _take_none(path[index + 1 :])
            return at, node
        node.taken += permits
    return at, None


def _take_none(path: Taken) -> None:
    """Take those back."""
    for node, permits, instant in path:
        node.scheduler.give_back(permits, instant, instant)
        node.taken -= permits


def _again(path: list[tuple[Node, int, int]], node: Node) -> int:
    """Have the limits of the path stand above anew."""
    limits = [limit for limit, _, _ in path[1:]]
    for limit in [*limits, *([] if node in limits else [node])]:
        limit._sit()
    for limit in [*([] if node in limits else [node]), *reversed(limits)]:
        limit._look()
    return 0


def _limited_by(path: list[tuple[Node, int, int]]) -> str | None:
    """The highest limit in whose line the request, or one before it, waited."""
    for (above, _, now), (below, _, _) in itertools.pairwise(path):
        if below.since < now:
            return None if below.noted is above.counters else above.notices.name or "shared"
    leaf = path[-1][0]
    return None if leaf.noted is leaf.counters else "max_concurrency"


def hold(taken: Taken) -> None:
    """Record takes: one more grant may come back."""
    for node, _, _ in taken:
        node.counters.returnable += 1
        node.scheduler.receipts = True


def kept(taken: Taken) -> None:
    """A grant stands. The last that does stops recording."""
    for node, _, _ in taken:
        counters = node.counters
        if counters.returnable:
            counters.returnable -= 1
        if not counters.returnable:
            node.scheduler.receipts = False


def undo(taken: Taken, held: bool = True, look: bool = True) -> None:
    """What a request took comes back, as it was not made, and the next moves up. A grant of before a reset stays spent."""
    failed: Exception | None = None
    for node, permits, instant in taken:
        counters = node.counters
        counters.cancelled += node.noted is counters  # a request for a place is one of the limit above
        try:
            if counters.since is None or instant > counters.since:
                counters.given_back += permits
                node.scheduler.give_back(permits, node.timeline.now(), instant)
        except Exception as error:  # of a strategy: the other limits get theirs back all the same
            failed = error
    if held:
        kept(taken)
    if look:
        for node, _, _ in taken:
            node.look_if_alive()
    if failed is not None:
        raise failed


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
