"""The one task that asks a store, for all limiters of a client in an event loop. At most one call is in flight.

All that arrives meanwhile goes with the next call. The task ends when nothing was wanted for a second.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from itertools import islice
from logging import getLogger
from random import uniform
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet, WeakValueDictionary

from aiorate._store.failures import BadAnswer, Refusal, Unreachable
from aiorate._store.store import CALL_SECONDS, CONNECT_SECONDS, UNKNOWN, Store, node_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._store.store import Asked

__all__ = ["Session", "StoreClient", "client_of", "sessions"]

_logger = getLogger("aiorate")

_TICK = 0.25  # seconds between looks at a call that may hang, and at a task that may be idle
_IDLE = 1.0
_MOST = 256  # keys in one call: writing and reading that keeps the loop busy for 10 ms, and the server for 3
_FORGOTTEN = 60.0  # longer apart, two calls without an answer are two outages
_RETRY, _LONGEST_RETRY_IN_GRACE, _LONGEST_RETRY = 0.01, 0.1, 0.5


class Session(Protocol):
    """A limit's talk with the store. The client calls it in its event loop, in any order, whenever something happens."""

    @property
    def client(self) -> StoreClient | None:
        """The client that asks for it; None: none. It is called only by that one."""
        ...

    @property
    def key(self) -> str:
        """The key in the store."""
        ...

    @property
    def limits(self) -> object:
        """What all sessions of one key must have in common."""
        ...

    @property
    def in_grace(self) -> bool:
        """Whether the store does not answer, and the limit's policy for that does not apply yet. Then it is asked more often."""
        ...

    def question(self) -> Asked | None:
        """What to ask now; None: nothing."""
        ...

    def answered(self, reply: object) -> None:
        """The script's reply to the question. Raises `BadAnswer` if it makes no sense."""
        ...

    def unreachable(self, cause: BaseException, silent: float) -> None:
        """The store did not answer, and had not for ``silent`` seconds before the question. It will be asked again."""
        ...

    def late(self, cause: BaseException) -> None:
        """The answer takes long enough to count as an outage. It may still come."""
        ...

    def alive(self) -> None:
        """It is far away, and there: the answer is on its way."""
        ...

    def refused(self, cause: BaseException) -> None:
        """The store will not answer until somebody mends the reason."""
        ...

    def failed(self, error: BaseException) -> None:
        """The client's task ended with that error, or another call of this session raised it."""
        ...

    def forked(self) -> None:
        """This is a child process now: the connection, and all that was assigned, is the parent's."""
        ...


class _Call:
    """A call in flight, on behalf of these sessions."""

    __slots__ = ("doubted", "given_up", "heard", "sessions", "ticks")

    def __init__(self, sessions: list[Session], heard: int) -> None:
        self.sessions: list[Session] = sessions
        self.heard: int = heard  # the answers of the store until the last tick
        self.ticks: int = 0  # since it began, or since the last answer
        self.doubted: bool = False  # whether the sessions know that it takes long
        self.given_up: bool = False


class StoreClient:
    """Asks on behalf of the sessions that woke it, in one call after the other."""

    def __init__(self, source: object, loop: asyncio.AbstractEventLoop, provisional: bool) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        """The event loop of its task."""
        self.provisional: bool = provisional
        """Whether it is for keys of a cluster whose node is not known yet."""
        self._source: object = source  # kept: while this lives, no other client has its id
        self._store: Store = Store(source)
        self._wanting: dict[Session, None] = {}
        self._aside: dict[Session, None] = {}  # those that got no answer while others did, until the next tick
        self._call: _Call | None = None
        self._attached: WeakSet[Session] = WeakSet()
        self._named: WeakValueDictionary[str, Session] = WeakValueDictionary()  # of each name the first that is attached
        self._told: set[str] = set()  # names of which the log was told that two limiters differ
        self._task: asyncio.Task[None] | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[bool] | None = None  # what the task awaits while there is nothing to ask; True: it may end
        self._idle_since: float = 0.0
        self._answered: bool = False  # whether the last call was, so that there is a connection
        self._over: bool = False  # whether no session is left, and the task is being cancelled
        self._ending: bool = False  # whether the connection is being closed
        self._retry: float = 0.0
        self._silent: tuple[float, float] | None = None  # when the first and the last call began, of those without an answer since the last

    def wake(self, session: Session) -> None:
        """Ask the store for it in the loop's next iteration, or when the call in flight is answered."""
        if session in self._aside:
            return
        self._wanting[session] = None
        if self._task is None:
            self._start()
        else:
            self._rouse(False)

    def attach(self, session: Session) -> None:
        """Stay until it is detached or collected."""
        self._attached.add(session)
        other = self._named.setdefault(session.key, session)
        if other.limits != session.limits and session.key not in self._told:
            self._told.add(session.key)
            _logger.warning(
                "limiter %r: another RedisLimiter of this name has other rates or bursts. All of one name share one schedule, and each"
                " moves it by its own rate: give both the same, or two names.",
                session.key.partition(":")[2],
            )

    def release(self, session: Session) -> None:
        """Forget it: another client asks for it from now on. After the last, the task ends."""
        self._wanting.pop(session, None)
        self._aside.pop(session, None)
        self._attached.discard(session)
        if not self._attached and not self._wanting:
            self._over = True
            self._rouse(True)

    async def detach(self, session: Session) -> None:
        """Forget it. After the last, neither task nor connection is left."""
        self.release(session)
        if not self._attached and not self._wanting and self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def busy(self) -> bool:
        """Whether its task runs, or is about to end."""
        return self._task is not None or self._ending

    @property
    def connected(self) -> bool:
        """Whether the store answered the last call."""
        return self._answered

    @property
    def used(self) -> bool:
        """Whether it has sessions."""
        return bool(self._attached)

    @property
    def _longest_call(self) -> float:
        """Seconds after which a call is given up."""
        return CALL_SECONDS if self._answered else CONNECT_SECONDS

    def _rouse(self, enough: bool) -> None:
        """Have the idle task go on; ``enough``: to its end, unless something is wanted meanwhile."""
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
                    if await idle and not (self._wanting or self._aside):  # a session may have woken it in the same iteration
                        break
        except GeneratorExit:  # its loop was closed long ago, and its sessions ask in another by now
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
        self._task = self._tick = self._idle = self._call = None
        if self._wanting:  # woken while it was being cancelled
            self._start()
        self._ending = True
        try:
            await self._store.close()
        finally:
            self._ending = False

    async def _ask(self) -> None:
        """Make one call for the sessions that want something, in order."""
        asking: list[Session] = []
        questions: list[Asked] = []
        for session in list(islice(self._wanting, _MOST)):
            del self._wanting[session]
            if session.client is not self:  # it asks in another event loop by now
                continue
            try:
                question = session.question()
            except Exception as error:  # of a clock, say: the other sessions go on
                session.failed(error)
                continue
            if question is not None:
                asking.append(session)
                questions.append(question)
        if not asking:
            return
        self._call = call = _Call(asking, self._store.heard)
        began = self.loop.time()
        try:
            replies = await self._store.ask(questions)
        except asyncio.CancelledError:
            if not call.given_up or self._over:
                raise
            task = self._task
            if task is not None:
                task.uncancel()
            await self._give_up(asking, _no_answer(self._longest_call), began)
        except Unreachable as error:
            await self._give_up(asking, error, began)
        except Refusal as error:
            await self._hand_out(asking, [error] * len(asking), began)
        else:
            await self._hand_out(asking, replies, began)

    async def _hand_out(self, asked: list[Session], replies: Sequence[object], began: float) -> None:
        """Pass each reply to its session. An error of one does not concern the others."""
        self._answered = True
        bad: dict[Session, Unreachable] = {}
        for session, reply in zip(asked, replies, strict=True):
            if session.client is not self:
                continue
            try:
                if isinstance(reply, Refusal):
                    session.refused(reply.__cause__ or reply)
                elif isinstance(reply, Unreachable):  # one node of a cluster is down
                    self._put_aside(session, reply)
                else:
                    session.answered(reply)
            except BadAnswer as error:
                bad[session] = Unreachable(str(error))
            except Exception as error:
                session.failed(error)
        if len(bad) == len(asked):
            await self._give_up(asked, bad[asked[0]], began)
            return
        self._silent = None
        self._call = None
        self._retry = 0.0
        for session, cause in bad.items():
            self._put_aside(session, cause)

    def _put_aside(self, session: Session, error: Unreachable) -> None:
        """Ask again for a session that got no answer, while others did, at the next tick."""
        self._aside[session] = None
        session.unreachable(error.__cause__ or error, 0.0)

    async def _give_up(self, asked: list[Session], error: Unreachable, began: float) -> None:
        """No session got an answer to the call that ``began`` then: ask again a little later, for all of them."""
        first, last = self._silent or (began, began)
        if began - last > _FORGOTTEN:
            first = began
        self._silent = first, began
        self._call = None
        self._answered = False
        asked = [session for session in asked if session.client is self]
        for session in asked:
            session.unreachable(error.__cause__ or error, began - first)
            self._wanting[session] = None
        longest = _LONGEST_RETRY_IN_GRACE if any(session.in_grace for session in asked) else _LONGEST_RETRY
        self._retry = min(max(2 * self._retry, _RETRY), longest)
        await self._store.close()
        await asyncio.sleep(self._retry * uniform(0.5, 1.0))

    def _fail(self, error: BaseException) -> None:
        """The task ends with an error."""
        left = [*(self._call.sessions if self._call else ()), *self._wanting, *self._aside]
        self._call = None
        self._wanting.clear()
        self._aside.clear()
        if isinstance(error, asyncio.CancelledError):
            error = RuntimeError("acquire(): the task that asks the store was cancelled")
        for session in left:
            if session.client is self:
                session.failed(error)

    def _on_tick(self) -> None:
        task, call = self._task, self._call
        if task is None:
            return
        self._tick = self.loop.call_later(_TICK, self._on_tick)
        aside, self._aside = self._aside, {}
        for session in aside:
            self.wake(session)
        if call is None:
            if self._idle is not None and self.loop.time() - self._idle_since > _IDLE:
                self._rouse(True)
            return
        heard = self._store.heard
        if heard > call.heard:  # it is far away, and alive
            call.heard, call.ticks = heard, 0
            if call.doubted:
                call.doubted = False
                for session in call.sessions:
                    if session.client is self:
                        session.alive()
        # Counted and not read from the clock: an answer to a loop that stood still is there already, and the store was not down.
        call.ticks += 1
        waited = (call.ticks - 1) * _TICK
        if waited >= self._longest_call:
            call.given_up = True
            task.cancel()
        elif waited >= CALL_SECONDS and not call.doubted and not self._store.settling:
            call.doubted = True  # it may still connect, but requests wait only until the end of the grace
            for session in call.sessions:
                if session.client is self:
                    session.late(_no_answer(CALL_SECONDS))


def _no_answer(seconds: float) -> Unreachable:
    return Unreachable(f"no answer within {seconds:g} s")


_clients: WeakValueDictionary[tuple[object, int, str], StoreClient] = WeakValueDictionary()


def client_of(source: object, loop: asyncio.AbstractEventLoop, key: str) -> StoreClient:
    """The one for that client, or that URL, in that loop; for a cluster, of the node that has the key.

    One for each node, because a node that is down keeps its keys waiting, and must not keep those of the others.
    """
    node = node_of(source, key)
    place = (source if isinstance(source, str) else id(source), id(loop), node)  # source and loop live as long as it does
    client = _clients.get(place)
    if client is None:
        _clients[place] = client = StoreClient(source, loop, node == UNKNOWN)
    return client


sessions: WeakSet[Session] = WeakSet()
"""All in this process."""


def _on_fork() -> None:
    """In a child process: ask over other connections, and for other slots."""
    _clients.clear()
    for session in list(sessions):
        session.forked()


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    os.register_at_fork(after_in_child=_on_fork)
