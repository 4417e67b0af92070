"""Lease: what a call reserved of a budget, until it is settled or its block ends.

Knows nothing of limits, of lines or of time: the budget takes the amounts and corrects them.
"""

from __future__ import annotations

from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Literal, NoReturn

    from aiorate._budget import Budget
    from aiorate._schedulers.dimensions import Amounts
    from aiorate._tree.limit import Taken

    OnError = Literal["keep", "refund"]

__all__ = ["Lease"]


class Lease:
    """What a call has reserved of a budget.

    ::

        async with budget.reserve(tokens=1800) as lease:
            ...
            lease.settle(tokens=412)

    The first call of `settle` or `refund` counts, later ones do nothing. Without either, the estimate becomes final at the end of the
    block.
    """

    __slots__ = ("_amounts", "_budget", "_entered", "_limit", "_on_error", "_state", "_taken", "limited_by", "waited")

    def __init__(self, budget: Budget, amounts: Amounts, limit: int | None, on_error: OnError) -> None:
        self._budget = budget
        self._amounts = amounts
        self._limit = limit
        self._on_error = on_error
        self._entered: bool | None = None  # None: nobody tried
        self._taken: Taken | None = None  # while it is held
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
            self.waited, self._taken, self.limited_by = await self._budget._enter(self._amounts, self._limit)
        except BaseException:
            self._entered = False  # nothing was spent, and it may be tried again
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Make the estimate final, or give it back if the block raised and ``on_error`` is ``"refund"``."""
        self._leave(error)

    def __enter__(self) -> Lease:
        """Wait in synchronous code, for a budget with ``scope="process"``."""
        if self._budget._node.tree.threads is False:
            raise RuntimeError(
                "`with` blocks its thread, and this budget is for one event loop: write `async with budget.reserve(...)`, or create the"
                " budget with scope='process'."
            )
        if self._entered:
            raise RuntimeError(_TWICE)
        self._entered = True
        try:
            self.waited, self._taken, self.limited_by = self._budget._enter_blocking(self._amounts, self._limit)
        except BaseException:
            self._entered = False
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The same as at the end of ``async with``."""
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        refunded = error is not None and self._on_error == "refund" and not self._state
        tree = self._budget._node.tree  # a finalizer may leave, and must not wait
        if refunded:
            tree.post(partial(self._settle, dict.fromkeys(self._budget.dimensions, 0)))
            if tree.threads:
                self._state = self._state or "over"
        self._end("over")

    def settle(self, **used: int) -> None:
        """Say what was really used. Less is given back, and more is charged. Dimensions you leave out stay as reserved.

        Call it inside the block. A bucket takes back as much as it has room for.

        Raises:
            RuntimeError: The block has not begun, or has ended.
        """
        if self._state == "settled":
            return
        if self._taken is None or self._state:
            raise RuntimeError(f"settle(): {_OVER if self._state else _NOT_ENTERED}")
        self._budget._check_used(used)
        self._budget._node.tree.change(partial(self._settle, used))

    def refund(self) -> None:
        """Give everything back, because the call was not made."""
        self.settle(**dict.fromkeys(self._budget.dimensions, 0))

    def _settle(self, used: dict[str, int]) -> None:
        taken, self._taken = self._taken, None  # first: interrupted in the middle, the correction must not be made twice
        if taken is not None:  # else another thread has settled it
            self._state = "settled"
            try:
                self._budget._settle_lease(self._amounts, taken, used)
            finally:
                self._budget._end_lease(taken)

    def _end(self, state: Literal["settled", "over"]) -> None:
        taken, self._taken = self._taken, None
        if taken is not None:
            self._state = state
            self._budget._end_lease(taken)

    def __del__(self) -> None:
        try:  # not suppress(), which may be gone as the interpreter ends
            if self._entered is None:
                _logger.warning("%r was never entered: write `async with budget.reserve(...) as lease:` around the call.", self)
            self._end("over")  # entered by hand and never left
        except (AttributeError, ImportError):
            return  # a signal handler interrupted its making, or the interpreter ends

    def __repr__(self) -> str:
        state = self._state or ("reserved" if self._taken is not None else "waiting" if self._entered else "not entered")
        return f"<Lease {', '.join(f'{place}={amount}' for place, amount in self.amounts.items())}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Lease cannot be copied or pickled: the copy would give the same permits back again. Share it.")


_logger = getLogger("aiorate")

_TWICE = "a lease can be entered only once. Call reserve() again for each call."
_NOT_ENTERED = "nothing is reserved yet. Enter the lease with `async with` first."
_OVER = "the block has ended, and its estimate stands. Call settle() or refund() inside it, or use reserve(on_error='refund')."
