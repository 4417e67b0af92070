"""A limit, as its callers have it: they ask and wait, look when their turn comes, and change it while others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from aiorate._errors import check_count
from aiorate._rate import Rate, duration_to_ns, ns_to_seconds
from aiorate._schedulers.amounts import count_of
from aiorate._schedulers.interface import Scheduler
from aiorate._tree.node import Node, undo
from aiorate._tree.refusals import full, no_lease, too_long
from aiorate._tree.supply import SAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from aiorate._feedback import Feedback, Quota
    from aiorate._loops.loop import Ticket
    from aiorate._rate import Number
    from aiorate._schedulers.amounts import Amounts, Permits
    from aiorate._spec import RateSpec
    from aiorate._tree.node import Taken

    # For when the request was scheduled, and what was taken; or a ticket to wait with.
    Answer = tuple[int, Taken] | Ticket


_MOST_LEVELS = 64  # a decision takes about ten nested calls for each, and Python allows a thousand
_KEY = "a key or a budget"
_NEWS_NS = 1_000_000_000  # a pause that grows by less is not reported again, because many responses come one after the other


class Limit(Node):
    """One scheduler, those who wait for it, and all that can be asked of it, by callers in one event loop."""

    __slots__ = ()

    # Ask, wait, go on. `aiorate._tree.threads` does some of this differently, for many threads.

    def try_take(self, permits: Permits) -> tuple[int, Taken] | None:
        """`take`, for a caller that never waits."""
        return self.take(permits)

    def ask(self, permits: Permits, most_ns: int | None = None, since: int | None = None) -> Answer:
        """Take the permits, or put the request in line for at most ``most_ns``. Raises its error if it may not wait there.

        In a starved loop, it always returns a ticket, perhaps a decided one, so that callers who never wait let other tasks run.
        """
        try:
            found = self.decide(permits, most_ns, since)
            if not isinstance(found, tuple):
                return found
            tree, loop, now = self.tree, self.tree.loop, found[1][0][2]
            if loop is None or (tree.read is loop.read and now + self.offset + tree.shift < loop.check.until) or not tree.starved():
                return found
            ticket = self.ticket_for(permits, since)
            self._resuming(found[1], 1)
            ticket.set_result((*found, ticket.asked, None))
        except Exception as error:
            if self.tree.starved() is None:
                raise
            ticket = self.ticket_for(permits, since)
            ticket.set_result(error)
        return ticket

    def decide(self, permits: Permits, most_ns: int | None, since: int | None, ticket: Ticket | None = None) -> Answer:
        """As `ask`, whether the loop is starved or not. ``ticket`` is that of a caller in another thread."""
        bounded, wait_ns = most_ns is not None or self.max_waiting is not None, most_ns
        if self.above is not None or bounded or ticket is not None or self.line.head is None:  # else it waits
            found = self.take(permits, since)
            if found is not None:
                return found
            wait_ns, since = self._admit(permits, most_ns, since)
        ticket = self.ticket_for(permits, since, ticket, most_ns)
        self.line.join(ticket)
        if self.line.head is None:
            self.look()
        if wait_ns is not None:
            try:
                self.tree.limit_wait(self, ticket.asked + wait_ns, ticket)
            except BaseException:  # no timer
                Limit.give_up(self, ticket)
                raise
        return ticket

    def _admit(self, permits: Permits, most_ns: int | None, since: int | None) -> tuple[int | None, int | None]:
        """How long a request may stand in line, and since when. Raises its error if it may not."""
        if (error := self.impossible(permits)) is not None:
            raise error
        if self.max_waiting is not None:
            self.tree.here()  # the lines of a loop that was left do not count
            most, others = self.max_waiting
            lines = [self.line, *[other.line for other in others]]
            if sum(map(len, lines)) >= most:
                self.wait_counters.refused += 1
                raise full(permits, most)
        if most_ns is not None:
            if (once := self.provider.once(permits, most_ns)) is not None:
                return once
            wait = self.wait_for(permits, self.now())
            if wait is None or wait > most_ns:
                if not most_ns and self.on_demand:
                    raise no_lease(f"{'acquire' if isinstance(permits, int) else 'reserve'}(max_wait=0)")
                self.wait_counters.refused += 1
                raise too_long(permits, most_ns, wait, "" if isinstance(permits, int) else self._reason(permits))
        return most_ns, since

    def _reason(self, permits: Amounts) -> str:
        """Why a reservation that was refused would wait."""
        if self.held_at is not None:
            return " because it is paused"
        if not self.is_held and permits.waited_for is None and self.waited_above is not None:
            self.waited_above(permits)
        return f" for {permits.waited_for}" if permits.waited_for else " in line"

    async def acquire(self, permits: Permits, most_ns: int | None = None, since: int | None = None) -> tuple[int, int, Taken]:
        """`ask`, and wait until that is decided. Returns what `go_on` does.

        If the task is cancelled, the request is undone. `aiorate.Limiter.acquire` has these lines too: a coroutine in between would
        cost each of 100 000 waiters 220 bytes and a twentieth of the time.
        """
        ticket = self.ask(permits, most_ns, since)
        if isinstance(ticket, tuple):
            return 0, *ticket
        tree, waker, decided = self.tree, self.waker or self.tree.loop, ticket.done()
        try:
            while not ticket.done():
                await waker.wait(ticket)  # type: ignore[union-attr]  # somebody waits
            # Of tasks that resume in one iteration, only the last knows that another follows.
            if (decided or tree.resuming > 1) and (loop := tree.starved()) is not None:
                await loop.turn()
        except BaseException:
            self.give_up(ticket)
            raise
        return self.go_on(ticket)

    def go_on(self, ticket: Ticket) -> tuple[int, int, Taken]:
        """Go on with a decided request, or raise its error. Those who watch are told.

        Returns the nanoseconds waited, the instant for which the request was scheduled, and what was taken.
        """
        outcome = ticket.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        at, taken, reading, limited_by = outcome
        waited = max(reading - ticket.asked, 0)  # by the clock of another loop, it may be less
        self._went_on(ticket, taken, waited)
        if self.watch is not None:
            self.watch.tell(self.name, waited, ticket.wanted, limited_by)
        return waited, at, taken

    def _went_on(self, ticket: Ticket, taken: Taken, waited: int) -> None:
        if ticket.epoch == self.tree.epoch:
            self._resuming(taken, -1)
        if waited > 0:
            self.wait_counters.note(waited)

    def give_up(self, ticket: Ticket) -> None:
        """Undo a request whose task was cancelled, in line or granted but not yet resumed. Raises only errors of a strategy."""
        outcome, current = ticket.outcome, ticket.epoch == self.tree.epoch
        if outcome is None:
            self.wait_counters.cancelled += 1
            if current:
                self.leave(ticket)
        elif not isinstance(outcome, BaseException):
            if current:
                self._resuming(outcome[1], -1)
            undo(outcome[1])

    def wait_blocking(self, permits: Permits, most_ns: int | None = None) -> tuple[int, int, Taken]:
        """As `acquire`, blocking this thread."""
        raise RuntimeError(
            "acquire_blocking() needs a limiter for the whole process: Limiter(..., scope='process'). In a coroutine, await acquire()."
        )

    # What lies ready, here and above. A question takes nothing; what is due is granted first.

    @property
    def on_demand(self) -> bool:
        """Whether only requests that wait get permits, here or above."""
        return self.provider.on_demand or (self.above is not None and self.above.on_demand)

    def informed(self) -> int:
        """The present instant, after asking what a store has left."""
        self.look_now()
        self.provider.look()
        return self.look_now()

    def available(self) -> int:
        self.tree.here()  # a limit above may not have been used yet: see is_rested()
        now = self.now()  # which ends a pause that is over
        if self.is_held:
            return 0
        own = self.permitted.available(now)
        return own if self.above is None else min(own, self.above.available())

    def is_rested(self) -> bool:
        """Whether a new limiter in its place would lose nothing and grant nothing sooner."""
        self.tree.here()  # a schedule begins at the first instant given, which must be one of the loop's clock
        now = self.now()  # which ends a pause that is over
        if self.resuming or self.altered or self.is_held or self.provider.busy:
            return False
        return self.permitted._rested(now)

    # Changes, for those in line too.

    def pause(self, ns: int) -> None:
        """Let time stand still for ``ns``. Of several pauses, the latest end wins."""
        self.look_now()
        self.provider.pausing(ns)  # which may refuse it
        super().pause(ns)
        self.changed()

    def pause_longer(self, ns: int, jitter: int) -> int:
        """As `pause`, if that ends later than a present pause, and longer by a random part of ``jitter`` ns.

        Returns its length, or 0 if it ends hardly later and is not worth an event.
        """
        self.look_now()
        before, until = self.paused_until, self.tree.now() + ns
        if ns <= 0 or (before is not None and until <= before):
            return 0
        if jitter:
            from random import randrange

            # Drawn once for responses that come together: the longest of many draws would be the same for every client.
            ns += randrange(jitter)
        self.pause(ns)
        return ns if before is None or until - before >= _NEWS_NS else 0

    def resume(self) -> None:
        self.look_now()
        super().resume()
        self.provider.resumed()
        self.changed()

    def pause_with_store(self, ns: int, before: bool) -> bool:
        """Follow a store that pauses all its processes for ``ns``, or did ``before`` and no longer does. Returns whether it does."""
        if ns or before:  # a longer one, which another process has ended, ends here too
            super().resume()
        if ns:
            super().pause(ns)
        return ns > 0

    def refund(self, permits: int) -> None:
        """Take back the permits, of any grant, here and in every shared limit."""
        counters = self.own_counters()
        self.scheduler.give_back(permits, self.look_now())
        counters.refunded += permits
        counters.given_back += min(permits, count_of(self.granted - counters.given_back))
        if self.above is not None and (up := self.permits_above(permits)):
            self.above.refund(count_of(up))
        self.changed()

    def charge(self, permits: int) -> None:
        """Take the permits after the fact, as a debt, here and in every shared limit."""
        self.scheduler.charge(permits, self.look_now())
        self.own_counters().charged += permits
        if self.above is not None and (up := self.permits_above(permits)):
            self.above.charge(count_of(up))
        self.changed()

    def set_rate(self, rate: Rate | str | Number, member: int | None = None, found: bool = False) -> None:
        """Change the rate, or that of the member with that index. ``found``: to one that a server allows, and the key may be evicted."""
        scheduler: Scheduler = self.scheduler
        if member is not None:
            check_count("set_rate(member)", member)
            if member >= len(scheduler.members):
                raise ValueError(f"set_rate(member={member}): the strategy has {len(scheduler.members)} members, counted from 0.")
            scheduler = scheduler.members[member]
        scheduler.set_rate(Rate._of(rate), self.look_now())
        self.altered = self.altered or not found
        self._rate_changed()

    def apply(self, spec: RateSpec) -> None:
        """Apply rate, burst ratio and verb."""
        now = self.look_now()
        self.scheduler.apply(spec.rate, spec.burst_ratio, now)
        if spec.verb == "restart":
            self.scheduler.restart(now)
        if spec.verb == "stop":
            self.stop()
        elif spec.verb != "configure":
            self.start()
            self.closed = False
        self.altered = True
        self._rate_changed()

    def _rate_changed(self) -> None:
        """Fail requests in line that can no longer be granted, and time the others again."""
        self.own_counters().unused = 0  # a part of a permit, measured by the old rate
        for each in (*self.line, *self.line.below()):
            if (error := self.impossible(each.wanted)) is not None:
                self._refuse(each, error)
        self.changed()

    def observe(
        self, feedback: Feedback, jitter: int, limit_of: Callable[[Feedback, Quota], tuple[Self, str | None] | None] | None = None
    ) -> None:
        """Apply a server's pause, made longer by a random part of ``jitter`` ns, and its quotas: of requests, or those with a limit."""
        from aiorate._feedback import check_feedback
        from aiorate._schedulers.server_quotas import quotas_of

        check_feedback(feedback)
        before, resuming, paused = self.granted, self.resuming, feedback.pause is not None
        news = self.pause_longer(duration_to_ns(feedback.pause or 0, "observe()"), jitter)
        for quota in feedback.quotas:
            if quota.remaining is None and quota.used is None:
                continue
            limit = limit_of(feedback, quota) if limit_of is not None else (self, None) if quota.unit == "requests" else None
            if limit is not None:
                node, dimension = limit
                now, in_flight = node.look_now(), 0
                if feedback.in_flight is not None:  # so are requests that have not run yet, and what is granted by now
                    in_flight = feedback.in_flight + resuming + count_of(self.granted - before)
                if dimension is not None:
                    quotas = cast("Any", node.scheduler).quotas_of(dimension)
                else:
                    node.permitted = quotas = cast("Any", quotas_of(node.permitted))
                quotas.heed(quota, paused, now, node.held_for, in_flight)
                node.changed()
        if news:
            from aiorate._events import Event

            self.tell(Event("paused", self.name, seconds=ns_to_seconds(news), source=feedback.source))

    def reset(self) -> None:
        """Everything as new, except the requests in line. Raises RuntimeError for a limit that processes share."""
        if self.provider.state != "local":
            raise RuntimeError("reset(): other processes share this limit and remember it. Use another name.")
        self.look_now()
        parts = cast("list[Scheduler]", [self.scheduler])
        for part in parts:  # the list grows meanwhile
            if type(part).reset is Scheduler.reset:
                part.reset(0)  # raises, before anything changes
            parts += part.members
        self.start()
        super().resume()
        now = self.now()
        self.offset -= 1  # so that what is granted from now on has a later instant than what was granted before
        self.scheduler.reset(self.now())
        self.permitted = self.scheduler
        granted = self.granted
        self.unmetered = self.meter.grabs = 0  # first: totals are read at any time, and may be too low, but not too high
        self.own_counters().clear(granted, now)
        self.changed()

    def belong(self, above: Self | None, permits_above: Callable[[Permits], Permits] = SAME) -> None:
        """Belong to a key or a budget from now on, and take every grant from the limit above too, if given. ValueError if it cannot."""
        if self.above is not None or self.scheduler._owner is _KEY:
            raise ValueError("it belongs to another key, or shares a limit, already: make one for each key.")
        if above is not None:
            if self.line.is_waited_in or self.resuming:
                raise ValueError("it is in use already: make one that is not.")
            level, top = 2, above
            while top.above is not None and top is not self:
                level, top = level + 1, top.above
            if top is self:
                raise ValueError("it is the limit that is shared, or one that this shares in turn: make one for each key.")
            if level > _MOST_LEVELS:
                raise ValueError(f"it would be the limit of level {level} in a row; {_MOST_LEVELS} are the most.")
        self.scheduler._owner = _KEY
        if above is not None:
            self.share(above, permits_above)
