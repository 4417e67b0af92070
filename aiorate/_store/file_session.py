"""One limit's talk with its record in a file, which answers at once, in the middle of the decision that lacks slots.

If another process has the lock, the limit is looked at again a little later.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

from aiorate._errors import EngineUnavailable
from aiorate._store.slots import MS, US, Run
from aiorate._store.talk import FLUSH_NS, Talk
from aiorate._store.twin import answer_of, take_now

if TYPE_CHECKING:
    from aiorate._store.file import Record, Value
    from aiorate._store.pool import Pool
    from aiorate._store.script import Answer
    from aiorate._store.talk import Runs
    from aiorate._tree.limit import Limit


SLACK_NS = 10 * MS  # how late a slot may be used, if there is no longer lease
_HORIZON_NS = 20 * MS


class FileSession(Talk):
    """Fills the pool of a node from a record. ``lease`` is in ns."""

    def __init__(self, record: Record, node: Limit, pool: Pool, lease: int) -> None:
        self._record = record  # shared in this process: what one user knows restores the others' if the file is lost
        self._booked: Value | None = None  # the record's value when this limit wrote it last
        super().__init__(node, pool, _HORIZON_NS, lease, SLACK_NS)
        pool.answer_ns = 0

    def wanted(self, now: int) -> bool:
        """Ask for what a request lacks, now or not at all if it does not wait. Nothing is ever on its way."""
        pool, node, need = self._pool, self._node, self._pool.refused
        if not need or node.held_at is not None:
            return False
        waits, (n, each) = node.line.is_waited_in, pool.slots_of(need)
        lacks = n - pool.usable(n, now) if pool.unit and pool.count else n
        if waits or self._lease:
            self._ask(now, self._lack())
            if waits and pool.unit and pool.look_at is None and pool.usable(n, now) < n:  # the first gathers more
                pool.look_at = now + self._horizon // 2
        elif lacks > 0 and (len(each) > 1 or not pool.unit or self.busy or not self._take_now(now, lacks)):
            self._ask(now, [(lacks, each)], within=0.0)
        return False

    def _take_now(self, now: int, n: int) -> bool:
        """Ask for slots of a rate that are due now. Returns whether that was answered."""
        pool, part = self._pool, self._pool.parts[0]
        decide = partial(take_now, part.every_us, part.burst, n, self._record.told)
        try:
            answer = self._record.file.ask(self._record, self._unix(now), decide, patient=True)
        except BlockingIOError:
            return True
        if answer is None:
            return False
        granted, ahead = answer
        part.full = now + ceil(ahead * US)
        if granted:
            pool.add(Run((1,), n, SLACK_NS, [(now, 1, 0)]))
        return True

    def _ask(self, now: int, runs: Runs, within: float = -1.0, gone: int = 0) -> None:
        """Ask for these, and tell what is untold; see `Talk._ask_for`. Raises EngineUnavailable."""
        pool, node, record, asked = self._pool, self._node, self._record, self._unix(now)
        sent, question = self._ask_for(runs, within, asked - record.told[1] if record.told else 0.0, int(asked * US), gone)

        def decide(kept: Value | None, at: float) -> tuple[Answer, Value | None, float]:
            answer, rests = answer_of(at, question, kept, record.told, gone > 0 and kept == self._booked)
            self._booked = tuple(answer.numbers)  # here: another thread may write as soon as this is over
            return answer, self._booked, rests

        try:
            answer = self._record.file.ask(record, asked, decide, patient=not node.line.is_waited_in)
        except (BlockingIOError, EngineUnavailable) as error:
            self._take_back(sent, nothing=True)
            if isinstance(error, EngineUnavailable):
                raise
            pool.look_at = node.now() + MS
            if self.busy:
                self._later(FLUSH_NS)
            return
        _, at, hush, *_ = answer.numbers
        self._book(answer, sent, now if sent.whole else now + ceil((at - asked) * US))
        self._follow(hush)
        if node.held_at is not None and node.line.is_waited_in:  # it was looking, and cannot have seen the pause
            self.held_up()
        self._tidy_later()

    def _unix(self, now: int) -> float:
        """That instant in us by the clock of the record, which for windows is the Unix time."""
        node, tree, calendar = self._node, self._node.tree, self._pool.calendar
        reading = now + node.offset + tree.shift if node.held_at is None else tree.read()
        if tree.clock is not None or (tree.loop is not None and not tree.loop.steady):  # virtual time
            return (reading if calendar is None else reading + calendar._origin) / US
        return (time.time_ns() if calendar is not None else reading + time.monotonic_ns() - tree.read()) / US  # trio has a clock of its own

    # What the pool and the node tell.

    def _tell(self, gone: int = 0) -> None:
        """If the file cannot be used, it hears that with the next question."""
        self._pool.look_at = None
        with suppress(EngineUnavailable):
            self._ask(self._node.now(), [], gone=gone)

    def look(self) -> None:
        self._tell()
        self._node.changed()

    # Later.

    def _on_timer(self) -> None:
        self._timer = None
        node = self._node
        waits = node.first() is not None
        if not waits and not self._lease:
            self._give_back()
        if self.busy or (waits and node.paused):
            self.look()
        self._tidy_later()

    def _tidy_later(self) -> None:
        """Slots of a rate that are due soon lapse by themselves."""
        pool = self._pool
        if pool.count and not self._lease and (not pool.unit or pool.last_due() > self._node.now() + FLUSH_NS):
            self._later(FLUSH_NS)

    def _give_back(self) -> None:
        """Give back all slots in hand; those of a rate only if nobody has booked since."""
        gone = self._pool.give_up(self._tail, self._node.now())
        if gone and not self.busy:
            self._tell(gone)

    def forked(self) -> None:
        super().forked()
        self._record.file.forked()

    def closed(self) -> None:
        self._give_back()
        self._no_timer()

    def moved(self) -> None:
        self._no_timer()
