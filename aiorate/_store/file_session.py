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
from aiorate._schedulers.amounts import count_of
from aiorate._store.file import MOST_NUMBERS, Busy, Record
from aiorate._store.pool import Pool
from aiorate._store.script import MOST, OF_RATE, OF_WINDOW
from aiorate._store.slots import Level, Run, check_pause
from aiorate._store.twin import Answering, take_now
from aiorate._tree.changes import on_pause_end
from aiorate._tree.limit import Provider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._loops.loop import Handle
    from aiorate._meter import Meter
    from aiorate._schedulers.amounts import Permits
    from aiorate._store.file import StoreFile, Value
    from aiorate._store.slots import Part
    from aiorate._tree.node import Node

    Runs = Sequence[tuple[int, tuple[int, ...]]]

__all__ = ["SLACK_NS", "FilePool", "FileSession"]

SLACK_NS = 10_000_000
"""How late a slot may be used, if there is no longer lease."""
_US = 1_000  # ns
_HORIZON_NS = 20_000_000
_PORTION = 500  # slots asked for at once, if a horizon has fewer: the loop wakes as many waiters before slots lapse
_FLUSH_NS = NS_PER_SECOND // 20  # after which slots that nobody wants come back
_RECHECK_NS = NS_PER_SECOND  # how often a process in which a request waits asks whether a pause goes on, and permits of a window came back


class FilePool(Pool):
    """Takes slots of a rate back, too. A signal handler that asks in the middle of another request gets none."""

    __slots__ = ("_deciding",)

    def __init__(self, parts: Sequence[Part], unit: bool, late: int) -> None:
        super().__init__(parts, unit, late)
        self._deciding = False

    @property
    def _meter(self) -> Meter | None:
        """One that has nothing, unless there is a lease: a grab that fails would ask the file once more."""
        return PureMeter() if self._late <= SLACK_NS else None

    def take(self, permits: Permits, now: int, since: int | None = None) -> int:
        if self._deciding:
            return now + 1
        self._deciding = True
        try:
            return Pool.take(self, permits, now, since)
        finally:
            self._deciding = False

    def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None:
        self._deciding = True
        super().give_back(permits, now, taken)
        self._deciding = False
        if taken is None and self.unit and isinstance(permits, int):  # a refund
            self.correct([-permits] * len(self.parts), now)


class FileSession(Provider):
    """Fills the pool of a node from the record of that ``name``. ``lease`` is in ns."""

    __slots__ = (
        "__weakref__",
        "_asking",
        "_behind",
        "_file",
        "_lease",
        "_news",
        "_node",
        "_number",
        "_paused",
        "_pool",
        "_record",
        "_seat",
        "_since",
        "_spent",
        "_tail",
        "_timer",
        "_timer_at",
    )

    def __init__(self, file: StoreFile, name: str, kind: str, node: Node, pool: Pool, lease: int) -> None:
        size = sum([OF_RATE if part.calendar is None else OF_WINDOW for part in pool.parts])
        if size > MOST_NUMBERS:
            raise ValueError(f"a limit in a file has at most {MOST_NUMBERS // OF_RATE} rates or dimensions, not {len(pool.parts)}.")
        self._file, self._node, self._pool, self._lease = file, node, pool, lease
        self._record = Record(name, kind, size, time.monotonic_ns, pool.calendar is not None)
        self._asking = False
        self._behind = 0  # how many ns before its answer a request was made at most
        self._news: int | None = None  # untold: the reading at which a pause is to end; 0: it is over
        self._number = getrandbits(48) + 1  # of this process, as a client of the file
        self._paused = False  # whether the file pauses all processes
        self._seat = 0.0  # see `Question.seat`
        self._since = self._spent = 0  # when the present measurement of use began, and with how many permits
        self._tail: Run | None = None  # the last slots of all, unless somebody has booked since
        self._timer: Handle | None = None
        self._timer_at = 0
        pool.answer_ns, pool.link, node.provider = 0, self, self
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
            self._ask([(max(alike, 1), pool.lacking)], now, whole=not waits)
            return False
        usable = pool.usable(need, now)
        if usable >= need:
            return False
        if waits or self._lease or len(pool.parts) > 1 or self.busy or not self._take_now(now, need - usable):
            waiting = sum([count_of(below.stood) for _, below in node.line.below()], count_of(node.line.total)) if waits else 0
            lacks = max(need, waiting) + (self._expected(now) if self._lease else 0)
            most = max(_PORTION, need, *[part.rate.permits_in(self._horizon) for part in pool.parts])
            self._ask([(min(lacks - usable, most), (1,) * len(pool.parts))], now, whole=not (waits or self._lease))
            if waits and pool.look_at is None and pool.usable(need, now) < need:  # the first gathers more
                pool.look_at = now + self._horizon // 2
        return False

    @property
    def _horizon(self) -> int:
        return max(_HORIZON_NS, self._lease)

    def _expected(self, now: int) -> int:
        """How many permits the next lease will take, if use goes on as it did in the last one or two."""
        pool, lease, age, used = self._pool, self._lease, now - self._since, self._pool.spent - self._spent
        if age >= 2 * lease:
            age, used = lease, used * lease // age
            self._since, self._spent = now - lease, pool.spent - used
        return min(used * lease // max(age, lease), pool.rate.permits_in(lease))

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

    # Asking.

    def _ask(self, runs: Runs = (), asked: int = 0, whole: bool = False, gone: int = 0) -> None:
        """Ask for these runs of requests, at the instant ``asked``, each ``whole`` and now or at any time; and tell all that is untold.

        The last slots in hand, if ``gone`` is not 0, come back unless somebody has booked since. Raises EngineUnavailable.
        """
        pool, node = self._pool, self._node
        self._asking = True
        try:
            decide = partial(self._answer, runs, whole, gone)
            answer = self._file.ask(self._timed_record(), decide, patient=not node.line.is_waited_in)
        except Busy as busy:
            pool.look_at = node.now() + busy.again
            if self.busy:
                self._later(busy.again)
            return
        finally:
            self._asking = False
        self._news, pool.corrections, pool.oldest, pool.refused = None, [0] * len(pool.parts), None, 0
        self._seat = answer.seat
        self._follow(answer.hush)
        now = node.now()
        pool.levels = [self._level(part, state, answer, now) for part, state in zip(pool.parts, answer.state, strict=True)]
        self._book(answer, runs, asked, now)
        if answer.wait and not whole and not answer.hush:
            wait = ceil(answer.wait * _US)
            pool.look_at = now + (min(max(wait // 4, _HORIZON_NS), _RECHECK_NS // 4) if pool.calendar is None else min(wait, _RECHECK_NS))
            pool.waits_for = answer.place - 1 if answer.place else pool.waits_for
        if pool.hand.count and not self._lease:
            self._later(_FLUSH_NS)

    def _answer(self, runs: Runs, whole: bool, gone: int, kept: Value | None, now: float) -> tuple[Answering, Value | None, float]:
        """Answer as the script does, at that instant of the file, in us."""
        pool, node, told = self._pool, self._node, self._record.told
        reading, until = node.read(), self._news
        pause = 0.0 if until == 0 else -1.0 if until is None or until <= reading else (until - reading) / _US
        oldest = 0.0 if pool.oldest is None else max(reading - node.offset - pool.oldest - self._behind, 0) / _US
        horizon = self._horizon / _US
        reach = MOST if pool.unit or pool.calendar is not None else horizon
        w = [pause, horizon, reach, 0.0 if whole else -1.0, now - self._record.heard, self._number, oldest, -1.0, self._seat]
        w += [float(gone > 0), SLACK_NS / _US, len(pool.parts)]
        for part, more in zip(pool.parts, pool.corrections, strict=True):
            least = max(min(more - gone, MOST), -MOST)
            if part.calendar is None:
                w += [part.rate.period_ns / (part.rate.permits * _US), part.burst, least, 0, 0, 0, 0]
            else:
                edges = part.calendar.edges(int(now * _US) - 2 * part.rate.period_ns, 8)
                first = max([i for i, edge in enumerate(edges) if edge <= now * _US], default=0)
                w += [0, part.burst, least, *[edge / _US for edge in edges[first : first + 4]]]
        for n, need in runs:
            w += [n, *need]
        answer = Answering(now, w, kept, told, gone > 0 and kept == told)
        return answer, tuple(answer.value) if answer.changes else None, answer.keep

    def _timed_record(self) -> Record:
        """The record, by the clock of the loop that is used now, if its time is virtual."""
        tree, read, calendar = self._node.tree, self._node.read, self._pool.calendar
        real = tree.clock is None and (tree.loop is None or tree.loop.steady)
        if calendar is None:
            self._record.clock = time.monotonic_ns if real else read
        else:
            self._record.clock = time.time_ns if real else lambda: calendar.origin + read()
        return self._record

    # The answer.

    def _level(self, part: Part, state: list[float], answer: Answering, now: int) -> Level:
        if part.calendar is None:
            return Level(now + ceil(state[0] * _US))
        used, _, ends = state[:3]
        begins = [ends, *[edge for edge in answer.limits[0][3:] if edge > ends]]
        return Level(now, int(used), tuple([now + ceil((edge - answer.now) * _US) for edge in begins]))

    def _book(self, answer: Answering, runs: Runs, asked: int, now: int) -> None:
        """Put what was assigned into the pool. What was due when the file answered may be used by who ``asked``, a little before."""
        pool, slots = self._pool, []
        self._behind = max(self._behind, min(now - asked, SLACK_NS)) if runs else self._behind
        for (n, place, dues), (_, need) in zip(answer.runs, runs, strict=False):
            if not n:
                continue
            if pool.calendar is not None:
                closes = int((answer.state[0][2] - answer.now) * _US) - SLACK_NS
                slots.append(Run(need, int(n), asked, (), (), closes - 1))
                continue
            run = pool.run(int(n), place, dues, need, pool.parts, now)
            due = run.by(now)
            if due:
                slots.append(Run(run.amounts, due, asked, (), (), run.late, *run.places))
                run.skip(due)
            if run.left:
                slots.append(run)
        self._tail = slots[-1] if slots else None
        pool.hand.add(slots)

    def _follow(self, us: float) -> None:
        """The file pauses all processes for so long; 0: it does not."""
        node = self._node
        if us > 0:
            self._paused, ns, until = True, ceil(us * _US), node.paused_until
            if until is not None and until > node.read() + ns:
                node.resume()  # a longer one, which another process has ended
            node.pause(ns, partial(on_pause_end, node, node.now()))
        elif self._paused:
            self._paused = False
            node.resume()

    # Telling.

    def look(self) -> None:
        """Learn what is left."""
        self._node.tree.run(self._look)

    def _look(self) -> None:
        self._node.look_now()
        self._tell()
        self._node.changed()

    def corrected(self, at_once: bool) -> None:
        self._tell()

    def pausing(self, ns: int) -> None:
        check_pause(ns)
        self._news = self._node.read() + ns
        try:
            self._ask()
        except EngineUnavailable:
            self._news = None
            raise

    def resumed(self) -> None:
        self._news = 0
        self._tell()

    def held_up(self) -> None:
        if self._paused:
            self._later(_RECHECK_NS)

    def shared(self) -> None:
        self._pool.patient = True

    def _tell(self, gone: int = 0) -> None:
        """Tell what is untold. A file that cannot be used hears it with the next question."""
        self._pool.look_at = None
        if not self._asking:
            with suppress(EngineUnavailable):
                self._ask(gone=gone)

    # Later.

    def _later(self, ns: int) -> None:
        """Look within ``ns`` after what is in hand, untold, or paused."""
        node, loop = self._node, self._node.loop
        at = node.read() + ns
        if loop is None or node.closed or (self._timer is not None and self._timer_at <= at):
            return
        self.moved()
        self._timer, self._timer_at = loop.call_at(at, self._on_timer), at

    def _on_timer(self) -> None:
        self._timer = None
        node, pool = self._node, self._pool
        waits, now = node.first() is not None, node.now()
        if not waits and not self._lease:
            self._give_back()
        elif not pool.unit:
            pool.drop(now)
        if self.busy or (waits and node.paused):
            self._tell()
            node.changed()
        if pool.hand.count and not self._lease:
            self._later(_FLUSH_NS)

    def _give_back(self) -> None:
        """Have all slots in hand come back; those of a rate, if nobody has booked since."""
        pool, tail, now = self._pool, self._tail, self._node.now()
        runs = pool.clear()
        if not pool.unit:
            pool.put_back(runs, now)
        elif tail in runs and not self.busy and (ahead := tail.left - tail.by(now)):
            self._tell(gone=ahead)

    def end(self) -> None:
        """The limit was closed: nothing is left in hand, nor a timer."""
        self._node.tree.run(self._give_back)
        self.moved()

    def moved(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forked(self) -> None:
        """This is a child process now: the slots in hand are the parent's."""
        pool = self._pool
        pool.clear()
        pool.corrections, pool.oldest, pool.look_at = [0] * len(pool.parts), None, None
        self._number, self._news, self._tail, self._asking = getrandbits(48) + 1, None, None, False
