"""One limit's talk with its record in a file, which answers at once, in the middle of the decision that lacks slots.

Only where another process has the lock is the limit looked at again, a little later. Knows nothing of how the file is kept.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from fractions import Fraction
from functools import partial
from math import ceil
from struct import unpack
from typing import TYPE_CHECKING

from aiorate._errors import EngineUnavailable
from aiorate._meter import PureMeter
from aiorate._schedulers.amounts import Amounts
from aiorate._store.exchange import NO_NEWS
from aiorate._store.file import MOST_NUMBERS, Busy, Record
from aiorate._store.options import Terms
from aiorate._store.pool import Pool
from aiorate._store.script import OF_RATE, OF_WINDOW, Answer
from aiorate._store.session import StoreSession
from aiorate._store.slots import Level, Run
from aiorate._store.twin import Answering, take_now
from aiorate._tree.refusals import ACQUIRE

if TYPE_CHECKING:
    from aiorate._meter import Meter
    from aiorate._schedulers.amounts import Permits
    from aiorate._store.exchange import Runs
    from aiorate._store.file import StoreFile, Value
    from aiorate._tree.node import Node

__all__ = ["SLACK_NS", "FilePool", "FileSession"]

SLACK_NS = 10_000_000
"""How late a slot may be used, if there is no longer lease."""
_HORIZON_NS = 20_000_000
_US = 1_000  # ns


class FilePool(Pool):
    """Takes slots of a rate back, too."""

    __slots__ = ()

    @property
    def _meter(self) -> Meter | None:
        """One that has nothing, unless there is a lease: a grab that fails would ask the file once more."""
        return PureMeter() if self._late <= SLACK_NS else None

    def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None:
        super().give_back(permits, now, taken)
        if taken is None and self.unit and isinstance(permits, int):  # a refund
            self.correct([-permits] * len(self.parts), now)


class FileSession(StoreSession):
    """Fills the pool of a node from the record of that ``name``. ``lease`` is in ns."""

    __slots__ = ("_again", "_asking", "_behind", "_file", "_record", "_retry")

    def __init__(self, file: StoreFile, name: str, kind: str, node: Node, pool: Pool, lease: int) -> None:
        size = sum([OF_RATE if part.calendar is None else OF_WINDOW for part in pool.parts])
        if size > MOST_NUMBERS:
            raise ValueError(f"a limit in a file has at most {MOST_NUMBERS // OF_RATE} rates or dimensions, not {len(pool.parts)}.")
        super().__init__(
            file.path, name, node, pool, Terms(kind, max(_HORIZON_NS, lease), lease, SLACK_NS, "raise", 0, Fraction(1), ""), ACQUIRE
        )
        self._file = file
        self._record = Record(name, kind, size, time.monotonic_ns, pool.calendar is not None)
        self._asking = self._again = False
        self._behind = 0  # how many ns before its answer a request was made at most
        self._retry = False  # whether what is to be told waits for the lock
        pool.answer_ns = 0
        file.users.add(self)

    @property
    def on_demand(self) -> bool:
        return False

    @property
    def _open(self) -> bool:
        return not self._closed

    def wanted(self, now: int) -> bool:
        pool, node = self._pool, self._node
        need, waits = pool.refused, node.line.is_waited_in
        if self._closed or not need or node.held_at is not None or self._asking:
            return False
        if pool.unit:
            missing = need - pool.usable(need, now)
            if missing <= 0:
                return False
            if not waits and not self._terms.lease and len(pool.parts) == 1 and not self.busy and self._take_now(now, missing):
                return False
        self._wake()
        self._use(now)
        pool.asks_below = -1  # an answer takes no time: not before they are all gone
        if waits and pool.unit and pool.look_at is None and pool.usable(need, now) < need:  # the first gathers more
            pool.look_at = now + _HORIZON_NS // 2
        return False

    def _take_now(self, now: int, n: int) -> bool:
        """Ask for slots of a rate that are due now. Returns whether that was answered."""
        pool, part, record = self._pool, self._pool.parts[0], self._timed_record()
        decide = partial(take_now, part.rate.period_ns / (part.rate.permits * _US), part.burst, n, record.told)
        try:
            answer = self._file.ask(record, decide, patient=True)
        except Busy:
            return True
        if answer is None:
            return False
        granted, ahead = answer
        pool.levels = [Level(now + ceil(ahead * _US))]
        if granted:
            pool.hand.add([Run((1,), n, now, (), (), SLACK_NS)])
        return True

    def _use(self, now: int) -> None:
        """What was due when the file answered may be used by the request that asked at ``now``, a little before."""
        hand, answered = self._pool.hand, self._node.now()
        self._behind = max(self._behind, min(answered - now, SLACK_NS))
        for run in [*hand.runs]:
            due = run.by(answered) if run.due > now else 0
            if due:
                hand.add([Run(run.amounts, due, now, (), (), run.late, *run.places)])
                run.skip(due)
                hand.count -= due
        hand.runs[:] = [run for run in hand.runs if run.left]

    def look(self) -> None:
        """Learn what is left."""
        self._node.look_now()
        if not self._closed:
            with suppress(EngineUnavailable):
                self._wake(look=True)

    def corrected(self, at_once: bool) -> None:
        self._pool.look_at = None
        if not self._asking:  # else it is told just now
            with suppress(EngineUnavailable):  # the next question tells it
                self._tell()

    def pausing(self, ns: int) -> None:
        news = self._exchange.news
        try:
            super().pausing(ns)
        except EngineUnavailable:
            self._exchange.news = news
            raise

    def resumed(self) -> None:
        with suppress(EngineUnavailable):
            super().resumed()

    # Asking.

    def _wake(self, look: bool = False) -> None:
        """Ask, and ask again while there is more to tell. ``look``: also if there is nothing to ask."""
        if self._asking:
            self._again = True
            return
        self._asking, self._process = True, os.getpid()
        try:
            self._again = True
            while self._again:
                self._again = False
                asked = self.question(look)
                if asked is not None:
                    w = [*unpack(f"<{len(asked[1][0]) // 8}d", asked[1][0])]  # type: ignore[arg-type]  # it is packed
                    if w[3] > 0:
                        w[3] = 0.0  # now, and not within the slack
                    self.answered(self._file.ask(self._timed_record(), partial(self._decide, w), not self._node.line.is_waited_in))
        except Busy as busy:
            self._untold(nothing=True)
            self._pool.look_at = self._node.now() + busy.again
            if self.busy and not self._retry:
                self._retry = self._later(busy.again, self._on_retry) is not None
        except BaseException:
            self._untold(nothing=True)
            raise
        finally:
            self._asking = False
        if self._pool.hand.count and not self._terms.lease:
            self._flush_later()

    def _on_recheck(self) -> None:
        with suppress(EngineUnavailable):
            super()._on_recheck()

    def _on_retry(self) -> None:
        self._retry = False
        if self.busy:
            with suppress(EngineUnavailable):
                self._wake()

    def _lack(self, reading: int, now: int) -> tuple[Runs, bool]:
        """What the line lacks; or what a newcomer lacks, which is due now or not wanted."""
        pool = self._pool
        if self._node.line.is_waited_in or (pool.unit and self._terms.lease):
            return self._exchange.lack(reading, now)[0], False
        return self._exchange.lack(reading, now, [pool.refused if pool.unit else Amounts((), pool.lacking)] if pool.refused else [])

    def _nothing_to_ask(self, now: int) -> None:
        self._pool.asked_at = None

    def _timed_record(self) -> Record:
        """The record, by the clock of the loop that is used now, if its time is virtual."""
        tree, read, calendar = self._node.tree, self._node.read, self._pool.calendar
        real = tree.clock is None and (tree.loop is None or tree.loop.steady)
        if calendar is None:
            self._record.clock = time.monotonic_ns if real else read
        else:
            self._record.clock = time.time_ns if real else lambda: calendar.origin + read()
        return self._record

    def _decide(self, w: list[float], kept: Value | None, now: float) -> tuple[Answer, Value | None, float]:
        """Answer as the script does."""
        told = self._record.told
        w[4], w[6], w[7] = now - self._record.heard, max(w[6] - self._behind / _US, 0.0), -1.0
        answering = Answering(now, w, kept, told, w[9] > 0 and kept == told)
        if not answering.decided:
            return Answer("", [now], 0.0, 0, 0.0, []), None, 0.0
        value = tuple(answering.value)
        runs = [(int(n), place, dues) for n, place, dues in answering.runs]
        answer = Answer("kept", [*value], answering.wait, answering.place, answering.seat, runs)
        return answer, value if answering.changes else None, answering.keep

    # What comes back.

    def _on_flush(self) -> None:
        self._flush = None
        with suppress(EngineUnavailable):
            if self._node.first() is None:
                self._return()
            elif not self._pool.unit:
                self._asking = True
                self._pool.drop(self._node.now())
                self._asking = False
                self._tell()
        if self._pool.hand.count:
            self._flush_later()

    def _return(self) -> None:
        """Have all slots in hand come back; those of a rate, if nobody has booked since."""
        closed, self._closed, self._returned = self._closed, True, []
        try:
            with suppress(EngineUnavailable):
                self._wake()
        finally:
            self._closed, self._returned = closed, None
            self._pool.clear()
            if self._pool.unit and min(self._pool.corrections) < 0:  # not told: others may book the same meanwhile
                self._pool.corrections = [max(more, 0) for more in self._pool.corrections]

    async def aclose(self) -> None:
        self.run(self._end)

    def _end(self) -> None:
        self._return()
        self._closed = True
        self._forget_question()

    def moved(self) -> None:
        self._cancel_timers()
        self._retry = False

    def forked(self) -> None:
        """This is a child process now: the slots in hand are the parent's."""
        pool = self._pool
        pool.clear()
        pool.corrections, pool.oldest, pool.look_at = [0] * len(pool.parts), None, None
        self._exchange.sent = None
        self._exchange.news = NO_NEWS
        self._asking = self._retry = False
