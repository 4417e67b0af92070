"""Receipts: grants that may come back, in every limit that they took from.

A receipt is the instant of a grant. While grants may come back, schedulers record their takes, so that the credit is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.schedulers.places import Places

if TYPE_CHECKING:
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.gate import Gate
    from aiorate.waiting.waiters import Waiters

__all__ = ["Receipt", "drop", "give_back", "give_back_shared", "keep"]


class Receipt(int):
    """The instant of a grant in its own line, with the receipt of the shared limit, whose pauses are separate."""

    shared: int
    """The instant of the grant there; where that limit shares another in turn, a receipt as well."""
    waiters: Waiters | None
    """The shared line in which the request stood, and which waits to hear that its task went on; None: it did not stand there."""
    late: int
    """How many ns late the wake-up was at which the shared limit granted it, if it stood there."""

    def __new__(cls, granted_at: int, shared: int, waiters: Waiters | None = None, late: int = 0) -> Receipt:
        receipt = super().__new__(cls, granted_at)
        receipt.shared, receipt.waiters, receipt.late = shared, waiters, late
        return receipt


def keep(dispatcher: Dispatcher) -> None:
    """Record takes: one more grant may come back."""
    dispatcher.counters.returnable += 1
    dispatcher.scheduler.receipts = True
    if dispatcher.gate is not None:
        keep(dispatcher.gate.shared)


def drop(dispatcher: Dispatcher, receipt: int | None = None, waiters: Waiters | None = None) -> None:
    """One grant stands: that of a task that waited with ``waiters``, or one for which `keep` was called. The last stops recording."""
    _forget(dispatcher, waiters)
    if dispatcher.gate is None:
        return
    if isinstance(receipt, Receipt):
        waiters, receipt.waiters = receipt.waiters, None  # it may be kept once more, and does not stand there then
        drop(dispatcher.gate.shared, receipt.shared, waiters)
    else:
        drop(dispatcher.gate.shared)


def give_back(dispatcher: Dispatcher, permits: int, receipt: int, waiters: Waiters | None = None, whole: bool = True) -> None:
    """Take back permits: a ``whole`` grant, whose request is undone, or a part. The next in line moves up at once.

    ``waiters`` is as in `drop`. A grant in the line of an earlier event loop, or of before a reset, stays spent.
    """
    counters, gate = dispatcher.counters, dispatcher.gate
    now = dispatcher.timeline.now()
    # A place that was taken in an earlier loop stays taken until it is left; a permit there is of no further interest.
    current = waiters is None or waiters is dispatcher.waiters or type(dispatcher.scheduler) is Places
    try:
        if current and (counters.since is None or receipt > counters.since):
            counters.given_back += permits
            dispatcher.scheduler.give_back(permits, now, int(receipt))
    finally:  # a strategy may fail
        if whole:
            counters.cancelled += 1
            _forget(dispatcher, waiters)
        if gate is not None:
            give_back_shared(gate, permits, receipt, whole)
        dispatcher.serve_if_alive()


def give_back_shared(gate: Gate, permits: int, receipt: int, whole: bool = True) -> None:
    """As `give_back`, in the limits behind that gate only."""
    assert isinstance(receipt, Receipt)  # as all have that passed a gate
    if whole:
        permits = gate.permits_of(permits)
    if permits:
        give_back(gate.shared, permits, receipt.shared, receipt.waiters if whole else None, whole)
    elif whole:
        drop(gate.shared, receipt.shared, receipt.waiters)


def _forget(dispatcher: Dispatcher, waiters: Waiters | None) -> None:
    if waiters is not None:
        if waiters is not dispatcher.waiters:  # of a loop that is gone, with which it was forgotten
            return
        waiters.resuming -= 1
    if dispatcher.counters.returnable or (waiters is not None and waiters.granting):  # then it is counted when that is over
        dispatcher.counters.returnable -= 1
    if not dispatcher.counters.returnable:
        dispatcher.scheduler.receipts = False
