"""One request: waiting in line, and yielding to the loop. For callers for whom another coroutine costs little."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from aiorate.schedulers.places import Places
from aiorate.waiting.loops import running_task

if TYPE_CHECKING:
    from aiorate.waiting.deadlines import Patience
    from aiorate.waiting.dispatcher import Dispatcher

__all__ = ["hold_place", "refuse_holder", "stand_in_line", "turn_if_starved", "yield_to_loop"]


async def stand_in_line(
    dispatcher: Dispatcher, permits: int, at: int, now: int, since: int, asked: int | None = None, patience: Patience | None = None
) -> tuple[int, int, int]:
    """Wait for a request that was refused until ``at``. Returns the ns waited, the instant of its schedule and that of its grant.

    ``asked`` is the clock's reading from which its wait counts, if it began earlier. Cancelled while waiting, or granted but not yet
    resumed, the request is undone. Without ``patience``, the wait has no limit.
    """
    ticket, joined = dispatcher.join(permits, at, now, since, patience=patience)
    line, driver = dispatcher.line, dispatcher.driver
    assert driver is not None  # it made the ticket
    try:
        while not ticket.done():
            await driver.wait(ticket)
    except BaseException:
        dispatcher.leave(line, ticket, permits)
        raise
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
            await dispatcher.let_loop_turn()
        except BaseException:
            dispatcher.cancel(permits, granted_at)
            raise
        dispatcher.drop_receipt()


async def turn_if_starved(dispatcher: Dispatcher) -> None:
    """If the loop has been kept from its other tasks, yield to it: after an error, the caller may ask again at once."""
    if dispatcher.loop_is_starved():
        await dispatcher.let_loop_turn()


def hold_place(places: Dispatcher) -> None:
    """If there is only one place, note that the running task has it. One of several may be left by another task."""
    room = places.scheduler
    if isinstance(room, Places) and room.max_permits == 1:
        task = running_task()
        room.holder = None if task is None else ref(task)


def refuse_holder(places: Dispatcher) -> None:
    """Raise RuntimeError if the running task holds the place that it would wait for."""
    room = places.scheduler
    if isinstance(room, Places) and room.holder is not None and (task := running_task()) is not None and room.holder() is task:
        raise RuntimeError(
            "async with limiter: this task is already inside, and max_concurrency is 1, so it would wait for itself. Enter only once;"
            " for another permit inside, await limiter.acquire()."
        )
