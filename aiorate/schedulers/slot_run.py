"""A run of time slots at equal distances, as a store assigned them to this process. Exact: a slot is a whole number of ticks."""

from __future__ import annotations

from aiorate.rate import ceil_div

__all__ = ["SlotRun"]


class SlotRun:
    """``left`` slots: the first at ``next`` ticks, the others ``step`` ticks apart; a nanosecond has ``unit`` ticks.

    Slots before ``floor`` (ns), the instant at which they became known here, are due then: those of a burst lie in the past.
    A slot lapses when it was not used within ``lapse`` ns.
    """

    __slots__ = ("floor", "lapse", "left", "next", "step", "unit")

    def __init__(self, next: int, step: int, unit: int, left: int, floor: int, lapse: int) -> None:
        self.next: int = next
        self.step: int = step
        self.unit: int = unit
        self.left: int = left
        self.floor: int = floor
        self.lapse: int = lapse

    def due(self, index: int) -> int:
        """The instant (ns, rounded up) of the slot after so many others."""
        at = ceil_div(self.next + index * self.step, self.unit)
        return at if at > self.floor else self.floor

    def before(self, instant: int) -> int:
        """How many of its slots are due before that instant."""
        if self.floor >= instant:
            return 0
        return min(max(((instant - 1) * self.unit - self.next) // self.step + 1, 0), self.left)

    def split(self, count: int) -> SlotRun:
        """The first so many of them, which it has no more."""
        first = SlotRun(self.next, self.step, self.unit, count, self.floor, self.lapse)
        self.next += count * self.step
        self.left -= count
        return first

    def adjoins(self, other: SlotRun) -> bool:
        """Whether the other begins where it ends."""
        return (self.step, self.unit, self.floor) == (
            other.step,
            other.unit,
            other.floor,
        ) and self.next + self.left * self.step == other.next
