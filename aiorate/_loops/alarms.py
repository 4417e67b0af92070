"""Calls at instants, in order. Knows nothing of clocks, nor of what is called."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


_SMALL = 64


class Alarm:
    """A call at an instant."""

    __slots__ = ("_alarms", "callback")

    def __init__(self, alarms: Alarms, callback: Callable[[], object]) -> None:
        self._alarms = alarms
        self.callback: Callable[[], object] | None = callback  # None: it was made, or cancelled

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._alarms.changed()


class Alarms:
    """Those of one timer. Calls at the same instant keep the order in which they were added."""

    __slots__ = ("__weakref__", "_heap", "_most", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Alarm]] = []
        self._number = 0
        self._most = _SMALL  # alarms before the cancelled ones are removed, which would pile up behind the first

    def changed(self) -> None:
        """The first may be another one."""

    @property
    def first(self) -> int | None:
        """The instant of the first; None: there is none."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def add(self, instant: int, callback: Callable[[], object]) -> Alarm:
        heap, alarm = self._heap, Alarm(self, callback)
        if len(heap) >= self._most:
            heap[:] = [entry for entry in heap if entry[2].callback is not None]
            heapify(heap)
            self._most = 2 * len(heap) + _SMALL
        self._number += 1
        heappush(heap, (instant, self._number, alarm))
        self.changed()
        return alarm

    def pop(self) -> Callable[[], object]:
        """Take the call of the first."""
        alarm = heappop(self._heap)[2]
        callback, alarm.callback = alarm.callback, None
        assert callback is not None  # since it is the first
        return callback
