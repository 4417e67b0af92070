"""Calls at instants of the monotonic clock, in order. Knows nothing of what is called, nor who wakes up for it."""

from __future__ import annotations

from bisect import bisect_left, insort_right
from contextlib import suppress
from operator import attrgetter
from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


_instant = attrgetter("instant")


class Alarm:
    """A call at an instant."""

    __slots__ = ("_alarms", "callback", "instant")

    def __init__(self, alarms: Alarms, instant: int, callback: Callable[[], object]) -> None:
        self._alarms = alarms
        self.instant = instant
        self.callback = callback

    def cancel(self) -> None:
        self._alarms.cancel(self)


class Alarms:
    """Those of one timer. Calls at the same instant keep the order in which they were added."""

    __slots__ = ("_sorted",)

    def __init__(self) -> None:
        self._sorted: list[Alarm] = []

    def changed(self) -> None:
        """The first may be another one."""

    @property
    def first(self) -> int | None:
        """The instant of the first; None: there is none."""
        return self._sorted[0].instant if self._sorted else None

    def add(self, instant: int, callback: Callable[[], object]) -> Alarm:
        alarm = Alarm(self, instant, callback)
        insort_right(self._sorted, alarm, key=_instant)
        self.changed()
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        with suppress(ValueError):  # it was called, or cancelled
            del self._sorted[self._sorted.index(alarm, bisect_left(self._sorted, alarm.instant, key=_instant))]
            self.changed()

    def call_due(self) -> None:
        """Call the first if the monotonic clock has reached it, and no other: others come in between."""
        if self._sorted and self._sorted[0].instant <= monotonic_ns():
            self._sorted.pop(0).callback()
