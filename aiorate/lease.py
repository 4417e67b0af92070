"""Lease: what a call reserved of a budget, until it is settled or its block ends.

Knows nothing of limits, of lines or of time: the budget takes the amounts and corrects them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate.absent import NamesOfLease

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


class Lease(NamesOfLease):
    """What a call reserved: ``async with budget.reserve(tokens=1800) as lease: ...; lease.settle(tokens=used)``.

    With ``scope="process"``, a plain ``with`` reserves in synchronous code, and any thread may settle.

    The first of `settle` and `refund` counts, and others do nothing. Unsettled at the end of its block, the estimate stands.
    """

    __slots__ = ("_amounts", "_budget", "_entered", "_limit", "_on_error", "_receipt", "_state", "limited_by", "waited")

    def __init__(self, budget: Budget, amounts: Amounts, limit: int | None, on_error: OnError) -> None:
        self._budget = budget
        self._amounts = amounts
        self._limit = limit
        self._on_error = on_error
        self._entered: bool | None = None  # None: nobody tried
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
            raise RuntimeError(_TWICE)
        self._entered = True
        try:
            self.waited, self._receipt, self.limited_by = await self._budget.enter(self._amounts, self._limit)
        except BaseException:
            self._entered = False  # nothing was spent, and it may be tried again
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """With an exception and ``on_error="refund"``, give everything back. Otherwise the estimate stands if it was not settled."""
        self._leave(error)

    def __enter__(self) -> Lease:
        """As ``async with``, for synchronous code in any thread: blocks until every dimension has its amount. Needs ``scope="process"``.

        RuntimeError without it, and in a thread whose event loop is running, which it would block.
        """
        if self._budget.dispatcher.section is None:
            from aiorate.mistakes import NOT_A_BLOCK_OF_BUDGETS

            raise RuntimeError(NOT_A_BLOCK_OF_BUDGETS)
        if self._entered:
            raise RuntimeError(_TWICE)
        self._entered = True
        try:
            self.waited, self._receipt, self.limited_by = self._budget.enter_blocking(self._amounts, self._limit)
        except BaseException:
            self._entered = False
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """As with ``async with``."""
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        refunded = error is not None and self._on_error == "refund" and not self._state
        section = self._budget.dispatcher.section
        if section is None:
            try:
                if refunded:
                    self.refund()
            finally:
                self._end("over")
            return
        try:  # a finalizer may leave, and must not wait
            if refunded:
                section.post(partial(self._settle, dict.fromkeys(self._budget.dimensions, 0)))
        finally:
            self._state = self._state or "over"
            section.post(partial(self._end, "over"))

    if not TYPE_CHECKING:
        __await__ = __call__ = not_a_reservation

    def settle(self, *misplaced: Never, **used: int) -> None:
        """Report the actual use: less comes back at once, more is owed by later calls. Dimensions not named stay as reserved.

        Of a `TokenBucket`, as much comes back as fits into the burst: for long calls choose one that holds what they leave unused.

        0 is a legal amount. Raises TypeError and ValueError for anything else than known dimensions and ints of 0 or more, and
        RuntimeError outside the block, where the estimate stands already.
        """
        check_named("settle", self._budget.dimensions, misplaced)
        if self._state == "settled":
            return
        if self._receipt is None or self._state:
            raise RuntimeError(f"settle(): {_OVER if self._state else _NOT_ENTERED}")
        self._budget.check_used(used)
        section = self._budget.dispatcher.section
        if section is None:
            self._settle(used)
        else:
            section.command(partial(self._settle, used))

    def refund(self, *misplaced: Never, **amounts: Never) -> None:
        """Give everything back: the call was not made. Raises TypeError for amounts: `settle` is for a part."""
        if misplaced or amounts:
            from aiorate.mistakes import NOT_IN_PART

            raise TypeError(NOT_IN_PART)
        self.settle(**dict.fromkeys(self._budget.dimensions, 0))

    def _settle(self, used: dict[str, int]) -> None:
        receipt, self._receipt = self._receipt, None  # first: interrupted in the middle, the correction must not be made twice
        if receipt is not None:  # else another thread has settled it
            self._state = "settled"
            try:
                self._budget.settle_lease(self._amounts, receipt, used)
            finally:
                self._budget.end_lease()

    def _end(self, state: Literal["settled", "over"]) -> None:
        if self._receipt is not None:
            self._receipt, self._state = None, state
            self._budget.end_lease()

    def __del__(self) -> None:
        try:  # not suppress(), which may be gone as the interpreter ends
            if self._entered is None:
                from aiorate.mistakes import warn_of_no_block

                warn_of_no_block(self)
            self._end("over")  # entered by hand and never left
        except (AttributeError, ImportError):
            return  # a signal handler interrupted its making, or the interpreter ends

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


_TWICE = "a lease can be entered only once. Call reserve() again for each call."
_NOT_ENTERED = "nothing is reserved yet. Enter the lease with `async with` first."
_OVER = "the block has ended, and its estimate stands. Call settle() or refund() inside it, or use reserve(on_error='refund')."
