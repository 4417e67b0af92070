"""Lease: what a call reserved of a budget, until it is settled or its block ends.

Knows nothing of limits, of lines or of time: the budget takes the amounts and corrects them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Literal, Never, NoReturn

    from aiorate.budget import Budget
    from aiorate.schedulers.dimensions import Amounts

    OnError = Literal["keep", "refund"]

__all__ = ["Lease", "check_named", "not_a_reservation"]


def not_a_reservation(*args: object) -> Never:
    """Raise the error for a Budget or a reservation that is awaited, or entered in another way than ``async with``."""
    from aiorate.mistakes import NOT_A_RESERVATION

    raise TypeError(NOT_A_RESERVATION)


class Lease:
    """What a call reserved: ``async with budget.reserve(tokens=1800) as lease: ...; lease.settle(tokens=used)``.

    The first of `settle` and `refund` counts, and others do nothing. Unsettled at the end of its block, the estimate stands.
    """

    __slots__ = ("_amounts", "_budget", "_entered", "_limit", "_on_error", "_receipt", "_state", "limited_by", "waited")

    def __init__(self, budget: Budget, amounts: Amounts, limit: int | None, on_error: OnError) -> None:
        self._budget = budget
        self._amounts = amounts
        self._limit = limit
        self._on_error = on_error
        self._entered = False
        self._receipt: int | None = None  # while it is held
        self._state: Literal["", "settled", "over"] = ""
        self.waited: float = 0.0
        """Seconds waited."""
        self.limited_by: str | None = None
        """The dimension that the call waited for, itself or behind others in line; None: none, or only for a pause to end."""

    @property
    def amounts(self) -> dict[str, int]:
        """How much of each dimension is reserved."""
        return dict(zip(self._budget.dimensions, self._amounts.of, strict=True))

    async def __aenter__(self) -> Lease:
        """Wait until every dimension has its amount."""
        if self._entered:
            raise RuntimeError("a lease can be entered only once. Call reserve() again for each call.")
        self._entered = True
        try:
            self.waited, self._receipt, self.limited_by = await self._budget.enter(self._amounts, self._limit)
        except BaseException:
            self._entered = False  # nothing was spent, and it may be tried again
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """With an exception and ``on_error="refund"``, give everything back. Otherwise the estimate stands if it was not settled."""
        try:
            if error is not None and self._on_error == "refund":
                self.refund()
        finally:
            self._end("over")

    if not TYPE_CHECKING:
        __enter__ = __exit__ = __await__ = not_a_reservation

    def settle(self, *misplaced: Never, **used: int) -> None:
        """Report the actual use: less comes back at once, more is owed by later calls. Dimensions not named stay as reserved.

        0 is a legal amount. Raises TypeError and ValueError for anything else than known dimensions and ints of 0 or more, and
        RuntimeError outside the block, where the estimate stands already.
        """
        check_named("settle", self._budget.dimensions, misplaced)
        if self._state == "settled":
            return
        if self._receipt is None:
            raise RuntimeError(f"settle(): {_OVER if self._state else _NOT_ENTERED}")
        self._budget.settle(self._amounts, self._receipt, used)
        self._end("settled")

    def refund(self) -> None:
        """Give everything back: the call was not made."""
        self.settle(**dict.fromkeys(self._budget.dimensions, 0))

    def _end(self, state: Literal["settled", "over"]) -> None:
        if self._receipt is not None:
            self._receipt, self._state = None, state
            self._budget.release()

    def __del__(self) -> None:
        self._end("over")  # entered by hand and never left

    def __repr__(self) -> str:
        state = self._state or ("reserved" if self._receipt is not None else "waiting" if self._entered else "not entered")
        return f"<Lease {', '.join(f'{place}={amount}' for place, amount in self.amounts.items())}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Lease cannot be copied or pickled: the copy would give the same permits back again. Share it.")


def check_named(call: str, names: tuple[str, ...], misplaced: tuple[object, ...]) -> None:
    """Raise TypeError for amounts that were given without their names."""
    if misplaced:
        from aiorate.mistakes import not_by_name

        raise not_by_name(call, misplaced[0], names)


_NOT_ENTERED = "nothing is reserved yet. Enter the lease with `async with` first."
_OVER = "the block has ended, and its estimate stands. Call settle() or refund() inside it, or use reserve(on_error='refund')."
