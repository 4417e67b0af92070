"""A run of time slots at equal distances, as a store assigned them to this process. Exact: a slot is a whole number of ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Rate

__all__ = ["SlotRun", "lapse_of", "runs_of"]


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
        """The instant (ns, rounded up) of the slot at that index."""
        at = ceil_div(self.next + index * self.step, self.unit)
        return at if at > self.floor else self.floor

    def before(self, instant: int) -> int:
        """The number of slots that are due before that instant."""
        if self.floor >= instant:
            return 0
        return min(max(((instant - 1) * self.unit - self.next) // self.step + 1, 0), self.left)

    def skip(self, count: int) -> int:
        """Remove the first ``count`` slots, or all if there are fewer. Returns how many."""
        count = min(count, self.left)
        self.next += count * self.step
        self.left -= count
        return count

    def part(self, next: int, left: int) -> SlotRun:
        """``left`` slots at the same distances, the first at ``next`` ticks."""
        return SlotRun(next, self.step, self.unit, left, self.floor, self.lapse)

    def adjoins(self, other: SlotRun) -> bool:
        """Whether the other begins where this run ends."""
        alike = (self.step, self.unit, self.floor) == (other.step, other.unit, other.floor)
        return alike and self.next + self.left * self.step == other.next


def lapse_of(rate: Rate, least: int) -> int:
    """How late (ns) a slot of that rate may be used: ``least``, or half an interval if that is longer.

    Half an interval adds half a permit to the bound, since no two slots in a row are both late.
    """
    return max(least, rate.period_ns // (2 * rate.permits))


def runs_of(starts: Sequence[int], rates: Sequence[Rate], count: int, floor: int, lapse: int) -> list[SlotRun]:
    """``count`` slots, each at the latest of ``starts[j] + i * interval[j]``, as runs at equal distances.

    The latest start decides first. A slower rate overtakes it later, and from then on no faster rate decides again.
    """
    if len(rates) == 1:
        unit = rates[0].permits
        return [SlotRun(starts[0] * unit, rates[0].period_ns, unit, count, floor, lapse_of(rates[0], lapse))]
    runs: list[SlotRun] = []
    done = 0
    while done < count:
        slots = [ceil_div(start * rate.permits + done * rate.period_ns, rate.permits) for start, rate in zip(starts, rates, strict=True)]
        latest = max(slots)
        ruling = max([j for j, slot in enumerate(slots) if slot == latest], key=lambda j: ceil_div(rates[j].period_ns, rates[j].permits))
        rate, start, left = rates[ruling], starts[ruling], count - done
        for j, other in enumerate(rates):
            # The first index at which the slower one is later: start + i * interval > own start + i * own interval.
            gain = other.period_ns * rate.permits - rate.period_ns * other.permits
            if gain > 0:
                index = (start - starts[j]) * rate.permits * other.permits // gain + 1
                left = min(left, max(index - done, 1))
        first = start * rate.permits + done * rate.period_ns
        runs.append(SlotRun(first, rate.period_ns, rate.permits, left, floor, lapse_of(rate, lapse)))
        done += left
    return runs
