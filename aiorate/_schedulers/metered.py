"""Schedulers of which a meter takes single permits. A grab of a meter is a take of one permit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate._meter import NO_LINE
from aiorate._schedulers.interface import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from aiorate._meter import Meter
    from aiorate._rate import Rate


class Metered(Scheduler):
    """The subclass keeps the instant of its next permit in `line`, in ticks, and sets ``metered_take = take`` below its own `take`."""

    __slots__ = ("_latest", "line", "rate")
    rate: Rate
    line: Meter
    """The next permit. A grab does what ``take(1, now)`` does, or nothing."""
    _latest: Any
    """What undoes the latest takes, their instant first; None: they stand."""

    metered_take: Callable[..., int] = Scheduler.take

    @property
    def _meter(self) -> Meter | None:
        """The line, unless it is not straight, or a subclass or an attribute takes permits in another way."""
        return self.line if self.take == self.metered_take and self.line.numbers != NO_LINE else None

    def collect(self) -> None:
        """Heed the grabs since the last call. All takes before them stand."""
        last, cut, peak = self.line.collect()
        if last is not None:
            self._latest = None
            self.heed(last, cut, peak)

    def heed(self, last: int, cut: int, peak: int) -> None:
        """Follow grabs, the latest at ``last``, that lost ``cut`` ticks and found at most ``peak`` idle ones."""
        raise NotImplementedError

    def __getstate__(self) -> object:
        self.collect()  # the copy of a meter begins without grabs
        return object.__getstate__(self)

    def __copy__(self) -> Self:
        from copy import deepcopy

        return deepcopy(self)
