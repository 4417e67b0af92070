"""The turnstile of an event loop: how long the loop has not run its other tasks, and where callers wait until it has.

All limiters of a loop share one: a caller that goes from one limiter to the next starves its loop too. A caller that finds the loop
starved waits here, and each iteration of the loop lets a portion of the callers through, in order of arrival. If the loop is starved
again before the whole portion has gone on, the others go back to the front and the next portion is half as large, but no smaller
than 64; otherwise it is an eighth larger. So each of a thousand callers waits once, whatever they do between two calls.
Knows nothing of rates.
"""

from __future__ import annotations

from collections import OrderedDict
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._loops.port import Port

__all__ = ["LOOP_CHECK_NS", "MOST", "NEVER", "Turnstile"]

LOOP_CHECK_NS = 5_000_000  # two checks within the 10 ms for which callers may keep a loop busy
NEVER = 1 << 198  # in place of a reading: no caller ever needs to check the loop
MOST = 1_000  # callers woken in one iteration of the loop; more would delay the next iteration for too long
_LEAST = 64  # callers let through at least: resuming 64 in vain takes a fiftieth of 10 ms; among fewer, one slow caller would delay all
_VAIN = 3  # iterations that other callers may use up; then a waiting caller goes on even in a starved loop


class Turnstile:
    """Callers that wait for an iteration of one loop. Used in that loop only. Without callers, it has no task, timer or callback there."""

    __slots__ = (
        "__weakref__",
        "_armed",
        "_passed",
        "_port",
        "_portion",
        "_queue",
        "_read",
        "_returned",
        "_since",
        "_too_long",
        "_vain",
    )

    # The limiters of a loop keep its turnstile, and the last takes it along. A loop in virtual time has a second one, by real time.
    _of: ClassVar[WeakValueDictionary[tuple[int, bool], Turnstile]] = WeakValueDictionary()

    def __init__(self, port: Port, read: Callable[[], int]) -> None:
        self._port = port
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
    def of(cls, native: object, port: Callable[[Any], Port], read: Callable[[], int]) -> Turnstile:
        """The loop's turnstile by that clock: one by ``time.monotonic_ns``, and one by the loop's own time if that is another."""
        key = (
            id(native),
            read is monotonic_ns,
        )  # not the loop: its tasks may hold the turnstile, and then neither would be freed
        return cls._of.get(key) or cls._of.setdefault(key, cls(port(native), read))

    def held_for(self) -> int:
        """Nanoseconds since the loop was last seen running its other tasks; 0 if it was not watched. Watches it from now on."""
        now = self._read()
        since = self._since
        if since is None:
            since = self._since = now
            self._arm()
        return now - since  # called in another thread, where a call is about to fail, the loop may have run an iteration meanwhile

    def room(self, resuming: int) -> int:
        """How many more tasks a line may wake in this iteration, after ``resuming`` that it woke and that have not gone on yet.

        Fewer while callers wait here, but at least an eighth, so that neither they nor the line can make the others wait for ever.
        """
        return max(MOST - len(self._queue), MOST // 8) - resuming

    async def wait(self) -> None:
        """Wait until the loop has run its other tasks, and the callers that came before have gone on."""
        self._arm()
        waiting: dict[Any, None] = self._queue
        while True:
            signal = self._port.signal()
            waiting[signal] = None
            try:
                await self._port.wait(signal)
            except BaseException:
                self._queue.pop(signal, None)
                self._returned.pop(signal, None)
                raise
            if self.held_for() < LOOP_CHECK_NS or self._vain >= _VAIN:
                self._vain = 0
                self._passed = True
                return
            self._too_long = True
            self._arm()
            waiting = self._returned

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._port.post(self._on_iteration)

    def _on_iteration(self) -> None:
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
                self._port.send(queue.popitem(last=False)[0])
            self._arm()

    def _adapt(self) -> None:
        """Halve the portion if the last one took too long; otherwise make it an eighth larger."""
        too_long, self._too_long = self._too_long, False
        self._portion = max(self._portion // 2, _LEAST) if too_long else min(self._portion + self._portion // 8 + 1, MOST)
