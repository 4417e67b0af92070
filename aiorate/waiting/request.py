"""One request on its way: waiting in line, and yielding to the loop. For callers for whom another coroutine costs little."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from aiorate.errors import WaitTooLong
from aiorate.rate import ns_to_seconds

if TYPE_CHECKING:
    from aiorate.waiting.clock import Handle
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.line import Line, Ticket

__all__ = ["Patience", "stand_in_line", "yield_to_loop"]


class Patience:
    """Sends a request away with `WaitTooLong` that has stood in line for ``limit`` ns. ``call`` is what its error names."""

    __slots__ = ("_call", "_limit", "_timer")

    def __init__(self, call: str, limit: int) -> None:
        self._call = call
        self._limit = limit
        self._timer: Handle | None = None

    def begin(self, dispatcher: Dispatcher, line: Line, ticket: Ticket, permits: int, reading: int) -> None:
        """Start the timer of a request that joined the line at that reading."""

        def error() -> WaitTooLong:
            more = dispatcher.estimate(permits, dispatcher.timeline.now())
            return WaitTooLong(
                f"{self._call} has waited for {ns_to_seconds(self._limit):g} s, which is max_wait, and was not granted that early."
                " Nothing was spent; try later, or allow more.",
                inf if more is None else ns_to_seconds(self._limit + more),
                ns_to_seconds(self._limit),
            )

        self._timer = dispatcher.call_at(reading + self._limit, lambda: dispatcher.send_away(line, ticket, error))

    def end(self) -> None:
        """Stop it."""
        if self._timer is not None:
            self._timer.cancel()


async def stand_in_line(
    dispatcher: Dispatcher, permits: int, at: int, now: int, since: int, asked: int | None = None, patience: Patience | None = None
) -> tuple[int, int, int]:
    """Wait for a request that was refused until ``at``. Returns the ns waited, the instant of its schedule and that of its grant.

    ``asked`` is the clock's reading from which its wait counts, if it began before. Cancelled while waiting, or granted but not yet
    resumed, the request is undone. ``patience`` is for a limit that cannot foretell when it grants.
    """
    ticket, joined = dispatcher.join(permits, at, now, since)
    line, driver = dispatcher.line, dispatcher.driver
    assert driver is not None  # it made the ticket
    if patience is not None:
        patience.begin(dispatcher, line, ticket, permits, joined)
    try:
        while not ticket.done():
            await driver.wait(ticket)
    except BaseException:
        dispatcher.leave(line, ticket, permits)
        raise
    finally:
        if patience is not None:
            patience.end()
    waited, at, now = dispatcher.resumed(line, ticket.result(), joined if asked is None else asked)
    if dispatcher.resuming and dispatcher.now() >= dispatcher.check_loop_after:  # as in acquire()
        await yield_to_loop(dispatcher, permits, now)
    return waited, at, now


async def yield_to_loop(dispatcher: Dispatcher, permits: int, granted_at: int) -> None:
    """If the loop has been kept from its other tasks, yield to it: permits that are always ready never suspend the caller.

    Cancelled meanwhile, the grant is undone.
    """
    if dispatcher.loop_is_starved():
        dispatcher.keep_receipt()
        try:
            await dispatcher.yield_once()
            while dispatcher.loop_is_starved():
                await dispatcher.yield_once()
        except BaseException:
            dispatcher.cancel(permits, granted_at)
            raise
        dispatcher.drop_receipt()
