"""The turn of an event loop: how long it has not run its other tasks, and where callers wait until it has. Knows nothing of rates."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from aiorate._loops.loop import MOST, Loop
from aiorate._meter import FAR

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiorate._loops.loop import Clock, ReadClock


LOOP_CHECK_NS = 5_000_000  # two checks within the 10 ms for which callers may keep a loop busy
FEW = MOST // 8  # so many may always be woken
_AT_ONCE = 64  # callers let through in one iteration: resuming so many in vain takes a fiftieth of 10 ms


class OneLoop(Loop):
    """What the loops of all families have in common: whether they turn.

    A caller that finds the loop starved waits for its turn, whatever limiter it calls. Each iteration of the loop lets some callers
    through, in order of arrival; those that find the loop starved again keep their places, but the first of them always goes on. Without
    callers, there is no task, timer or callback in the loop.
    """

    __slots__ = ("_first", "_handed", "_plain", "_posted", "_queue", "_since")

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

    def __init__(self, native: Any, clock: Clock | None, precise: bool, plain: OneLoop | None) -> None:
        super().__init__(native, self.own_time(native), clock)
        self._plain = plain  # the same loop by its own time, which knows whether it turns; None: this one
        self._queue: OrderedDict[object, Any] = OrderedDict()  # callers in order of arrival, each with its signal
        self._first: object = None  # of the callers that were let through last
        self._since: int | None = None  # the first reading of the clock in this iteration; None: nobody asks when the next one begins
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
        held_for = (self._plain or self)._held_for()
        until = now - held_for + LOOP_CHECK_NS
        self.check.until = until if -FAR < until < FAR else 0  # a clock of users may read anything
        return held_for >= LOOP_CHECK_NS

    def turn(self) -> Awaitable[object]:
        return (self._plain or self)._wait_for_turn()

    def _held_for(self) -> int:
        """Nanoseconds since the loop was last seen running its other tasks; 0 if it was not watched. Watches it from now on."""
        now = self.read()
        since = self._since
        if since is None:
            since = self._since = now
            self.post(self._on_iteration)
        return now - since  # called in another thread, where a call is about to fail, the loop may have run an iteration meanwhile

    async def _wait_for_turn(self) -> None:
        self._held_for()
        me = object()
        try:
            while True:
                signal = self._queue[me] = self.signal()
                await self.wait(signal)
                if self._first is me or self._held_for() < LOOP_CHECK_NS:
                    return
        finally:
            self._queue.pop(me, None)

    def _on_iteration(self) -> None:
        self._since, self._first = None, next(iter(self._queue), None)
        for signal in islice(self._queue.values(), _AT_ONCE):
            self.wake(signal)
        if self._queue:
            self._held_for()
