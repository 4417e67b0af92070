"""Requests that may not wait: they stand in no line, and are decided by one answer of the store.

They are those with ``max_wait=0``, or less than an answer takes.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from aiorate._loops.table import loop_here, running_loop
from aiorate._rate import NS_PER_SECOND
from aiorate._tree.limit import hold, kept, undo
from aiorate._tree.node import again
from aiorate._tree.questions import above_on_demand, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._loops.loop import Handle, Loop
    from aiorate._schedulers.amounts import Permits
    from aiorate._store.pool import Pool
    from aiorate._tree.limit import Taken
    from aiorate._tree.node import Node
    from aiorate._tree.refusals import Admission, Refusals

__all__ = ["Looks", "Word"]

_LONGEST_NS = NS_PER_SECOND * 9 // 10  # that an answer is waited for


class Word:
    """What the task, or the thread, that makes it waits for. It may be told in any other."""

    __slots__ = ("_loop", "_signal", "error", "told")

    def __init__(self) -> None:
        self._loop: Loop | None = loop_here()  # None: the thread has none, and takes a lock twice
        self._signal: Any = threading.Lock() if self._loop is None else self._loop.signal()
        self.told: bool = False
        self.error: BaseException | None = None
        if self._loop is None:
            self._signal.acquire()

    def tell(self, error: BaseException | None = None) -> bool:
        """Let its maker go on, with the error if there is one. False: its loop is closed."""
        self.told, self.error = True, error
        loop, elsewhere = self._loop, self._loop is not loop_here()
        if loop is None:
            self._signal.release()
        elif not elsewhere:
            loop.wake(self._signal)
        else:
            try:
                loop.post(partial(loop.wake, self._signal))
            except (RuntimeError, OSError):
                return False
        return True

    async def heard(self) -> None:
        """Wait for it in a loop, which turns in any case. Raises the error."""
        assert self._loop is not None
        await (self._loop.yield_once() if self.told else self._loop.wait(self._signal))
        if self.error is not None:
            raise self.error

    def block(self) -> None:
        """Wait for it in a thread without a loop."""
        while not self.told:
            self._signal.acquire(timeout=1.0)  # on Windows, Ctrl-C is not heeded before
        if self.error is not None:
            raise self.error


class Look(Word):
    """A request, which is told once it is decided. Durations are in ns."""

    __slots__ = ("asked", "began", "permits", "taken", "timer", "waited")

    def __init__(self, permits: Permits) -> None:
        super().__init__()
        self.permits: Permits = permits
        self.began: int = 0
        """The reading when it was made."""
        self.asked: bool = False
        """Whether a question counted it: its answer is on its way."""
        self.taken: Taken | None = None
        """What it took; None: it was refused."""
        self.waited: int = 0
        self.timer: Handle | None = None


class Looks:
    """Those of one limit. ``ask`` has the store asked, and returns whether an answer is coming."""

    __slots__ = ("_ask", "_node", "_pool", "_slack", "_timer", "waiting")

    def __init__(self, node: Node, pool: Pool, slack: int, ask: Callable[[], bool]) -> None:
        self._node, self._pool, self._slack, self._ask = node, pool, slack, ask
        self.waiting: dict[Look, None] = {}
        """Those that are not decided."""
        self._timer: Handle | None = None

    def serve(self, limit: int | None, blocking: bool = False) -> bool:
        """Whether a request that would wait for ``limit`` ns is one of these. Below a limit that has to be asked as well, none is.

        ``blocking``: in a thread that waits without a loop. Where it may not, none is either.
        """
        if limit is None or limit >= max(self._pool.answer_ns, 1) or above_on_demand(self._node):
            return False
        return not blocking or (self._node.tree.threads and running_loop() is None)

    async def take(self, permits: Permits, limit: int, most: Admission | None, refusals: Refusals) -> tuple[int, Taken]:
        """Take the permits, for a caller who would wait for ``limit`` ns. Returns the ns waited, and what was taken.

        Raises the error of a request that is not granted.
        """
        run, look = self._node.tree.run, Look(permits)
        try:
            run(self._look, look, most, refusals)
            if look.taken is None or look.waited:
                await look.heard()
        except BaseException:
            self._node.tree.post(partial(self._leave, look))
            raise
        return run(self._outcome, look, limit, refusals)

    def take_blocking(self, permits: Permits, limit: int, most: Admission | None, refusals: Refusals) -> tuple[int, Taken]:
        """As `take`, in a thread without an event loop, which it blocks."""
        from aiorate._tree.threads import check_may_block

        check_may_block()
        run, look = self._node.tree.run, Look(permits)
        try:
            run(self._look, look, most, refusals)
            look.block()
        except BaseException:
            self._node.tree.post(partial(self._leave, look))
            raise
        return run(self._outcome, look, limit, refusals)

    # In decisions.

    def _look(self, look: Look, most: Admission | None, refusals: Refusals) -> None:
        node = self._node
        self.waiting[look] = None
        try:
            node.here()
            look.began = node.read()
            if (self._pool.hand.count or self._pool.outage) and self._try(look):
                return
            if most is not None and not node.shut:
                most.check(look.permits, refusals)
            if node.shut or node.loop is None or node.held_at is not None or not self._ask():
                self._decide(look)
            else:
                self._set_timer()
        except Exception as error:  # which is raised once the loop has turned
            self._decide(look, error)

    def _set_timer(self) -> None:
        """For the first of those that wait, while there are any."""
        first, loop = next(iter(self.waiting), None), self._node.loop
        if first is not None and loop is not None and self._timer is None:
            self._timer = loop.call_at(first.began + _LONGEST_NS, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, reading = None, self._node.read()
        for look in [each for each in self.waiting if each.began + _LONGEST_NS <= reading]:
            self._decide(look)
        self._set_timer()

    def _try(self, look: Look) -> bool:
        """Take its permits if they are due."""
        found = self._node.take(look.permits, self._node.now())
        if found is None:
            return False
        look.taken = found[1]
        hold(look.taken)
        self._decide(look)
        return True

    def _decide(self, look: Look, error: BaseException | None = None) -> None:
        """It has its permits, or is refused."""
        self.waiting.pop(look, None)
        if not self.waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        look.waited = max(self._node.read() - look.began, 0)
        if look.timer is not None:
            look.timer.cancel()
        if not look.tell(None if error is None else again(error)) and look.taken is not None:
            undo(look.taken)

    def answered(self, granted: bool = False) -> bool:
        """The store has answered, and ``granted`` something. Returns whether it is to be asked for more of these."""
        for look in list(self.waiting):
            if look.asked:
                look.asked = False
                self._answer(look, granted)
        return any(not look.asked for look in self.waiting)

    def lost(self) -> None:
        """The store does not answer: the policy decides."""
        for look in list(self.waiting):
            self._answer(look)

    def _answer(self, look: Look, granted: bool = False) -> None:
        """Its permits, if they are due or will be within the slack."""
        node = self._node
        try:
            if self._try(look):
                return
            now, due = node.now(), None
            if not node.is_held and not self._pool.lacks(look.permits, now):
                due = node.reading_at(self._pool.peek(look.permits, now))
            if due is not None and node.loop is not None and due <= node.read() + self._slack:
                if look.timer is not None:
                    look.timer.cancel()
                look.asked, look.timer = True, node.loop.call_at(due, partial(self._answer, look))
                return
            if granted and self._pool.hand.lapsed(now):  # the process stood still meanwhile: it is asked for again
                return
        except Exception as error:  # the store is lost
            self._decide(look, error)
        else:
            self._decide(look)

    def refuse(self, error: BaseException | None = None) -> None:
        """Refuse all, or have them fail with the error."""
        for look in list(self.waiting):
            self._decide(look, error)

    def _leave(self, look: Look) -> None:
        """Its caller was interrupted."""
        if look in self.waiting:
            self._decide(look)
        if look.taken is not None:
            undo(look.taken)

    def _outcome(self, look: Look, limit: int, refusals: Refusals) -> tuple[int, Taken]:
        node, permits, waited = self._node, look.permits, look.waited
        if look.taken is not None:
            kept(look.taken)
            if waited:
                node.noted.note(waited)
                if node.watch is not None:
                    node.watch.tell(node.name, waited, permits, None)
            return waited, look.taken
        if node.shut:
            raise refusals.closed(node)
        node.noted.refused += 1
        raise refusals.too_long(permits, limit, wait_for(node, permits, node.now()))
