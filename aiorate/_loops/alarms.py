"""Calls at instants of the monotonic clock, in order. Knows nothing of what is called, nor who wakes up for it."""

from __future__ import annotations

from bisect import bisect_left, insort_right
from contextlib import suppress
from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Alarm:
    """A call at an instant."""

    __slots__ = ("_alarms", "callback", "instant")

    def __init__(self, alarms: Alarms, instant: int, callback: Callable[[], object]) -> None:
        self._alarms = alarms
        self.instant = instant
        self.callback = callback

    def __lt__(self, other: Alarm) -> bool:
        return self.instant < other.instant

    def cancel(self) -> None:
        in_order = self._alarms.in_order
        with suppress(ValueError):  # it was called, or cancelled
            del in_order[in_order.index(self, bisect_left(in_order, self))]
            self._alarms.changed()


class Alarms:
    """Those of one timer. Calls at the same instant keep the order in which they were added."""

    __slots__ = ("in_order",)

    def __init__(self) -> None:
        self.in_order: list[Alarm] = []

    def changed(self) -> None:
        """The first may be another one."""

    @property
    def first(self) -> int | None:
        """The instant of the first; None: there is none."""
        return self.in_order[0].instant if self.in_order else None

    def add(self, instant: int, callback: Callable[[], object]) -> Alarm:
        alarm = Alarm(self, instant, callback)
        insort_right(self.in_order, alarm)
        self.changed()
        return alarm

    def call_due(self) -> None:
        """Call the first if the monotonic clock has reached it, and no other: others come in between."""
        if self.in_order and self.in_order[0].instant <= monotonic_ns():
            self.in_order.pop(0).callback()
