"""The errors in place of a reservation: which dimension it would wait for, and which limit is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._errors import LimiterClosed
from aiorate._schedulers.dimensions import Amounts
from aiorate._tree.refusals import Refusals

if TYPE_CHECKING:
    from aiorate._above import Above
    from aiorate._schedulers.dimensions import Dimensions
    from aiorate._tree.limit import Limit

__all__ = ["BudgetRefusals"]

_CLOSED = "the budget is closed. Create a new one."


class BudgetRefusals(Refusals):
    """Those of `Budget.reserve`, which say for which dimension a call would wait."""

    __slots__ = ("_above", "_dimensions", "_names")

    def __init__(self, names: tuple[str, ...], dimensions: Dimensions, above: Above | None) -> None:
        super().__init__("reserve")
        self._names = names
        self._dimensions = dimensions
        self._above = above

    def named(self, permits: int) -> str:
        return "reserve()"

    def amounts(self, permits: int) -> dict[str, int]:
        assert isinstance(permits, Amounts)
        return dict(zip(self._names, permits.of, strict=True))

    def dimension(self, permits: int) -> str | None:
        assert isinstance(permits, Amounts)
        return None if permits.waited_for is None else self._names[permits.waited_for]

    def closed(self, node: Limit) -> LimiterClosed:
        return LimiterClosed(f"reserve(): {_CLOSED if node.closed or self._above is None else self._above.closed()}")

    def reason(self, permits: int, node: Limit, now: int) -> str:
        if node.queue.line:
            return " in line"
        if node.timeline.held_at is not None:
            return " because the budget is paused"
        place = self._dimensions.last(permits, now)
        if place is None and self._above is not None:
            return self._above.reason(permits)
        return f" for {self._names[0 if place is None else place]}"
