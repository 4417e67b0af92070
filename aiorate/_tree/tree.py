"""The tree: what the limits that share each other have in common: the event loop, the timer, and how callers ask, wait and go on.

A limiter that shares nothing is a tree of one, and keys without a shared limit are a tree without a root. Knows nothing of rates.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from aiorate._loops.loop import call_back
from aiorate._loops.table import loop_of, running_loop
from aiorate._tree.agenda import Agenda
from aiorate._tree.limit import hold, kept, outcome_of, undo
from aiorate._tree.line import StandIn
from aiorate._tree.questions import above_on_demand, wait_for
from aiorate._tree.refusals import ACQUIRE, NOT_FOR_THREADS
from aiorate._tree.timeline import NOT_GRANTED

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from aiorate._loops.loop import Clock, Loop, Ticket
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.limit import Answer, Limit, Source, Taken
    from aiorate._tree.refusals import Admission, Refusals

    P = ParamSpec("P")
    T = TypeVar("T")


TURN: Ticket = StandIn(True)
"""The ticket of all requests that were refused in a starved loop: they are asked for again once it has turned."""
_NONE: dict[ref[Limit], None] = {}  # shared by all trees where nobody has waited; never changed
_IN_USE = (
    "this limiter is in use by another running event loop. For several loops or threads, create it with scope='process'; two limiters"
    " would allow twice as much."
)


class Tree:
    """One event loop and one timer for all limits that share each other."""

    __slots__ = ("__weakref__", "_agenda", "_limits", "clock", "epoch", "loop", "precise", "resuming")

    threads: bool = False
    """Whether callers of several loops and threads may ask."""

    def __init__(self, clock: Clock | None = None, precise: bool = False) -> None:
        self.clock: Clock | None = clock
        self.precise: bool = precise
        self.loop: Loop | None = None
        """The loop of its callers; None: not used in a loop yet."""
        self.epoch: int = 0
        """Goes up when another loop is used: requests of before are gone."""
        self.resuming: int = 0
        """Requests that were granted and whose tasks have not gone on yet."""
        self._agenda: Agenda | None = None  # when its limits are looked at; None: nobody has waited in this loop
        self._limits: dict[ref[Limit], None] = _NONE  # the shared ones, and those where somebody has waited; a set is larger

    # Where many threads ask, `aiorate._tree.threads` does these otherwise.

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that decides; where many threads ask, one at a time."""
        return call(*args, **options)

    def post(self, call: Callable[[], object]) -> None:
        """Call a function that decides, and never wait, also in a finalizer that interrupted a decision."""
        call()

    def read(self, call: Callable[[], T]) -> T:
        """Call a function that only looks, also in the middle of a decision."""
        return call()

    def change(self, call: Callable[[], object]) -> None:
        """Call a function that changes something; in a finalizer that interrupted a decision, once that is over."""
        call()

    def after(self, call: Callable[[], object]) -> None:
        """Call a function that may use the limiter, once the present decision is over."""
        call()

    def take(self, limit: Limit, permits: Permits) -> tuple[int, Taken] | None:
        """`Limit.take`, for a caller that never waits."""
        return limit.take(permits)

    def ask(
        self,
        limit: Limit,
        permits: Permits,
        most_ns: int | None,
        most: Admission | None,
        refusals: Refusals,
        since: int | None = None,
        turned: bool = False,
    ) -> Answer:
        """`request`, for a caller of this thread."""
        return self.request(limit, permits, most_ns, most, refusals, since, turned)

    def wait_blocking(
        self,
        limit: Limit,
        permits: Permits,
        most_ns: int | None = None,
        most: Admission | None = None,
        refusals: Refusals = ACQUIRE,
        since: int | None = None,
    ) -> tuple[int, Taken]:
        """Block this thread until the permits are granted; returns the ns waited, and what was taken."""
        raise RuntimeError(NOT_FOR_THREADS)

    def leave(self, limit: Limit, ticket: Ticket, permits: Permits, epoch: int) -> None:
        """Undo a request whose task was cancelled, in line or granted but not yet resumed. Never waits. An error is a strategy's."""
        outcome, current = outcome_of(ticket), epoch == self.epoch
        if outcome is None:
            limit.count().cancelled += 1
            if current:
                limit.leave(ticket, permits)
        elif not isinstance(outcome, BaseException):
            if current:
                self.resuming -= 1
            undo(outcome[1], held=current, tasks=1)

    def go_on(self, limit: Limit, ticket: Ticket, taken: Taken, epoch: int, waited: int) -> None:
        """The task of a granted request goes on."""
        if epoch == self.epoch:
            self.resuming -= 1
            kept(taken, 1)
        if waited > 0:
            limit.noted.note(waited)

    # Ask, wait, go on.

    def request(
        self,
        limit: Limit,
        permits: Permits,
        most_ns: int | None = None,
        most: Admission | None = None,
        refusals: Refusals = ACQUIRE,
        since: int | None = None,
        turned: bool = False,
        ticket: Ticket | None = None,
    ) -> Answer:
        """Take the permits, or put the request in line for at most ``most_ns``; raises the error if it may not wait there.

        Returns no ticket, the instant for which the request is scheduled, 0 and what was taken, if it is granted at once; otherwise a
        ticket for `wait`, `NOT_GRANTED`, and the clock's reading. In a starved loop, unless it has just ``turned``, grants and
        refusals come with a ticket too: the caller lets the loop turn before it goes on, and a refused request is asked for again.
        ``most`` raises if too many wait. ``ticket`` is that of a caller in another thread.
        """
        bounded = most_ns is not None or most is not None
        alone = not bounded and ticket is None and limit.above is None
        if alone and limit.line.head is not None and not limit.closed:
            asked = limit.read()
            return limit.join(permits, since, None), NOT_GRANTED, asked, ()  # there is nothing else to ask
        try:
            found = limit.take(permits, since)
            loop = self.loop
            if found is None and (not alone or limit.closed):
                if not turned and (bounded or limit.shut) and loop is not None and loop.starved():
                    return TURN, NOT_GRANTED, 0, ()
                self._admit(limit, permits, most_ns, most, refusals)
        except Exception:
            if turned or self.loop is None or not self.loop.starved():
                raise
            return TURN, NOT_GRANTED, 0, ()
        if found is None:
            asked = limit.read()
            ticket = limit.join(permits, since, ticket)
            if most_ns is not None:
                try:
                    self.limit_wait(limit, ticket, permits, asked, most_ns, refusals)
                except BaseException:  # no timer
                    self.leave(limit, ticket, permits, self.epoch)
                    raise
            return ticket, NOT_GRANTED, asked, ()
        at, taken = found
        if turned or loop is None or taken[0][2] + limit.offset < loop.check.until or not loop.starved():
            return None, at, 0, taken
        return self.grant_later(limit, ticket or limit.ticket(loop), at, taken)

    def _admit(self, limit: Limit, permits: Permits, most_ns: int | None, most: Admission | None, refusals: Refusals) -> None:
        """Raise the error of a request that was refused and may not wait in line, or not for ``most_ns``."""
        if limit.shut:
            raise refusals.closed(limit)
        if most is not None:
            most.check(permits, refusals)
        if most_ns is not None:
            now = limit.now()
            wait = wait_for(limit, permits, now)
            if wait is None or wait > most_ns:
                if not most_ns and above_on_demand(limit):
                    raise refusals.no_lease()
                limit.noted.refused += 1
                raise refusals.too_long(permits, most_ns, wait)

    def grant_later(self, limit: Limit, ticket: Ticket, at: int, taken: Taken) -> Answer:
        """Have the ticket's task go on with what was taken at once, after the loop has turned. Returns the answer of `request`."""
        hold(taken, 1)
        self.resuming += 1
        reading = limit.read()
        ticket.set_result((at, taken, reading, None))
        return ticket, at, reading, ()

    async def wait(
        self,
        limit: Limit,
        ticket: Ticket,
        permits: Permits,
        asked: int,
        most_ns: int | None = None,
        most: Admission | None = None,
        refusals: Refusals = ACQUIRE,
        since: int | None = None,
    ) -> tuple[int, int, Taken]:
        """Wait until the ticket of `request`, whose arguments these are, is decided and the loop has turned. Returns what `resume` does.

        Cancelled meanwhile, the request is undone. `aiorate.Limiter.acquire` has these lines too: a coroutine in between would cost
        each of 100 000 waiters 220 bytes and a twentieth of the time.
        """
        if ticket is TURN:
            assert self.loop is not None  # it is starved
            await self.loop.turn()
            again, at, reading, taken = self.ask(limit, permits, most_ns, most, refusals, since, True)
            if again is None:
                return 0, at, taken
            ticket, asked = again, asked or reading
        epoch, loop, waker, decided = self.epoch, self.loop, limit.waker, ticket.done()
        try:
            while not ticket.done():
                await waker.wait(ticket)  # type: ignore[union-attr]  # somebody waits
            # Of tasks that resume in one iteration, only the last may be sure that another follows.
            if (decided or self.resuming > 1) and loop is not None and loop.starved():
                await loop.turn()
        except BaseException:
            self.leave(limit, ticket, permits, epoch)
            raise
        return self.resume(limit, ticket, asked, permits, epoch)

    def resume(self, limit: Limit, ticket: Ticket, asked: int, permits: Permits, epoch: int) -> tuple[int, int, Taken]:
        """Go on with a decided request, which was asked for when the clock read ``asked``, or raise its error.

        Returns the nanoseconds waited, the instant for which the request was scheduled, and what was taken. Told are those who watch.
        """
        outcome = ticket.result()
        if isinstance(outcome, BaseException):
            raise outcome
        at, taken, reading, limited_by = outcome
        waited = max(reading - asked, 0)  # by the clock of another loop, it may be less
        self.go_on(limit, ticket, taken, epoch, waited)
        watch = limit.watch
        if watch is not None:
            watch.tell(limit.name, waited, permits, limited_by)
        return waited, at, taken

    async def finish(self, limit: Limit) -> None:
        """After the limit was closed: return once no task is left."""
        if limit.waker is not None:
            await limit.waker.aclose()

    # When to look.

    def wake(self, limit: Limit, reading: int | None) -> None:
        """Look at the limit when the clock reads that; None: not before something changes."""
        if self._agenda is not None:
            self._agenda.wake(limit, reading)
        elif reading is not None:
            self._plan().wake(limit, reading)

    def limit_wait(self, limit: Limit, ticket: Ticket, permits: Permits, asked: int, most_ns: int, refusals: Refusals) -> None:
        """Have a request in line fail ``most_ns`` after the reading ``asked``."""
        self._plan().limit_wait(limit, ticket, permits, asked, most_ns, refusals)

    def _plan(self) -> Agenda:
        if self._agenda is None:
            assert self.loop is not None  # since somebody waits in one
            self._agenda = Agenda(self.loop)
        return self._agenda

    def left(self, ticket: Ticket) -> None:
        """A request left undecided, perhaps one with a deadline."""
        if self._agenda is not None:
            self._agenda.left(ticket)

    # The loop.

    def here(self, limit: Source) -> Loop | None:
        """The loop that runs, which is used from now on. RuntimeError if the tree is in use in another one that runs."""
        native, old = running_loop(), self.loop
        if old is None:
            if native is None:
                limit.begun = True
                return None
        elif native is old.native:
            if not limit.begun or limit.read is not old.read or limit.above is not None:
                limit.follow(old.read)
            return old
        elif old.running:
            raise RuntimeError(_IN_USE)
        elif native is None and not old.closed:
            return old
        self._move(native)
        if self.loop is not None:
            limit.follow(self.loop.read)
        else:
            limit.begun = True
        return self.loop

    def _move(self, native: object | None) -> None:
        """Serve the callers of that loop from now on."""
        old = self.loop
        if old is not None:
            self.disband(old.forked)
        self._use(None if native is None else loop_of(native, self.clock, self.precise))

    def _use(self, loop: Loop | None) -> None:
        self.loop = loop
        self._agenda = None

    def disband(self, forked: bool) -> None:
        """The loop is no longer used: its requests are gone, and fail if their loop can still wake them."""
        self.epoch += 1
        self.resuming = 0
        agenda, self._agenda = self._agenda, None
        for limit in [*self._alive(), *([] if agenda is None else agenda.limits())]:
            limit.disband(forked)
        if agenda is not None and not forked:
            call_back(partial(agenda.set, None), "as its event loop was left")

    def add(self, limit: Limit) -> None:
        """Others share that limit, or somebody waits there for the first time."""
        if self._limits is _NONE:
            self._limits = {}
        self._limits[ref(limit, self._limits.pop)] = None

    def _alive(self) -> list[Limit]:
        return [limit for each in list(self._limits) if (limit := each()) is not None]

    def forget(self, limit: Limit) -> None:
        """Nobody asks that limit again."""
        if self._limits:
            self._limits.pop(ref(limit), None)
        if limit.wake_at is not None:
            self.wake(limit, None)
