"""The turn of an event loop: how long it has not run its other tasks, and where callers wait until it has. Knows nothing of rates."""

from __future__ import annotations

import os
from collections import OrderedDict
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from aiorate._loops.loop import Loop, TimedClock
from aiorate._meter import FAR, LoopCheck

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiorate._loops.loop import Clock, ReadClock


LOOP_CHECK_NS = 5_000_000  # two checks within the 10 ms for which callers may keep a loop busy
MOST = 1_000  # callers woken in one iteration of the loop; more would delay the next iteration for too long
FEW = MOST // 8  # so many may always be woken
_LEAST = 64  # callers let through at least: resuming 64 in vain takes a fiftieth of 10 ms; among fewer, one slow caller would delay all
_VAIN = 3  # iterations that other callers may use up; then a waiting caller goes on even in a starved loop


class _Turn:
    """The turns of one loop, for all its limiters: a caller that goes from one limiter to the next starves its loop too.

    A caller that finds the loop starved waits here, and each iteration of the loop lets a portion of the callers through, in order of
    arrival. If the loop is starved again before the whole portion has gone on, the others go back to the front and the next portion is
    half as large, but no smaller than 64; otherwise it is an eighth larger. So each of a thousand callers waits once, whatever they do
    between two calls. Used in its loop only. Without callers, it has no task, timer or callback there.
    """

    __slots__ = ("__weakref__", "_armed", "_passed", "_portion", "_queue", "_read", "_returned", "_since", "_too_long", "_vain")

    # The limiters of a loop keep its turn, and the last takes it along.
    _of: ClassVar[WeakValueDictionary[tuple[int, bool], _Turn]] = WeakValueDictionary()

    def __init__(self, read: ReadClock) -> None:
        self._read = read
        self._queue: OrderedDict[Any, None] = OrderedDict()  # the signals of callers, in order of arrival
        self._returned: dict[Any, None] = {}  # signals of callers that were let through and found the loop starved again
        self._portion = MOST
        self._passed = False  # whether a caller of the portion has gone on
        self._vain = 0  # iterations in a row in which no caller has gone on
        self._too_long = False  # whether a caller found the loop starved since the portion was last measured
        self._since: int | None = None  # the first reading of the clock in this iteration
        self._armed = False  # whether a callback is posted for the next iteration

    @classmethod
    def of(cls, native: object, read: ReadClock) -> _Turn:
        """The loop's turn by that clock: one by ``time.monotonic_ns``, and one by the loop's own time if that is another."""
        key = id(native), read is monotonic_ns  # not the loop: its tasks may hold the turn, and then neither would be freed
        return cls._of.get(key) or cls._of.setdefault(key, cls(read))

    def held_for(self, loop: Loop) -> int:
        """Nanoseconds since the loop was last seen running its other tasks; 0 if it was not watched. Watches it from now on."""
        now = self._read()
        since = self._since
        if since is None:
            since = self._since = now
            self._arm(loop)
        return now - since  # called in another thread, where a call is about to fail, the loop may have run an iteration meanwhile

    def room(self, resuming: int) -> int:
        """See `Loop.room`. Fewer while callers wait here, but an eighth at least: neither they nor the line make others wait for ever."""
        return max(MOST - len(self._queue), FEW) - resuming

    async def wait(self, loop: Loop) -> None:
        """Wait until the loop has run its other tasks, and the callers that came before have gone on."""
        self._arm(loop)
        waiting: dict[Any, None] = self._queue
        while True:
            signal = loop.signal()
            waiting[signal] = None
            try:
                await loop.wait(signal)
            except BaseException:
                self._queue.pop(signal, None)
                self._returned.pop(signal, None)
                raise
            if self.held_for(loop) < LOOP_CHECK_NS or self._vain >= _VAIN:
                self._vain = 0
                self._passed = True
                return
            self._too_long = True
            self._arm(loop)
            waiting = self._returned

    def _arm(self, loop: Loop) -> None:
        if not self._armed:
            self._armed = True
            loop.post(partial(self._on_iteration, loop))

    def _on_iteration(self, loop: Loop) -> None:
        if self._returned and not self._passed:
            self._vain += 1
        self._armed = self._passed = False
        self._since = None
        queue = self._queue
        for signal in reversed(self._returned):
            queue[signal] = None
            queue.move_to_end(signal, last=False)
        self._returned.clear()
        if queue:
            self._adapt()
            for _ in range(min(self._portion, len(queue))):
                loop.wake(queue.popitem(last=False)[0])
            self._arm(loop)

    def _adapt(self) -> None:
        """Halve the portion if the last one took too long; otherwise make it an eighth larger."""
        too_long, self._too_long = self._too_long, False
        self._portion = max(self._portion // 2, _LEAST) if too_long else min(self._portion + self._portion // 8 + 1, MOST)


class OneLoop(Loop):
    """What the loops of all families have in common: whether they turn."""

    __slots__ = ("__weakref__", "_process", "_timers", "_turn", "check", "grain", "manual", "monotonic", "read", "steady")

    natives: ClassVar[type]
    """The class of the loops themselves."""

    @staticmethod
    def running_here(in_task: bool) -> object | None:
        """The loop of this family that runs in this thread; None: none does, or none of its tasks runs now and ``in_task`` asks for one."""
        raise NotImplementedError

    @staticmethod
    def task_here() -> object | None:
        """The task that runs in this thread, where a loop of this family does."""
        raise NotImplementedError

    @staticmethod
    def own_time(native: Any) -> ReadClock:
        """Reads that loop's clock."""
        raise NotImplementedError

    def __init__(self, native: Any, clock: Clock | None, precise: bool) -> None:
        time = self.own_time(native)
        self._process = os.getpid()
        self._timers = clock if clock is not None and isinstance(clock, TimedClock) else None
        self.manual: bool = self._timers is not None
        self.read: ReadClock = time if clock is None else clock.now
        self.check: LoopCheck = LoopCheck()
        self._turn = _Turn.of(native, monotonic_ns if self.read is monotonic_ns else time)

    @property
    def forked(self) -> bool:
        return self._process != os.getpid()

    def starved(self) -> bool:
        now = self.read()
        if self.manual or now < self.check.until or self.running_here(True) is not self.native:
            return False  # not a task of this loop calls, but perhaps one of a guest of the loop, such as a trio run
        held_for = self._turn.held_for(self)
        until = now - held_for + LOOP_CHECK_NS
        self.check.until = until if -FAR < until < FAR else 0  # a clock of users may read anything
        return held_for >= LOOP_CHECK_NS

    def turn(self) -> Awaitable[object]:
        return self._turn.wait(self)

    def room(self, resuming: int, woken: int) -> int:
        return self._turn.room(resuming)
