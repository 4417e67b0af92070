"""A node: a limit, its line, and the lines of the limits below, whose first requests stand here.

The rule of the tree: the first of a line stands in the line of the limit above, once it is due in its own. A grant is one walk from the
root down to a request, and every limit on the way takes, or none does. Then every limit on the way looks again, the lowest first, so that
its next request stands above before the next permit is granted.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from aiorate._loops.table import running_loop
from aiorate._meter import Meter
from aiorate._schedulers.interface import NOBODY_KNOWS, Scheduler
from aiorate._schedulers.token_pool import TokenPool
from aiorate._tree.fair_queue import Flow
from aiorate._tree.line import NOBODY, Line
from aiorate._tree.refusals import overdue
from aiorate._tree.supply import SAME, Supply, take_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from aiorate._loops.loop import Ticket, Waker
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.tree import Tree


# What a request took: of each limit from its own up, the permits, and the instant at which it took them.
Taken = tuple[tuple["Node", "Permits", int], ...]
# For when the request was scheduled, what it took, the clock's reading then, and what it waited for last; see `Waited.limited_by`.
Grant = tuple[int, Taken, int, str | None]
# An error is a result, not an exception: asyncio logs "exception was never retrieved" for abandoned futures.
Outcome = Grant | BaseException


class Node(Supply):
    """One scheduler and the requests for it."""

    __slots__ = ("__weakref__", "_serving", "due", "flow", "keeps", "standing", "used", "wake_at", "waker", "wanted")

    line: Line[Node]

    def __init__(self, scheduler: Scheduler, catch_up: int, tree: Tree, name: str | None = None) -> None:
        super().__init__(scheduler, catch_up, tree, name)
        self.waker: Waker | None = None  # makes the tickets of its line; None: nobody has waited in it
        self.keeps: object = None  # the limiter that it shares, which might be evicted if nobody held it
        self.used: int = 0  # of a key: how often any had been used, or the clock read, at its last use; below 0: it was looked at since
        self.flow: Flow | None = None  # this limit among those that share the one above
        self.standing: Ticket | Node | None = None  # the first here, which stands in the line above
        self.wanted: Permits = 0  # its permits there
        self.due: int | None = None  # when the first is due here; None: unknown, as while paused
        self.wake_at: int | None = None  # the clock's reading at which the tree looks here; None: it does not
        self._serving = False

    def share(self, above: Self, permits_above: Callable[[Permits], Permits] = SAME) -> None:
        """Take from that limit too from now on."""
        self.move(above.tree)
        self.above, self.permits_above = above, permits_above
        if above.line.turns is None:
            above._made_line().share()
            self.tree.add(above)
            above.look()  # for those who wait there already
        if self.line.turns is not None:
            self.tree.add(self)
        self.provider.shared()
        straight = [type(each.meter) is Meter and each.meter is each.scheduler._meter for each in (self, above)]
        if permits_above is SAME and all(straight):  # a meter that asks its scheduler takes nothing above
            self.meter.above = above.meter
        self.open_meter()

    def ticket_for(self, permits: Permits, since: int | None, ticket: Ticket | None = None, most_ns: int | None = None) -> Ticket:
        """The ticket of a request made now. ``ticket`` is that of a caller in another thread; None: it is made here."""
        tree, waker = self.tree, self.waker
        if ticket is None:
            native, loop = running_loop(), tree.loop
            if loop is None or native is not loop.native:
                loop = tree.here()
                waker = self.waker
            if loop is None or native is None:
                instead = "acquire_blocking() waits without one." if tree.threads else "try_acquire() and delay() work without one."
                raise RuntimeError(f"acquire() can only wait in a running event loop; {instead}")
        if waker is None:
            waker = self._begin_line()
        if ticket is None:
            ticket = waker.ticket()
        ticket.wanted, ticket.since, ticket.left = permits, self.now() if since is None else since, False
        ticket.asked, ticket.most_ns, ticket.epoch = tree.now(), most_ns, tree.epoch
        return ticket

    def _begin_line(self) -> Waker:
        self._made_line()
        loop = self.tree.loop
        assert loop is not None  # threads have one
        self.waker = waker = loop.filler(self.look, self.fail, self.name) if isinstance(self.scheduler, TokenPool) else loop
        self.tree.add(self)
        return waker

    def _made_line(self) -> Line[Node]:
        if self.line is NOBODY:
            self.line = Line()
        return self.line

    def leave(self, ticket: Ticket) -> None:
        """An undecided request leaves the line. Never raises."""
        self.line.leave(ticket)
        if ticket is self.line.head:
            self.look()

    # Look.

    def look(self) -> None:
        """Decide what can be decided now, here and above. In a closed loop nobody can be woken."""
        loop = self.tree.loop
        node = None if loop is None or loop.closed else self
        while node is not None:
            node = node._look()

    def first(self) -> Ticket | Node | None:
        """Who is next: a request, or a limit below whose first stands here."""
        line = self.line
        if line.head is not line.first_request():  # one that was cancelled has not left yet
            self.look()
        return line.first()

    def ring(self) -> None:
        if self.waker is None or not self.waker.ring():
            self.look()

    def _look(self) -> Node | None:
        """Grant what is due, or stand above, or set the timer. Returns the limit above if its first may be another one now."""
        above, flow, loop = self.above, self.flow, self.tree.loop
        if self._serving or loop is None:
            if loop is not None:  # a finalizer has changed something in the middle
                loop.post(self.look)
            return None
        self._serving = True
        self.meter.until = 0
        stood = 0 if flow is None else flow.number
        try:
            now, due, scheduler = self.now(), self.due, self.scheduler
            too_late = above is None and due is not None and now - due > self.catch_up  # to make up for all
            spilled = scheduler._spilled if too_late else 0
            self._decide(now)
            if too_late:
                self.skip(scheduler._spilled - spilled)
        except Exception as error:  # of a strategy or a clock: nobody hangs
            self._fail(error)
        finally:
            self._serving = False
            self.open_meter()
        flow = self.flow
        if flow is None or flow.number == stood or above is None or above.line.turns is None:
            return None
        return above if stood or above.line.turns.may_be_first(flow) else None

    def _decide(self, now: int) -> None:
        """Grant the first, or have it stand above, until the first has to wait."""
        line, tree, above, served = self.line, self.tree, self.above, now
        # A loop that stands still, and has yet to resume its tasks, must not hold up the other loops.
        most = tree.most + (tree.resuming if tree.threads else 0)
        while True:
            first = line.first()
            if first is None or self.held_at is not None:
                if first is not None:
                    self.provider.held_up()
                elif served < now:
                    self.late = served, now
                self._leave_above()
                self.due = None
                tree.wake(self, None if first is None or self.stopped else self.paused_until)
                return
            if above is not None:
                up = self.permits_above(first.wanted)
                if (error := above.impossible(up)) is not None:
                    self._refuse(first, error)
                    continue
                if up:
                    self._stand(first, up, now)
                    return
            if tree.resuming >= most:
                self._set_due(now)  # that is, as soon as the loop has turned
                return
            at = self._grant(first, now)
            if at is None:
                return
            served = now if isinstance(first, Node) else at

    def _refuse(self, each: Ticket | Node, error: BaseException) -> None:
        if isinstance(each, Node):  # which finds that out too
            each._leave_above()
            each._look()
        else:
            self.line.leave(each)
            each.set_result(error)

    def _set_due(self, at: int) -> None:
        self._leave_above()
        self.due = None if at >= NOBODY_KNOWS else at
        self.tree.wake(self, None if self.due is None else self.reading_at(at))

    def _stand(self, first: Ticket | Node, up: Permits, now: int) -> None:
        """Put the first in the line above, once it is due here."""
        above = self.above
        assert above is not None
        at = self.permitted.peek(first.wanted, now) if first.wanted else now
        if at > now:
            self._set_due(at)
            return
        due = self._due_of(first, now) if self.due is None and isinstance(first, Node) else self.due
        self.due = now if due is None else min(max(due, now - self.catch_up), now)
        self.tree.wake(self, None)
        if self.standing is not first or self.wanted != up:
            self._leave_above()
            self.flow = self.flow or Flow(1)
            self.standing, self.since = first, above.now() - min(now - self.due, above.catch_up)
            above.line.join_below(self.flow, up, self)
        self.wanted = up  # equal amounts, but perhaps of another request, which notes what it waited for

    def _resuming(self, taken: Taken, tasks: int) -> None:
        """Count ``tasks`` more that have yet to go on with a grant."""
        self.tree.resuming += tasks
        for limit, _, _ in taken:
            limit.resuming += tasks

    def _leave_above(self) -> None:
        if self.standing is not None:
            self.standing = None
            assert self.above is not None
            assert self.flow is not None
            self.above.line.leave_below(self.flow)

    def _due_of(self, below: Node, now: int) -> int:
        """When the first of that limit, which is due here now, became due."""
        since = min(max(below.since, now - self.catch_up), now)
        return min(self.permitted.peek(below.wanted, since), now) if below.wanted and self.scheduler.books_since else since

    def _grant(self, first: Ticket | Node, now: int) -> int | None:
        """Grant the first of this limit, or of one below it. Returns for when it was scheduled there; None: the next one is not due."""
        late = now - (self._due_of(first, now) if isinstance(first, Node) else first.since)
        path: list[tuple[Node, Permits, int]] = [(self, first.wanted, now)]
        limits: list[Node] = []  # those of the path below this one
        request: Ticket | Node | None = first
        while isinstance(request, Node):
            node = request
            limits.append(node)
            request = node.line.first()
            if request is None or node.standing is not request or node.wanted != node.permits_above(request.wanted):
                return _stand_anew(limits, now)  # another is first now than when it joined the line above
            path.append((node, request.wanted, node.now()))
        assert request is not None
        at, refused = _take_all(path, late)
        if refused is not None:
            refused._set_due(at)
            # A strategy below had said that they were due. Others may be due in the limits between.
            return None if refused is self else _stand_anew(limits[: limits.index(refused)], now)
        taken = tuple(reversed(path))
        watch, waited_for = taken[0][0].watch, None
        if watch is not None:
            waited_for = _limited_by(taken) if limits else watch.paused(at, request.since)
        try:
            if request.left:
                raise InvalidStateError
            request.set_result((at, taken, self.tree.now(), waited_for))
        except InvalidStateError:  # a finalizer has closed or cancelled its task since it was named
            take_none(taken)
            return _stand_anew(limits, now)
        self._resuming(taken, 1)
        lower: Node | None = None
        for limit, _, _ in taken:
            if limit is not self:  # the next ones could not stand above before
                limit.due = limit.now() - min(late, limit.catch_up)
            limit.line.grant(None if lower is None else lower.flow)
            if lower is not None:
                lower.standing = None
                lower._look()
            lower = limit
        return at

    # Changes, for those in line too.

    def changed(self) -> None:
        """Look again after a change of the rate, of what lies ready, or of whether time passes."""
        self.late = None
        self.look()
        self.open_meter()

    def look_now(self) -> int:
        """Grant all that is due; returns the instant."""
        self.tree.here()
        now = self.now()
        if self.line.is_waited_in and (self.due is None or self.due <= now):
            self.look()
        self.open_meter()
        return now

    def fail(self, error: BaseException) -> None:
        """Fail every request in line. The limiter works on."""
        self._fail(error)
        self.look()
        if self.above is not None:
            self.above.look()

    def _fail(self, error: BaseException) -> None:
        line = self.line
        for ticket in line:
            self._refuse(ticket, copy_of(error))
        for below in line.below():
            below._leave_above()
            below._fail(error)
        line.first()  # nobody
        self._set_due(NOBODY_KNOWS)

    def close(self, error: BaseException) -> None:
        """Fail every request in line, and grant nothing from now on."""
        self.look_now()
        self.closed = True
        self.fail(error)
        self.provider.closed()

    def disband(self, forked: bool) -> None:
        """Leave the loop: every request in line fails, if its loop can still wake it."""
        waker, self.waker = self.waker, None
        tickets, shared = list(self.line), self.line.turns is not None
        self.line = NOBODY
        if shared:
            self._made_line().share()
        if self.flow is not None:
            self.flow = Flow(self.flow.weight)
        if waker is not None:
            for ticket in [] if forked else tickets:  # else the waiting tasks are in another process
                with suppress(RuntimeError):  # a closed loop wakes nobody
                    ticket.set_result(RuntimeError("the limiter was moved to another event loop while this one stood still"))
        self.standing = self.due = self.wake_at = self.late = None
        self.provider.moved()
        self.resuming = 0

    def wait_for(self, permits: Permits, now: int, ahead: Permits | None = None, below: Node | None = None) -> int | None:
        """Nanoseconds until a request made now would be granted, here and above, or less; None: unknown.

        ``ahead``: the permits before it in its own line, all in line by default; ``below``: the limit that has that line, if it is below.
        Where lines share a limit, it may take longer, because later requests of other lines may come first.
        """
        above = self.above
        if self.impossible(permits) is not None:
            return None
        before = self.line.total if ahead is None else ahead
        for each in self.line.ahead(before, None if below is None else below.flow or Flow(1)):
            before += each.wanted
        at = max(self._peek(permits, now, before), now)
        reading = None if at >= NOBODY_KNOWS else self.reading_at(at)
        if reading is None:
            return None
        wait = max(0, reading - self.tree.now()) if at != now or self.held_at is not None else 0
        if above is None:
            return wait
        up, before_up = self.permits_above(permits), self.permits_above(before) if before else 0
        if not up and isinstance(before_up, int) and before_up:  # it takes nothing above, but comes after those that do
            up, before_up = 1, before_up - 1
        if not up:
            return wait
        there = above.wait_for(up, above.look_now(), before_up, self)
        return None if there is None else max(wait, there)

    def expire(self, over: Iterable[Ticket]) -> None:
        """Fail those requests in line that are not due either."""
        self.look_now()
        late = [ticket for ticket in over if not (ticket.left or ticket.done())]
        for ticket in late:
            self.wait_counters.refused += 1
            self.line.leave(ticket)
        more: int | None = None  # how long the first would wait on top
        with suppress(Exception):  # of a strategy, clock or store: those that left the line must be told
            more = self.wait_for(late[0].wanted, self.now())
        for ticket in late:
            ticket.set_result(overdue(ticket.wanted, ticket.most_ns or 0, more))
        self.look()


def _take_all(path: list[tuple[Node, Permits, int]], late: int) -> tuple[int, Node | None]:
    """Take from all limits of the path or none, the highest first, each booked ``late`` ns ago.

    Returns the instant for which the lowest scheduled it, and None; or when it is due, and the limit that refused.
    """
    at, before, got = NOBODY_KNOWS, None, 0
    try:
        for limit, permits, now in path:
            if before is not None and limit.since < before and limit.waited_above is not None:
                limit.waited_above(permits)
            at, before = NOBODY_KNOWS, now
            at = limit.permitted.take(permits, now, now - min(late, limit.catch_up))
            if at > now:
                return at, limit
            limit.unmetered += permits
            got += 1
        return at, None
    finally:
        if got < len(path):
            take_none(path[:got])


def _limited_by(path: Taken) -> str | None:
    """The highest limit in whose line the request, or one before it, waited."""
    own = path[0][0]
    for (above, _, now), (below, _, _) in pairwise(reversed(path)):
        if below.since < now:
            return "max_concurrency" if above.is_places else None if below is own and own.is_places else above.name or "shared"
    return "max_concurrency" if own.is_places else None


def undo(taken: Taken) -> None:
    """Give back what a request took, as if it was not made. A grant from before a reset stays spent."""
    failed: Exception | None = None
    for limit, permits, instant in taken:
        limit.own_counters().cancelled += not limit.is_places  # a request for a place is one of the limit above
        try:
            limit.credit(permits, instant)
        except Exception as error:  # of a strategy: the other limits still get theirs back
            failed = error
    for limit, _, _ in taken:
        limit.look()
    if failed is not None:
        raise failed


def _stand_anew(limits: list[Node], now: int) -> int:
    """Have the limits, each above the next, stand above again. Returns ``now``: the next may be due."""
    for limit in limits:
        limit._leave_above()
    for limit in reversed(limits):
        limit._look()
    return now


def copy_of(error: BaseException) -> BaseException:
    """Another instance of the error: a single one, raised in many tasks, would collect all their frames."""
    from copy import copy

    try:
        twin = copy(error)
    except Exception:  # its class wants other arguments than it has kept
        twin = RuntimeError(f"{type(error).__name__}: {error}")
    twin.__cause__ = error.__cause__
    return twin
