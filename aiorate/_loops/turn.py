"""The turn of an event loop: how long it has not run its other tasks, and where callers wait until it has. Knows nothing of rates."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from aiorate._loops.loop import MOST, Loop
from aiorate._meter import FAR

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from aiorate._loops.loop import Clock, ReadClock


LOOP_CHECK_NS = 5_000_000  # two checks within the 10 ms for which callers may keep a loop busy
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

    __slots__ = ("__weakref__", "_again", "_portion", "_queue", "_read", "_since", "_vain")

    # The limiters of a loop keep its turn, and the last takes it along.
    _of: ClassVar[WeakValueDictionary[int, _Turn]] = WeakValueDictionary()

    def __init__(self, read: ReadClock) -> None:
        self._read = read
        self._queue: OrderedDict[Any, None] = OrderedDict()  # the signals of callers, in order of arrival
        self._again: dict[Any, None] = {}  # signals of callers that were let through and found the loop starved again
        self._portion = MOST
        self._vain = 0  # iterations with such callers since one went on
        self._since: int | None = None  # the first reading of the clock in this iteration; None: nobody asks when the next one begins

    @classmethod
    def of(cls, native: object, read: ReadClock) -> _Turn:
        """The loop's turn, by its own time."""
        key = id(native)  # not the loop: its tasks may hold the turn, and then neither would be freed
        return cls._of.get(key) or cls._of.setdefault(key, cls(read))

    def held_for(self, loop: OneLoop) -> int:
        """Nanoseconds since the loop was last seen running its other tasks; 0 if it was not watched. Watches it from now on."""
        now = self._read()
        since = self._since
        if since is None:
            since = self._since = now
            loop.post(partial(self._on_iteration, loop))
        return now - since  # called in another thread, where a call is about to fail, the loop may have run an iteration meanwhile

    async def wait(self, loop: OneLoop) -> None:
        """Wait until the loop has run its other tasks, and the callers that came before have gone on."""
        self.held_for(loop)
        waiting: dict[Any, None] = self._queue
        while True:
            signal = loop.signal()
            waiting[signal] = None
            try:
                await loop.wait(signal)
            except BaseException:
                self._queue.pop(signal, None)
                self._again.pop(signal, None)
                raise
            if self.held_for(loop) < LOOP_CHECK_NS or self._vain >= _VAIN:
                self._vain = 0
                return
            waiting = self._again

    def _on_iteration(self, loop: OneLoop) -> None:
        self._since = None
        queue, again = self._queue, self._again
        if again:
            self._vain += 1
            self._portion = max(self._portion // 2, _LEAST)
            for signal in reversed(again):
                queue[signal] = None
                queue.move_to_end(signal, last=False)
            again.clear()
        else:
            self._portion = min(self._portion + self._portion // 8 + 1, MOST)
        for _ in range(min(self._portion, len(queue))):
            loop.wake(queue.popitem(last=False)[0])
        if queue:
            self.held_for(loop)


class OneLoop(Loop):
    """What the loops of all families have in common: whether they turn."""

    __slots__ = ("_handed", "_posted", "_turn")

    natives: ClassVar[type]
    """The class of the loops themselves."""

    @staticmethod
    @abstractmethod
    def running_here(in_task: bool) -> object | None:
        """The loop of this family that runs in this thread; None: none does, or none of its tasks runs now and ``in_task`` asks for one."""

    @staticmethod
    @abstractmethod
    def task_here() -> object | None:
        """The task that runs in this thread, where a loop of this family does."""

    @staticmethod
    @abstractmethod
    def own_time(native: Any) -> ReadClock:
        """Reads that loop's clock."""

    def __init__(self, native: Any, clock: Clock | None, precise: bool) -> None:
        time = self.own_time(native)
        super().__init__(native, time, clock)
        self._turn = _Turn.of(native, time)
        self._handed: deque[Callable[[], object]] = deque()
        self._posted = False

    @property
    def ended(self) -> bool:
        """Whether it is known to be closed without asking the loop, which would wake it."""
        return self.closed

    @abstractmethod
    def signal(self) -> Any:
        """Make what to `wait` for once. Called where it is waited for, as `wake` is."""

    @abstractmethod
    def wake(self, signal: Any, /) -> None:
        """Let the owner of a signal go on, if it still waits."""

    def owner(self) -> asyncio.Task[Any] | None:
        """The task that runs here, if any thread can see whether it is being cancelled; otherwise None."""
        return None

    def hand(self, call: Callable[[], object]) -> bool:
        """Have `deliver` make the call. Any thread may ask. Returns whether that has to be posted: however many calls there are, once."""
        self._handed.append(call)
        if self._posted:
            return False
        self._posted = True
        return True

    def deliver(self) -> None:
        """Make the calls, in the loop."""
        self._posted = False  # before the queue is read: hand() reads this flag only after it has added its call
        for _ in range(MOST):
            try:
                call = self._handed.popleft()
            except IndexError:
                return
            call()
        self._posted = True
        self.post(self.deliver)

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

    @property
    def most(self) -> int:
        """Fewer while callers wait for their turn, but an eighth at least: neither they nor the line make others wait for ever."""
        return FAR if self.manual else max(MOST - len(self._turn._queue), FEW)
