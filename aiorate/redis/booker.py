"""The one task that talks to a store, for all limiters of a client in an event loop. At most one call is in flight.

Everything that arrives meanwhile rides on the next call. The task ends when nobody has wanted anything for a second.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from itertools import islice
from logging import getLogger
from random import uniform
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from aiorate.redis.booking import bookings
from aiorate.redis.failures import Refusal, Unreachable
from aiorate.redis.script import BadAnswer
from aiorate.redis.store import CALL_SECONDS, CONNECT_SECONDS, UNKNOWN, Store, node_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate.redis.booking import Booking

__all__ = ["Booker", "booker_of"]

_logger = getLogger("aiorate")

_TICK = 0.25  # seconds between looks at a call that may hang, and at a task that may be idle
_IDLE = 1.0
_MOST = 256  # keys in one call: to write and to read that keeps the loop busy for 10 ms, and the server for 3
_RETRY, _LONGEST_RETRY_IN_GRACE, _LONGEST_RETRY = 0.01, 0.1, 0.5


class Booker:
    """Asks on behalf of those that were woken, in one call after the other."""

    __slots__ = (
        "__weakref__",
        "_answered",
        "_aside",
        "_asking",
        "_attached",
        "_calling",
        "_doubted",
        "_idle",
        "_idle_since",
        "_late",
        "_named",
        "_over",
        "_retry",
        "_source",
        "_store",
        "_task",
        "_tick",
        "_ticks",
        "_told",
        "_wanting",
        "loop",
        "provisional",
    )

    def __init__(self, source: object, loop: asyncio.AbstractEventLoop, provisional: bool) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        """In which its task runs."""
        self.provisional: bool = provisional
        """Whether it is for keys of a cluster of which nobody knows yet which node has them."""
        self._source: object = source  # kept: while this lives, no other client has its id
        self._store: Store = Store(source)
        self._wanting: dict[Booking, None] = {}
        self._asking: list[Booking] = []
        self._aside: dict[Booking, None] = {}  # those that got no answer while others did, until the next tick
        self._attached: WeakSet[Booking] = WeakSet()
        self._named: WeakValueDictionary[str, Booking] = WeakValueDictionary()  # of each name the first that is attached
        self._told: set[str] = set()  # names of which the log was told that two limiters differ
        self._task: asyncio.Task[None] | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[bool] | None = None  # what the task awaits while there is nothing to ask; True: long enough
        self._idle_since: float = 0.0
        self._calling: bool = False  # whether a call is in flight
        self._ticks: int = 0  # since it began
        self._answered: bool = False  # whether the last call was, so that there is a connection
        self._doubted: bool = False  # whether those who asked know that the call in flight takes long
        self._late: bool = False  # whether it was given up
        self._over: bool = False  # whether nobody is left, and the task is being cancelled
        self._retry: float = 0.0

    def wake(self, booking: Booking) -> None:
        """Ask the store for it in the loop's next turn, or when the call in flight is answered."""
        if booking in self._aside:
            return
        self._wanting[booking] = None
        if self._task is None:
            self._start()
        else:
            self._rouse(False)

    def attach(self, booking: Booking) -> None:
        """Stay until it is detached, or no more."""
        self._attached.add(booking)
        other = self._named.setdefault(booking.key, booking)
        if other.limits != booking.limits and booking.key not in self._told:
            self._told.add(booking.key)
            _logger.warning(
                "limiter %r: another RedisLimiter of this name has other rates or bursts. All of one name share one schedule, and each"
                " moves it by its own rate: give both the same, or two names.",
                booking.key.partition(":")[2],
            )

    def release(self, booking: Booking) -> None:
        """Forget it: another asks for it from now on. After the last, the task ends."""
        self._wanting.pop(booking, None)
        self._aside.pop(booking, None)
        self._attached.discard(booking)
        if not self._attached and not self._wanting:
            self._over = True
            self._rouse(True)

    async def detach(self, booking: Booking) -> None:
        """Forget it. After the last, no task and no connection stays."""
        self.release(booking)
        if not self._attached and not self._wanting and self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def _longest_call(self) -> float:
        """Seconds after which a call is given up."""
        return CALL_SECONDS if self._answered else CONNECT_SECONDS

    def _rouse(self, enough: bool) -> None:
        """Have the task go on that has nothing to ask; ``enough``: to its end, unless somebody comes meanwhile."""
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(enough)

    def _start(self) -> None:
        self._over = False
        # Not by the loop's task factory: an eager task would ask inside the caller, before the caller's request is in line.
        self._task = asyncio.Task(self._run(), loop=self.loop, name="aiorate-redis")
        self._idle_since = self.loop.time()
        self._tick = self.loop.call_later(_TICK, self._on_tick)

    async def _run(self) -> None:
        try:
            while not self._over:
                if self._wanting:
                    await self._ask()
                else:
                    self._idle_since = self.loop.time()
                    self._idle = idle = self.loop.create_future()
                    if await idle and not (self._wanting or self._aside):  # somebody may have come in the same turn of the loop
                        break
        except GeneratorExit:  # its loop was closed long ago; those whom it asked for wait in another by now
            raise
        except BaseException as error:
            if not self._over:
                self._fail(error)
            await self._end()
            if not isinstance(error, (Exception, asyncio.CancelledError)):
                raise
        else:
            await self._end()

    async def _end(self) -> None:
        self._answered = False
        if self._tick is not None:
            self._tick.cancel()
        self._task = self._tick = self._idle = None
        if self._wanting:  # who came while it was being cancelled
            self._start()
        await self._store.close()

    async def _ask(self) -> None:
        """One call for those who want something, in order."""
        asking: list[Booking] = []
        questions: list[tuple[str, list[str]]] = []
        for booking in list(islice(self._wanting, _MOST)):
            del self._wanting[booking]
            try:
                question = booking.question()
                words = None if question is None else question.words(booking.limits)
            except Exception as error:  # a clock that fails, say: the others are none the worse
                booking.failed(error)
                continue
            if words is not None:
                asking.append(booking)
                questions.append((booking.key, words))
        if not asking:
            return
        self._asking = asking
        self._ticks, self._calling, self._doubted = 0, True, False
        try:
            replies = await self._store.ask(questions)
        except asyncio.CancelledError:
            if not self._late or self._over:
                raise
            task = self._task
            if task is not None:
                task.uncancel()
            await self._give_up(asking, _no_answer(self._longest_call))
            return
        except Unreachable as error:
            await self._give_up(asking, error)
            return
        except Refusal as error:
            replies = [error] * len(asking)
        finally:
            self._calling = self._late = False
        self._answered = True
        await self._hand_out(asking, replies)

    async def _hand_out(self, asking: list[Booking], replies: Sequence[object]) -> None:
        """To each its own: what one of them makes of it is no concern of the others."""
        bad: dict[Booking, Unreachable] = {}
        for booking, reply in zip(asking, replies, strict=True):
            try:
                if isinstance(reply, Refusal):
                    booking.refused(reply.__cause__ or reply)
                elif isinstance(reply, Unreachable):  # a node of a cluster is down: the others are none the worse
                    self._put_aside(booking, reply.__cause__ or reply)
                else:
                    booking.answered(reply)
            except BadAnswer as error:
                bad[booking] = Unreachable(str(error))
            except Exception as error:
                booking.failed(error)
        self._asking = []
        if len(bad) == len(asking):
            await self._give_up(asking, bad[asking[0]])
            return
        self._retry = 0.0
        for booking, cause in bad.items():
            self._put_aside(booking, cause)

    def _put_aside(self, booking: Booking, cause: BaseException) -> None:
        """It got no answer, and others did: ask again for it at the next tick."""
        self._aside[booking] = None
        booking.unreachable(cause)

    async def _give_up(self, asked: list[Booking], error: Unreachable) -> None:
        """Nobody got an answer: ask again a little later, for all of them."""
        self._calling = self._late = self._answered = False
        cause = error.__cause__ or error
        for booking in asked:
            booking.unreachable(cause)
            self._wanting[booking] = None
        self._asking = []
        longest = _LONGEST_RETRY_IN_GRACE if any(booking.in_grace for booking in asked) else _LONGEST_RETRY
        self._retry = min(max(2 * self._retry, _RETRY), longest)
        await self._store.close()
        await asyncio.sleep(self._retry * uniform(0.5, 1.0))

    def _fail(self, error: BaseException) -> None:
        """The task ends before its time."""
        left = [*self._asking, *self._wanting, *self._aside]
        self._asking = []
        self._wanting.clear()
        self._aside.clear()
        if isinstance(error, asyncio.CancelledError):
            error = RuntimeError("acquire(): the task that asks the store was cancelled")
        for booking in left:
            booking.failed(error)

    def _on_tick(self) -> None:
        now = self.loop.time()
        task = self._task
        if task is None:
            return
        self._tick = self.loop.call_later(_TICK, self._on_tick)
        aside, self._aside = self._aside, {}
        for booking in aside:
            self.wake(booking)
        # Counted, and not read from the clock: an answer to a loop that stood still lies ready, and is no outage.
        self._ticks += 1
        waited = (self._ticks - 1) * _TICK
        if self._calling and waited >= self._longest_call:
            self._late = True
            task.cancel()
        elif self._calling and waited >= CALL_SECONDS and not self._doubted:
            self._doubted = True  # it may still connect; but who waits for the end of the grace need not wait for that
            for booking in self._asking:
                booking.late(_no_answer(CALL_SECONDS))
        elif self._idle is not None and now - self._idle_since > _IDLE:
            self._rouse(True)


def _no_answer(seconds: float) -> Unreachable:
    return Unreachable(f"no answer within {seconds:g} s")


_bookers: WeakValueDictionary[tuple[object, int, str], Booker] = WeakValueDictionary()


def booker_of(source: object, loop: asyncio.AbstractEventLoop, key: str) -> Booker:
    """The one for that client, or that URL, in that loop; for a cluster, of the node that has the key.

    One for each node, because a node that is down keeps its keys waiting, and must not keep those of the others.
    """
    node = node_of(source, key)
    place = (source if isinstance(source, str) else id(source), id(loop), node)  # source and loop live as long as it does
    booker = _bookers.get(place)
    if booker is None:
        _bookers[place] = booker = Booker(source, loop, node == UNKNOWN)
    return booker


def _forget() -> None:
    _bookers.clear()
    for booking in list(bookings):
        booking.forked()


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    os.register_at_fork(after_in_child=_forget)
