"""How much of the rate this process has had, by the store's count of what each busy process was entitled to.

The store moves one count, the faster the less is booked ahead, and assigns a process what the count has gained since that process was
served. So shares are equal whatever a round trip takes. Knows nothing of loops, commands or the line.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate.redis.script import Answer

__all__ = ["FairShare"]

_US = 1_000  # ns
_CYCLES = 4  # a process that has not asked for so long is like one that has just come


class FairShare:
    """One process's place in that count. Times are readings and durations in ns."""

    __slots__ = ("_asked_at", "_lead", "_served", "_want")

    def __init__(self) -> None:
        self._asked_at: int | None = None  # when slots were asked for last
        self._lead: int = 0  # how far ahead the latest slots were
        self._served: float = -1  # us; -1: it has just come
        self._want: int = 0

    def asked(self, want: int, reading: int, cycle: int) -> float:
        """The process asks for ``want`` slots. Returns what to tell the store, in us.

        ``cycle`` is how long it takes at least until it asks again. What a process did not claim in several cycles is the others'.
        """
        if want:
            if self._asked_at is None or reading - self._asked_at > _CYCLES * (cycle + self._lead):
                self._served = -1
            self._asked_at = reading
            self._want = want
        return self._served

    def answered(self, answer: Answer, interval: float) -> None:
        """The store has assigned slots, which are ``interval`` us apart."""
        self._lead = max(ceil(max(answer.starts) * _US), 0)
        served = self._served + answer.granted * interval
        # What a process does not want it cannot save up; one slot is assigned to a process that is entitled to less.
        self._served = answer.entitled if self._served < 0 or answer.granted >= self._want else min(served, answer.entitled)
