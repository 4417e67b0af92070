"""The slots that a store assigned to this process: those not granted yet, in order, and the latest grants, which may come back."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiorate._schedulers.slot_run import SlotRun

__all__ = ["SlotsInHand"]


class SlotsInHand:
    """A queue of runs. Slots that have lapsed stay in it until a grant passes over them. Instants are whole ns."""

    __slots__ = ("_granted", "_rest", "count", "first", "lapsed")

    def __init__(self) -> None:
        self.first: SlotRun | None = None
        """The run to take from."""
        self.count: int = 0
        """Slots, including those that have lapsed."""
        self.lapsed: int = 0
        """Nanoseconds of schedule that nobody used in time."""
        self._rest: list[SlotRun] = []  # a few at most: an empty deque would be a seventh of a limiter
        # The latest grants: instant, first slot, number of slots, and their run. Where 50 tasks ask without a pause, most grants may
        # still come back, and a tuple is 3 times as fast as a run.
        self._granted: deque[tuple[int, int, int, SlotRun]] = deque()

    def runs(self) -> list[SlotRun]:
        """All of them, in order."""
        return [] if self.first is None else [self.first, *self._rest]

    def last_run(self) -> SlotRun | None:
        """The latest of them."""
        return self._rest[-1] if self._rest else self.first

    def add(self, runs: Iterable[SlotRun]) -> None:
        """Append runs that the store assigned."""
        for run in runs:
            self.count += run.left
            if self.first is None:
                self.first = run
            else:
                self._rest.append(run)

    def clear(self) -> None:
        """Forget all slots, including those granted."""
        self.first = None
        self.count = 0
        self._rest.clear()
        self._granted.clear()

    def before(self, instant: int) -> int:
        """The number of slots that are due before that instant."""
        if self.first is not None and not self._rest:
            return self.first.before(instant)
        return sum([run.before(instant) for run in self.runs()])

    def lapsed_by(self, now: int) -> int:
        """The number of slots that have lapsed."""
        first = self.first
        lapsed = 0 if first is None else first.before(now - first.lapse)
        return sum([run.before(now - run.lapse) for run in self.runs()]) if lapsed and self._rest else lapsed

    def due(self, permits: int, skip: int, now: int) -> tuple[int, int]:
        """When the first ``permits`` slots after ``skip`` others are all due (``now`` if there are none), and how many are missing."""
        if self.first is not None and skip + permits <= self.first.left:
            return self.first.due(skip + permits - 1), 0
        missing = permits
        at: int | None = None
        for run in self.runs():
            if skip >= run.left:
                skip -= run.left
                continue
            used = min(missing, run.left - skip)
            due = run.due(skip + used - 1)
            at = due if at is None or due > at else at
            missing -= used
            skip = 0
            if not missing:
                break
        return now if at is None else at, missing

    def take(self, permits: int, skip: int, now: int) -> None:
        """Grant the first ``permits`` slots after ``skip`` others, which have lapsed."""
        while (run := self.first) is not None and (skip or permits):
            gone = run.skip(skip)
            skip -= gone
            self.lapsed += gone * run.step // run.unit
            first, used = run.next, run.skip(permits)
            if used:
                self.note(first, used, run, now)
                permits -= used
            self.count -= gone + used
            if not run.left:
                self.drop_first()

    def drop_first(self) -> None:
        """Go on to the next run: all slots of the first are used."""
        self.first = self._rest.pop(0) if self._rest else None

    def note(self, first: int, count: int, run: SlotRun, now: int) -> None:
        """Record a grant of ``count`` slots of that run, from ``first`` (ticks) on, which may come back until they lapse."""
        granted = self._granted
        while granted and granted[0][0] < now - granted[0][3].lapse:
            granted.popleft()
        granted.append((now, first, count, run))

    def give_back(self, permits: int, taken: int) -> None:
        """Put back slots that were granted at the instant ``taken``, the latest first. Those that have lapsed since are lost."""
        later: list[tuple[int, int, int, SlotRun]] = []
        while permits and self._granted and self._granted[-1][0] >= taken:
            instant, first, count, run = self._granted.pop()
            back = min(count, permits) if instant == taken else 0
            if back < count:
                later.append((instant, first, count - back, run))
            if back:
                permits -= back
                self._put_back(run.part(first + (count - back) * run.step, back))
        self._granted.extend(reversed(later))

    def _put_back(self, back: SlotRun) -> None:
        """Insert the run before all that are due later."""
        runs, due = self.runs(), back.due(back.left - 1)
        self.count += back.left
        place = 0
        while place < len(runs) and runs[place].due(0) < due:
            place += 1
        if place < len(runs) and back.adjoins(runs[place]):
            runs[place].next, runs[place].left = back.next, runs[place].left + back.left
        else:
            runs.insert(place, back)
        self.first = runs[0]
        self._rest = runs[1:]

    def shift(self, ns: int) -> None:
        """Move all slots ``ns`` earlier."""
        for run in self.runs():
            run.next -= ns * run.unit
            run.floor -= ns

    def copy(self) -> SlotsInHand:
        """The same slots; no grant of the original can come back to it."""
        twin = SlotsInHand()
        twin.add([run.part(run.next, run.left) for run in self.runs()])
        return twin
