"""What few limiters have. All others share one object without any of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate._loops.clock import Clock
    from aiorate._tree.watch import Watch

__all__ = ["NONE", "Extras"]


class Extras:
    """Never changed once it is made: a limiter gets another one."""

    __slots__ = ("clock", "precise", "watch")

    def __init__(self, clock: Clock | None, precise: bool, watch: Watch | None = None) -> None:
        self.clock: Clock | None = clock
        """The clock, if it is not the loop's."""
        self.precise: bool = precise
        """Whether waiters are woken by a kernel timer."""
        self.watch: Watch | None = watch
        """Who is told of requests that waited; None: nobody."""


NONE = Extras(None, False)
