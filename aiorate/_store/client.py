"""The one task that asks a store, for all limiters of a client in an event loop. At most one call is in flight.

All that arrives meanwhile goes with the next call. The task ends when nothing was wanted for a second.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from random import uniform
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet, WeakValueDictionary

from aiorate._loops.table import running_loop
from aiorate._store.address import identity, is_cluster
from aiorate._store.failures import Unreachable
from aiorate._store.store import CONNECT_SECONDS, store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from aiorate._store.store import Asked, Store

__all__ = ["Session", "StoreClient", "client_of"]

_CALL_SECONDS = 0.5  # for one answer
_TICK = 0.25  # seconds between looks at a call that may hang, and at a task that may be idle
_IDLE_TICKS = 4
_MOST = 256  # keys in one call: writing and reading that keeps the loop busy for 10 ms, and the server for 3
_UNKNOWN = "?"  # a node of a cluster
_FORGOTTEN = 60.0  # longer apart, two calls without an answer are two outages
_RETRY, _LONGEST_RETRY_IN_GRACE, _LONGEST_RETRY = 0.01, 0.1, 0.5


class Session(Protocol):
    """A limit's talk with the store. But for `run`, all is called through that, in the client's loop, in any order."""

    client: StoreClient | None
    """The client that asks for it; None: none. It is called only by that one."""

    @property
    def run(self) -> Callable[..., Any]:
        """Calls a function in a decision of the limit."""
        ...

    def question(self) -> Asked | None:
        """What to ask now; None: nothing."""
        ...

    def answered(self, reply: object) -> None:
        """The reply, or a `Refusal`, to the question. Raises `Unreachable` if it makes no sense."""
        ...

    def unreachable(self, cause: BaseException, silent: float | None) -> bool:
        """The store did not answer, and had not for ``silent`` seconds before the question; None: the answer may still come.

        Returns whether the limit's policy for that does not apply yet. Then the store is asked more often.
        """
        ...

    def failed(self, error: BaseException) -> None:
        """The client's task ended with that error, or another call of this session raised it."""
        ...


class StoreClient:
    """Asks on behalf of the sessions that woke it, in one call after the other."""

    def __init__(self, source: object, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        """The event loop of its task."""
        self.provisional: bool = False
        """Whether it is for the keys of a cluster whose node is not known yet."""
        self._source: object = source  # kept: while this lives, no other client has its id
        self._store: Store = store_of(source)
        self._attached: WeakSet[Session] = WeakSet()
        self._wanting: dict[Session, None] = {}
        self._aside: dict[Session, None] = {}  # those that got no answer while others did, until the next tick
        self._asked: list[Session] = []  # those of the call in flight
        self._task: asyncio.Task[None] | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._ticks: int = 0  # since the call in flight began, or the store was heard last, or since there is nothing to ask
        self._heard: int = 0  # the answers of the store until the last tick
        self._doubted: bool = False  # whether the sessions know that the call takes long
        self._given_up: bool = False  # whether the call was cancelled, as it takes too long
        self._idle: asyncio.Future[bool] | None = None  # what the task awaits while there is nothing to ask; True: it may end
        self.connected: bool = False
        """Whether the store answered the last call."""
        self._over: bool = False  # whether no session is left, and the task is being cancelled
        self._ending: bool = False  # whether the connection is being closed
        self._retry: float = 0.0
        self._silent: tuple[float, float] | None = None  # when the first and the last call began, of those without an answer since the last

    @property
    def here(self) -> bool:
        """Whether it asks for callers of this thread."""
        return self.loop is running_loop()

    def wake(self, session: Session) -> None:
        """Ask the store for it in the loop's next iteration, or when the call in flight is answered."""
        if session in self._wanting or session in self._aside:
            return
        self._attached.add(session)
        self._wanting[session] = None
        if self._task is None:
            self._start()
        else:
            self._rouse(False)

    def release(self, session: Session) -> None:
        """Forget it: another client asks for it from now on. After the last, the task ends."""
        self._wanting.pop(session, None)
        self._aside.pop(session, None)
        self._attached.discard(session)
        if not self._attached:
            self._over = True
            self._rouse(True)

    async def detach(self, session: Session) -> None:
        """Forget it. After the last, neither task nor connection is left."""
        StoreClient.release(self, session)
        if not self._attached and self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def busy(self) -> bool:
        """Whether its task runs, or is about to end."""
        return self._task is not None or self._ending

    def _rouse(self, enough: bool) -> None:
        """Have the idle task go on; ``enough``: to its end, unless something is wanted meanwhile."""
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(enough)

    def _start(self) -> None:
        self._over = False
        # Not by the loop's task factory: an eager task would ask inside the caller, before the caller's request is in line.
        self._task = asyncio.Task(self._run(), loop=self.loop, name="aiorate-redis")
        self._tick = self.loop.call_later(_TICK, self._on_tick)

    async def _run(self) -> None:
        try:
            while not self._over:
                if self._wanting:
                    await self._ask()
                else:
                    self._ticks = 0
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
        self.connected = False
        if self._tick is not None:
            self._tick.cancel()
        self._task = self._tick = self._idle = None
        if self._wanting:  # woken while it was being cancelled
            self._start()
        self._ending = True
        try:
            await self._store.close()
        finally:
            self._ending = False

    async def _ask(self) -> None:
        """Make one call for the sessions that want something, in order."""
        self._asked = asked = []
        questions: list[Asked] = []
        for session in list(islice(self._wanting, _MOST)):
            del self._wanting[session]
            if session.client is not self:  # it asks in another event loop by now
                continue
            try:
                question = session.run(session.question)
            except Exception as error:  # of a clock, say: the other sessions go on
                session.run(session.failed, error)
                continue
            if question is not None:
                asked.append(session)
                questions.append(question)
        if not asked:
            return
        self._ticks, self._heard, self._doubted, self._given_up = 0, self._store.heard, False, False
        began = self.loop.time()
        try:
            replies = await self._store.ask(questions)
        except asyncio.CancelledError:
            if not self._given_up or self._over or self._task is None:
                raise
            self._task.uncancel()
            replies = [_no_answer(self._longest_call)] * len(asked)
        await self._hand_out(asked, replies, began)

    async def _hand_out(self, asked: list[Session], replies: Sequence[object], began: float) -> None:
        """Pass each reply to its session. An error of one does not concern the others."""
        lost: dict[Session, Unreachable] = {}
        for session, reply in zip(asked, replies, strict=True):
            if isinstance(reply, Unreachable):
                lost[session] = reply
            elif session.client is self:
                try:
                    session.run(session.answered, reply)
                except Unreachable as error:
                    lost[session] = error
                except Exception as error:
                    session.run(session.failed, error)
        self._asked = []
        if any(not failure.of_key for failure in lost.values()):
            await self._store.renew()
        if len(lost) == len(asked) and not any(failure.of_key for failure in lost.values()):
            await self._give_up(lost, began)
            return
        self.connected, self._silent, self._retry = True, None, 0.0
        for session, failure in lost.items():  # one node of a cluster is down, say: ask again at the next tick
            if session.client is self:
                self._aside[session] = None
                session.run(session.unreachable, failure.__cause__ or failure, 0.0)

    async def _give_up(self, lost: dict[Session, Unreachable], began: float) -> None:
        """No session got an answer to the call that ``began`` then: ask again a little later, for all of them."""
        first, last = self._silent or (began, began)
        if began - last > _FORGOTTEN:
            first = began
        self._silent, self.connected = (first, began), False
        longest = _LONGEST_RETRY
        for session, failure in lost.items():
            if session.client is self:
                self._wanting[session] = None
                if session.run(session.unreachable, failure.__cause__ or failure, began - first):
                    longest = _LONGEST_RETRY_IN_GRACE
        self._retry = min(max(2 * self._retry, _RETRY), longest)
        await asyncio.sleep(self._retry * uniform(0.5, 1.0))

    def _fail(self, error: BaseException) -> None:
        """The task ends with an error."""
        left = [*self._asked, *self._wanting, *self._aside]
        for each in (self._asked, self._wanting, self._aside):
            each.clear()
        if isinstance(error, asyncio.CancelledError):
            error = RuntimeError("acquire(): the task that asks the store was cancelled")
        for session in left:
            if session.client is self:
                session.run(session.failed, error)

    @property
    def _longest_call(self) -> float:
        """Seconds after which a call is given up."""
        return _CALL_SECONDS if self.connected else CONNECT_SECONDS

    def _on_tick(self) -> None:
        self._tick = self.loop.call_later(_TICK, self._on_tick)
        aside, self._aside = self._aside, {}
        for session in aside:
            StoreClient.wake(self, session)
        self._ticks += 1
        if not self._asked or self._task is None:
            if self._ticks > _IDLE_TICKS:
                self._rouse(True)
            return
        heard = self._store.heard
        if heard > self._heard:  # it is far away, and alive
            self._heard, self._ticks = heard, 1
        # Counted and not read from the clock: an answer to a loop that stood still is there already, and the store was not down.
        waited = (self._ticks - 1) * _TICK
        if waited >= self._longest_call:
            self._given_up = True
            self._task.cancel()
        elif waited >= _CALL_SECONDS and not self._doubted and not self._store.settling:
            self._doubted = True  # it may still connect, but requests wait only until the end of the grace
            for session in self._asked:
                if session.client is self:
                    session.run(session.unreachable, _no_answer(_CALL_SECONDS), None)


def _no_answer(seconds: float) -> Unreachable:
    return Unreachable(f"no answer within {seconds:g} s")


_clients: WeakValueDictionary[tuple[object, int, str], StoreClient] = WeakValueDictionary()


def client_of(source: Any, key: str) -> StoreClient:
    """The one for that client, or that URL, in the loop that runs; for a cluster, of the node that has the key, if its client knows.

    One for each node, because a node that is down keeps its keys waiting, and must not keep those of the others.
    """
    native = running_loop()
    if not isinstance(native, asyncio.AbstractEventLoop):
        raise RuntimeError(
            "RedisLimiter works on asyncio and uvloop, because its client does; this is another event loop. With scope='process' it works"
            " here too."
        )
    node = ""
    if is_cluster(source):
        try:
            node = source.get_node_from_key(key).name
        except Exception:  # it has yet to ask, or the key is on no node at present
            node = _UNKNOWN
    place = (identity(source), id(native), node)  # source and loop live as long as it does
    client = _clients.get(place)
    if client is None:
        _clients[place] = client = StoreClient(source, native)
        client.provisional = node == _UNKNOWN
    return client
