"""The till: taking permits while nobody is in line, one request at a time or, when calls come fast, by the handful.

Knows nothing of who waits or of how a rate is computed.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from time import monotonic_ns
from types import FunctionType
from typing import TYPE_CHECKING, Protocol

from aiorate.schedulers.token_bucket import TokenBucket
from aiorate.schedulers.token_pool import TokenPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiorate.schedulers.interface import Scheduler

__all__ = ["Till", "home_of", "running_loop"]

running_loop = asyncio._get_running_loop  # None outside a loop, where get_running_loop() would raise
_FAST_CALL_NS = 2_000  # calls no further apart are worth a batch
_SAME_WAKE_UP_NS = 1_500_000  # as long as wake-ups are apart, on the average
_SAME_READING_NS = 200_000  # as much as a batch is worth at the most
_LONG_TURN_NS = 10_000_000


class Till:
    """What a newcomer meets first. Subclasses say what it means to enter, and what stands in the way."""

    __slots__ = (
        "_batch",
        "_behind",
        "_blocked",
        "_busy",
        "_catch_up",
        "_deals",
        "_dealt_at",
        "_dry",
        "_due",
        "_hand",
        "_home",
        "_loop",
        "_now",
        "_putting_back",
        "_reads_ahead",
        "_scheduler",
        "_size",
        "_straight",
        "_take",
        "_taken",
    )

    def __init__(self, scheduler: Scheduler, catch_up: int, checked: bool) -> None:
        self._scheduler = scheduler
        self._catch_up = catch_up
        self._take = _take_of(scheduler, checked)
        self._reads_ahead = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home: _Home = _NOWHERE  # says in which thread the loop runs
        self._straight = False  # whether nothing stands between a request and the scheduler, and nothing is to be done besides
        self._now: Callable[[], int] = monotonic_ns  # the shortest way to the limiter's time, while nothing is held up
        self._busy = False  # whether anything stands between a newcomer and the scheduler
        self._blocked = False  # whether it is more than the line: a debt, a pause, being closed
        self._due: int | None = None  # for when the first in line, or the debt, is scheduled
        self._behind: tuple[int, int] | None = None  # up to when the schedule was served by a late wake-up, and when that was
        self._taken: int = 0  # permits, since the beginning
        # Permits taken in one go, to be handed out one by one: how many are left of how many, and since when.
        self._hand = 0
        self._batch = 0
        self._size = 1
        self._dealt_at = 0
        self._dry = False  # whether there was no more to be had then
        self._putting_back: int | None = None  # since when the loop is to go on to its next turn; None: nothing waits for that
        self._deals = self._most_at_once()

    def _most_at_once(self) -> int:
        """How many permits may be handed out without asking for each; 0: one, which is nothing to deal with."""
        scheduler = self._scheduler
        if not isinstance(scheduler, (TokenPool, TokenBucket)):
            return 0
        batch = min(scheduler.rate.permits_in(200_000), 256)
        if scheduler.max_permits is not None:
            batch = min(batch, scheduler.max_permits // 2)
        return batch if batch > 1 else 0

    def _enter(self) -> int:
        """Begin any call: find the running loop, grant what is due by now, and say what time it is."""
        raise NotImplementedError

    def _refresh(self) -> None:
        """Derive `_busy`, `_blocked` and `_straight` from what they stand for."""
        raise NotImplementedError

    def _grab(self, permits: int, patient: bool = False) -> int | None:
        """Take permits if nobody is in line and they are due: None; otherwise the time at which they were refused.

        Who is patient may be refused what has just fallen due, so that the loop goes on to its next turn.
        """
        if self._blocked or self._home._thread_id != get_ident():
            now = self._enter()
            if self._busy:
                return now
        elif self._busy:
            return self._now()
        else:
            now = self._now()
            if self._batch:
                self._settle(now)
            if patient and self._deals and self._outstayed(now):
                self._due = now
                return now
        since = None if self._behind is None else self._made_up_from(now)
        at = self._take(self._scheduler, permits, now, since)
        if at > now:
            self._due = at
            if since is not None:
                self._behind = None
                self._refresh()
            return now
        self._taken += permits
        if self._deals and self._loop is not None:
            self._deal(now, since, self._loop)
        return None

    def _made_up_from(self, now: int) -> int | None:
        """Since when to book just after a late wake-up that left nobody in line: what kept it kept the next to ask as well.

        They are booked as if asked for at once, as they would have been, had the line been longer: a late loop costs no rate.
        """
        since, woke = self._behind or (now, now)
        if now - woke > _SAME_WAKE_UP_NS:
            self._behind = None
            self._refresh()
            return None
        earliest = now - self._catch_up
        return since if since > earliest else earliest

    def _deal(self, now: int, since: int | None, loop: asyncio.AbstractEventLoop) -> None:
        """While calls come fast, take a batch that is handed out by counting down, without reading the clock for each.

        What is left is put back when the loop goes on to its next turn.
        """
        size = self._size
        size = min(2 * size, self._deals) if now - self._dealt_at < _FAST_CALL_NS * size else 1
        self._size, self._dealt_at, self._dry = size, now, False
        if size == 1:
            return
        step = size
        while step and self._hand < size:  # all of it, or as much as there is
            if self._take(self._scheduler, step, now, since) <= now:
                self._hand += step
            else:
                self._dry = True
                step //= 2
        self._batch = self._hand
        if self._putting_back is None:
            self._putting_back = now
            loop.call_soon(self._put_back)

    def _outstayed(self, now: int) -> bool:
        """Whether callers this fast had all there was just now, or have kept the loop from its next turn for long.

        At the rate at which permits are taken one by one, each would find the next just fallen due, and nobody else would ever run.
        """
        if self._dry and now - self._dealt_at < _SAME_READING_NS:
            return True
        return self._putting_back is not None and now - self._putting_back > _LONG_TURN_NS

    def _put_back(self) -> None:
        if self._putting_back is not None and running_loop() is self._loop:
            self._putting_back = None
            if self._batch:
                self._settle(self._now())

    def _settle(self, now: int) -> None:
        """Book what was handed out as taken now, and the rest as never taken.

        Now is when it was handed out or later, so the scheduler never has more to give than it should: `bound` holds.
        """
        used = self._batch - self._hand
        # Not before it was taken: a clock that went back would have it refused, and the permits would be free.
        now = max(now, self._dealt_at)
        self._scheduler.give_back(self._batch, now)
        self._hand = self._batch = 0
        if used:
            self._take(self._scheduler, used, now, None if self._behind is None else self._made_up_from(now))
            self._taken += used


class _Home(Protocol):
    """What knows in which thread a loop runs: in the thread of a loop that runs, no other can run.

    asyncio's own loops do. Asking for the running loop instead takes a system call in CPython 3.11.
    """

    _thread_id: int | None


class _Asked:
    """For loops that keep it to themselves, as uvloop's do."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def _thread_id(self) -> int | None:
        return get_ident() if running_loop() is self._loop else None


class _Nowhere:
    _thread_id: int | None = None


_NOWHERE: _Home = _Nowhere()


def home_of(loop: asyncio.AbstractEventLoop) -> _Home:
    """Whom to ask whether that loop, which runs now, runs here."""
    home: _Home = loop if getattr(loop, "_thread_id", None) == get_ident() else _Asked(loop)  # type: ignore[assignment]
    return home


def _take_of(scheduler: Scheduler, checked: bool) -> Callable[..., int]:
    """The class's ``take`` or, unless it is to be checked what the clock says, the ``book`` that came with it.

    A function that is given the scheduler: a method bound to it, one for each limiter, would weigh a tenth of the limiter.
    """
    return _plain if "take" in getattr(scheduler, "__dict__", ()) else type(scheduler).take


def _plain(scheduler: Scheduler, permits: int, now: int, since: int | None = None) -> int:
    return scheduler.take(permits, now, since)
