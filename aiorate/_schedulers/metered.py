"""Metered: a scheduler whose state is the next permit of its meter, so that a limiter may take single permits from the meter.

A grab is a take of one permit that cannot come back. Before the scheduler itself does anything that depends on the takes before it,
it collects what the grabs came to.
Knows nothing of clocks, loops or waiters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._meter import NO_LINE
from aiorate._schedulers.undo import Undoing

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from aiorate._meter import Meter

__all__ = ["Metered"]


class Metered(Undoing):
    """The subclass keeps the instant of its next permit in `line`, in ticks, and sets ``metered_take = take`` below its own `take`.

    Its records are the instant of the take, the next permit before it, the first that was taken, what the subclass needs, and the
    number of permits.
    """

    __slots__ = ("line",)
    line: Meter
    """The next permit. A grab does what ``take(1, now)`` does, or nothing."""

    @property
    def _meter(self) -> Meter | None:
        """The line, unless it is not straight, or a subclass or an attribute takes permits in another way."""
        return self.line if self.take == self.metered_take and self.line.numbers != NO_LINE else None

    metered_take: Callable[..., int] = Undoing.take

    def collect(self) -> None:
        """Heed the grabs since the last call."""
        last, cut, peak = self.line.collect()
        if last is not None and self.line.due is not None:
            latest = self._latest
            if latest is not None and latest[0] == last and not cut:  # all of them were at that instant
                self._latest = (*latest[:-1], (self.line.due - latest[2]) // self.rate.ticks[1])
            else:
                self.forget_takes()
            self.heed(last, cut, peak)

    def heed(self, last: int, cut: int, peak: int) -> None:
        """Follow grabs, the latest at ``last``, that lost ``cut`` ticks and found at most ``peak`` idle ones."""

    def __getstate__(self) -> object:
        self.collect()  # the copy of a meter begins without grabs
        return object.__getstate__(self)

    def __copy__(self) -> Self:
        from copy import deepcopy

        return deepcopy(self)
