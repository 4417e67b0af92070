"""One limit's talk with its record in a file, which answers at once, in the middle of the decision that lacks slots.

Only where another process has the lock is the limit looked at again, a little later. Knows nothing of how the file is kept.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from itertools import takewhile
from math import ceil
from random import getrandbits
from typing import TYPE_CHECKING

from aiorate._errors import EngineUnavailable
from aiorate._meter import PureMeter
from aiorate._rate import NS_PER_SECOND
from aiorate._store.file import Busy, Record
from aiorate._store.pool import Pool
from aiorate._store.script import MOST, row
from aiorate._store.slots import Level, Run, check_pause, portion
from aiorate._store.twin import Answering, take_now
from aiorate._tree.changes import follow
from aiorate._tree.limit import Provider
from aiorate._tree.questions import in_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._loops.loop import Handle
    from aiorate._meter import Meter
    from aiorate._schedulers.amounts import Permits
    from aiorate._store.file import StoreFile, Value
    from aiorate._store.slots import Part
    from aiorate._tree.node import Node

    Runs = Sequence[tuple[int, tuple[int, ...]]]


SLACK_NS = 10_000_000
"""How late a slot may be used, if there is no longer lease."""
_US = 1_000  # ns
_HORIZON_NS = 20_000_000
_SOON_NS, _LATER_NS = NS_PER_SECOND // 20, NS_PER_SECOND  # after which slots that nobody wants come back, and a pause is looked at again
_ONE = 1  # compared by identity
_ROUGHLY_US = 100  # a grant is so much older than its question at most


class FilePool(Pool):
    """Takes slots of a rate back, too. A signal handler that asks in the middle of another request gets none."""

    __slots__ = ("deciding",)

    def __init__(self, parts: Sequence[Part], unit: bool, late: int) -> None:
        super().__init__(parts, unit, late)
        self.deciding: bool = False
        """Whether it is in the middle of a request."""

    @property
    def _meter(self) -> Meter | None:
        """One that has nothing, unless there is a lease: a grab that fails would ask the file once more."""
        return PureMeter() if self._late <= SLACK_NS else None

    def take(self, permits: Permits, now: int, since: int | None = None) -> int:
        if self.deciding:
            return now + 1
        self.deciding = True
        try:
            if permits is _ONE and self.unit:  # in half of the time
                runs = self.hand.runs
                if not runs:
                    self._refuse(1, now)
                if not runs:
                    return self._look_again(now)
                if runs[0].due > now:
                    return runs[0].due
            return Pool.take(self, permits, now, since)
        finally:
            self.deciding = False

    def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None:
        deciding, self.deciding = self.deciding, True
        try:
            super().give_back(permits, now, taken)
        finally:
            self.deciding = deciding
        if taken is None and self.unit and isinstance(permits, int):  # a refund
            self.correct([-permits] * len(self.parts), now)


class FileSession(Provider):
    """Fills the pool of a node from the record of that ``name``. ``lease`` is in ns."""

    def __init__(self, file: StoreFile, name: str, kind: str, node: Node, pool: FilePool, lease: int) -> None:
        self._file, self._node, self._pool, self._lease = file, node, pool, lease
        self._record = Record(name, kind, len(pool.parts), pool.calendar is not None)
        self._horizon: int = max(_HORIZON_NS, lease)
        self._asking: bool = False
        self._news: int | None = None  # untold: the reading at which a pause is to end; 0: it is over
        self._number: int = getrandbits(48) + 1  # of this process, as a client of the file
        self._paused: bool = False  # whether the file pauses all processes
        self._seat: float = 0.0  # see `Question.seat`
        self._tail: Run | None = None  # the last slots of all, unless somebody has booked since
        self._timer: Handle | None = None
        pool.answer_ns, pool.link, node.provider = 0, self, self
        pool.patient = node.above is not None
        file.users.add(self)

    @property
    def state(self) -> str:
        return "shared"

    @property
    def busy(self) -> bool:
        return self._news is not None or any(self._pool.corrections)

    # What is lacking.

    def wanted(self, now: int) -> bool:
        pool, node, need = self._pool, self._node, self._pool.refused
        waits = node.line.is_waited_in
        if self._asking or not need or node.held_at is not None:
            return False
        if not pool.unit:
            alike = 1
            if waits and node.line.turns is None:
                alike = len([*takewhile(lambda request: pool.need(request[1]) == pool.lacking, node.line)])
            self._ask(now, [(max(alike, 1), pool.lacking)], whole=not waits)
            return False
        usable, count = pool.usable(need, now) if pool.hand.count else 0, len(pool.parts)
        if usable < need and (waits or self._lease or count > 1 or self.busy or not self._take_now(now, need - usable)):
            lacks = max(need, in_line(node) if waits else 0) - usable + (pool.expected(self._lease, now, need) if self._lease else 0)
            self._ask(now, [portion(pool.parts, lacks, need, self._horizon)], whole=not (waits or self._lease))
            if waits and pool.look_at is None and pool.usable(need, now) < need:  # the first gathers more
                pool.look_at = now + self._horizon // 2
        return False

    def _take_now(self, now: int, n: int) -> bool:
        """Ask for slots of a rate that are due now. Returns whether that was answered."""
        pool, part = self._pool, self._pool.parts[0]
        decide = partial(take_now, part.every_us, part.burst, n, self._record.told)
        try:
            answer = self._file.ask(self._record, self._unix(now), decide, patient=True)
        except Busy:
            return True
        if answer is None:
            return False
        granted, ahead = answer
        pool.levels = [Level(now + ceil(ahead * _US))]
        if granted:
            pool.hand.add([Run((1,), n, now, (), (), SLACK_NS)])
        return True

    # Asking.

    def _ask(self, now: int, runs: Runs = (), whole: bool = False, gone: int = 0) -> None:
        """Ask for these runs of requests, each ``whole`` and now or at any time, and tell all that is untold.

        The last slots in hand, if ``gone`` is not 0, come back unless somebody has booked since. Raises EngineUnavailable.
        """
        pool, node, asked = self._pool, self._node, self._unix(now)
        self._asking = True
        try:
            decide = partial(self._answer, now, runs, whole, gone)
            answer = self._file.ask(self._record, asked, decide, patient=not node.line.is_waited_in)
        except Busy as busy:
            pool.look_at = node.now() + busy.again
            if self.busy:
                self._later(_SOON_NS)
            return
        finally:
            self._asking = False
        self._news, pool.corrections, pool.oldest, pool.refused = None, [0] * len(pool.parts), None, 0
        self._seat = answer.seat
        self._paused = follow(node, ceil(answer.hush * _US), self._paused)
        self._book(answer, runs, now, now if whole else now + ceil((answer.now - asked) * _US))
        if node.held_at is not None and node.line.is_waited_in:  # it was looking, and cannot have seen the pause
            self.held_up()
        if answer.wait and not whole and not answer.hush:
            wait = ceil(answer.wait * _US)
            if pool.calendar is None:
                pool.look_at = now + min(max(wait // 4, _HORIZON_NS), _LATER_NS // 4)
            else:  # permits of the window may come back meanwhile
                pool.look_at = now + min(wait, max(wait // 64, _LATER_NS), 60 * _LATER_NS)
            pool.waits_for = answer.place - 1 if answer.place else pool.waits_for
        self._tidy_later()

    def _unix(self, now: int) -> float:
        """That instant in us, by the clock of the record: of a window's the Unix time."""
        node, tree, calendar = self._node, self._node.tree, self._pool.calendar
        reading = now + node.offset if node.held_at is None else node.read()
        real = tree.clock is None and (tree.loop is None or tree.loop.steady)
        if calendar is not None:
            return (time.time_ns() if real else calendar.origin + reading) / _US
        if real and tree.loop is not None and not tree.loop.monotonic:  # as trio's, whose clock begins anew with each run
            reading += time.monotonic_ns() - node.read()
        return reading / _US

    def _answer(self, at: int, runs: Runs, whole: bool, gone: int, kept: Value | None, now: float) -> tuple[Answering, Value | None, float]:
        """Answer as the script does: the question of the instant ``at``, when the clock of the record reads ``now``."""
        pool, record, reading, until = self._pool, self._record, self._node.read(), self._news
        pause = 0.0 if until == 0 else -1.0 if until is None or until <= reading else (until - reading) / _US
        oldest = 0.0 if pool.oldest is None else max((at - pool.oldest) / _US - _ROUGHLY_US, 0.0)
        horizon = self._horizon / _US
        reach = MOST if pool.unit or pool.calendar is not None else horizon
        w = [pause, horizon, reach, 0.0 if whole else -1.0, now - record.heard, self._number, oldest, -1.0, self._seat]
        w += [float(gone > 0), SLACK_NS / _US, len(pool.parts)]
        for part, more in zip(pool.parts, pool.corrections, strict=True):
            w += row(part, more - gone, part.edges(int(now * _US)))
        for n, need in runs:
            w += [n, *need]
        answer = Answering(now, w, kept, record.told, gone > 0 and kept == record.told)
        return answer, tuple(answer.value) if answer.changes else None, answer.keep

    def _book(self, answer: Answering, runs: Runs, asked: int, now: int) -> None:
        """Put what was assigned into the pool, and what is left. The answer is of the instant ``now``, perhaps a little after ``asked``."""
        pool, slots = self._pool, []
        if pool.calendar is None:
            pool.levels = [Level(now + ceil(ahead * _US)) for ahead, _ in answer.state]
            slots = [pool.run(int(n), place, dues, runs[i][1], pool.parts, now) for i, (n, place, dues) in enumerate(answer.runs) if n]
        else:
            used, _, ends = answer.state[0][:3]
            pool.levels = [Level(now, int(used), now + ceil((ends - answer.now) * _US))]
            late = int((ends - answer.now) * _US) - SLACK_NS - 1
            slots = [Run(need, int(n), asked, (), (), late) for (_, need), (n, _, _) in zip(runs, answer.runs, strict=False) if n]
        self._tail = slots[-1] if slots else None
        pool.hand.add(slots)

    # Telling.

    def look(self) -> None:
        self._tell()
        self._node.changed()

    def corrected(self, at_once: bool) -> None:
        self._tell()

    def pausing(self, ns: int) -> None:
        check_pause(ns)
        self._news = self._node.read() + ns
        try:
            self._ask(self._node.now())
        except EngineUnavailable:
            self._news = None
            raise

    def resumed(self) -> None:
        self._news = 0
        self._tell()

    def held_up(self) -> None:
        if self._paused:
            self._later(_LATER_NS)

    def shared(self) -> None:
        self._pool.patient = True

    def _tell(self, gone: int = 0) -> None:
        """Tell what is untold. A file that cannot be used hears it with the next question."""
        self._pool.look_at = None
        if not self._asking:
            with suppress(EngineUnavailable):
                self._ask(self._node.now(), gone=gone)

    # Later.

    def _later(self, ns: int) -> None:
        """Look within about ``ns`` after what is in hand, untold, or paused."""
        node, loop = self._node, self._node.loop
        if self._timer is None and loop is not None and not node.closed:
            self._timer = loop.call_at(node.read() + ns, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        node, pool = self._node, self._pool
        waits = node.first() is not None
        if not waits and not self._lease:
            self._give_back()
        elif not pool.unit:
            pool.drop(node.now())
        if self.busy or (waits and node.paused):
            self._tell()
            node.changed()
        self._tidy_later()

    def _tidy_later(self) -> None:
        """Slots of a rate that are due soon lapse as soon."""
        pool = self._pool
        if pool.hand.count and not self._lease and (not pool.unit or pool.hand.last_due() > self._node.now() + _SOON_NS):
            self._later(_SOON_NS)

    def _give_back(self) -> None:
        """Have all slots in hand come back; those of a rate, if nobody has booked since."""
        gone = self._pool.give_up(self._tail, self._node.now())
        if gone and not self.busy:
            self._tell(gone=gone)

    def closed(self) -> None:
        self._give_back()
        self.moved()

    def moved(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forked(self) -> None:
        """This is a child process now: the slots in hand are the parent's."""
        pool = self._pool
        pool.clear()
        pool.corrections, pool.oldest, pool.look_at, pool.deciding = [0] * len(pool.parts), None, None, False
        self._number, self._news, self._tail, self._asking = getrandbits(48) + 1, None, None, False
