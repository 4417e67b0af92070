"""The one task that asks a store, for all limiters of a client in an event loop. At most one call is in flight.

All that arrives meanwhile goes with the next call. The task ends when nothing was wanted for a second. With ``scope="process"``, the event
loop is that of a thread, which lives as long as the task. A child process after a fork has its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import call
from random import uniform
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet, WeakValueDictionary

from aiorate._loops.table import loop_here, running_loop
from aiorate._store.failures import Unreachable
from aiorate._store.store import Store, is_cluster
from aiorate._tree.deciding import decisions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from aiorate._store.store import Asked


_TICK = 0.25  # seconds between looks at a call that may hang, and at a task that may be idle
_PATIENCE = 2  # ticks without an answer until a call is given up
_IDLE_TICKS = 4
_MOST = 256  # keys in one call: writing and reading that keeps the loop busy for 10 ms, and the server for 3
_RETRY, _LONGEST_RETRY = 0.01, 0.25


class Session(Protocol):
    """A limit's talk with the store. Called in decisions, in the client's loop, in any order."""

    client: StoreClient | None
    """The one that asks for it; None: none. It is called only by that one."""

    def question(self) -> Asked | None: ...
    def answered(self, reply: object) -> None: ...
    def unreachable(self, failure: Unreachable, silent: float) -> None: ...
    def failed(self, error: BaseException) -> None: ...


class StoreClient:
    """Asks on behalf of the sessions that woke it, in one call after the other: in that loop or, if it is None, in one of its own."""

    def __init__(self, source: object, loop: asyncio.AbstractEventLoop | None) -> None:
        self._source, self._loop = source, loop  # kept: while this lives, no other client has the id of the source
        self._store: Store = Store(source)
        self._decide: Callable[..., Any] = decisions.run if loop is None else call
        self._process: int = os.getpid()
        self._attached: WeakSet[Session] = WeakSet()
        self._wanting: dict[Session, None] = {}
        self._asked: list[Session] = []  # those of the call in flight
        self._runs: bool = False  # whether the task does. Changed in decisions
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._idle: asyncio.Future[None] | None = None  # what the task awaits while there is nothing to ask
        self._limit: asyncio.Timeout | None = None  # of the call in flight
        self._ticks: int = 0  # since the call in flight began, or the store was heard last, or since there is nothing to ask
        self._heard: int = 0  # the answers of the store until the last tick
        self._leaving: dict[Session, list[Callable[[], object]]] = {}  # whom to tell once these have nothing to tell, ...
        self._left: list[Callable[[], object]] = []  # ... or, after the last of all, once the task is over
        self._retry: float = 0.0
        self._silent: float | None = None  # when the first call began of those without an answer since the last

    @property
    def here(self) -> bool:
        """Whether it asks for callers of this thread."""
        return self._process == os.getpid() if self._loop is None else self._loop is running_loop()

    # In decisions.

    def wake(self, session: Session) -> None:
        """Ask the store for it in the loop's next iteration, or when the call in flight is answered."""
        self._attached.add(session)
        self._wanting[session] = None
        idle = self._idle
        if not self._runs:
            self._start()
        elif idle is not None and self._loop is None:
            idle.get_loop().call_soon_threadsafe(self._rouse)
        elif idle is not None:
            self._rouse()

    async def detach(self, session: Session) -> None:
        """Forget it, once it has nothing to tell, or cannot. After the last, neither task nor connection is left, nor a thread."""
        loop = loop_here()
        assert loop is not None  # a task runs
        signal = loop.signal()

        def tell() -> None:
            with suppress(RuntimeError, OSError):  # its loop is closed
                loop.post(partial(loop.wake, signal))

        def leave() -> None:
            self._leaving.setdefault(session, []).append(tell)
            self.wake(session)

        self._decide(leave)
        await loop.wait(signal)
        thread = self._thread  # first: another may start meanwhile
        if thread is not None and not self._runs:
            thread.join()

    def _start(self) -> None:
        if self._loop is not None:
            # Not by the loop's task factory: an eager task would ask inside the caller, before the caller's request is in line.
            self._task = asyncio.Task(self._run(), loop=self._loop, name="aiorate-redis")
        else:
            self._thread = threading.Thread(target=self._serve, name="aiorate", daemon=True)
            self._thread.start()
        self._runs = True

    def _end(self) -> None:
        """The task is over."""
        self._runs, left, self._left = False, self._left, []
        if self._wanting:  # woken meanwhile
            self._start()
        for tell in left:
            tell()

    def _let_go(self, sessions: Iterable[Session]) -> None:
        """Of these, those that leave have left."""
        for session in sessions:
            if session in self._leaving:
                self._left += self._leaving.pop(session)
                self._wanting.pop(session, None)
                self._attached.discard(session)
        if self._attached:
            while self._left:
                self._left.pop()()

    # In the loop.

    def _serve(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._run())
        finally:
            loop.close()  # and waits for no thread that looks up an address, as asyncio.run() does

    async def _run(self) -> None:
        error: BaseException | None = None
        loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._tick = loop.call_later(_TICK, self._on_tick, loop)
        try:
            while self._wanting or await self._more(loop):
                await self._ask(loop)
        except GeneratorExit:  # its loop was closed long ago, and its sessions ask in another by now
            raise
        except BaseException as raised:
            error = raised
        self._tick.cancel()
        if error is not None:
            self._fail(error)
        try:
            await self._store.close()
        finally:
            self._decide(self._end)
        if not isinstance(error, (Exception, asyncio.CancelledError, type(None))):
            raise error

    async def _more(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Wait until something is wanted. False: nothing was for a while, or nobody is left."""
        self._ticks, self._idle = 0, loop.create_future()
        if self._attached and not self._wanting:  # else nobody is left, or another thread woke it before it was idle
            await self._idle
        self._idle = None
        return bool(self._wanting)  # also if a session woke it in the same iteration

    def _rouse(self) -> None:
        """Have the idle task go on, or end if nothing is wanted."""
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _questions(self) -> list[Asked]:
        """Those of the sessions that want something, in order."""
        self._asked, questions = [], []
        for session in islice([*self._wanting], _MOST):
            del self._wanting[session]
            question: Asked | None = None
            if session.client is self:  # else it asks in another event loop by now
                try:
                    question = session.question()
                except Exception as error:  # of a clock, say: the other sessions go on
                    session.failed(error)
            if question is None:
                self._let_go([session])
            else:
                self._asked.append(session)
                questions.append(question)
        return questions

    async def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make one call. Where there is no answer, ask again a little later."""
        questions: list[Asked] = self._decide(self._questions)
        if not questions:
            return
        self._ticks, self._heard, began = 0, self._store.heard, loop.time()
        try:
            async with asyncio.timeout(None) as self._limit:
                replies = await self._store.ask(questions)
        except TimeoutError:
            replies = [Unreachable(f"no answer within {_PATIENCE * _TICK} s")] * len(questions)
        if not self._decide(self._hear, replies, began):
            self._silent, self._retry = None, 0.0
            return
        await self._store.close()
        self._retry = min(max(2 * self._retry, _RETRY), _LONGEST_RETRY)
        if self._wanting:
            await asyncio.sleep(self._retry * uniform(0.5, 1.0))

    def _hear(self, replies: list[object], began: float) -> bool:
        """The call that began then is over. Returns whether some of its questions have no answer."""
        lost: dict[Session, None] = {}
        asked, self._asked = self._asked, []
        for session, reply in zip(asked, replies, strict=True):
            if session.client is not self:
                continue
            try:
                if isinstance(reply, Unreachable):
                    raise reply
                session.answered(reply)
            except Unreachable as failure:
                lost[session] = None
                self._silent = began if self._silent is None else self._silent
                session.unreachable(failure, began - self._silent)
            except Exception as error:  # which does not concern the others
                session.failed(error)
        self._let_go([session for session in asked if session not in self._wanting or session in lost])
        self._wanting.update({session: None for session in lost if session in self._attached})
        return bool(lost)

    def _fail(self, error: BaseException) -> None:
        """The task ends with an error."""
        left = [session for session in (*self._asked, *self._wanting) if session.client is self]
        self._asked, self._wanting = [], {}
        if isinstance(error, asyncio.CancelledError):
            error = RuntimeError("acquire(): the task that asks the store was cancelled")

        def fail() -> None:
            for session in left:
                session.failed(error)
            self._let_go([*self._leaving])

        self._decide(fail)

    def _on_tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tick = loop.call_later(_TICK, self._on_tick, loop)
        self._ticks += 1
        if not self._asked or self._limit is None:
            if self._ticks > _IDLE_TICKS:
                self._rouse()
        elif self._store.heard > self._heard:  # it is far away, and alive
            self._heard, self._ticks = self._store.heard, 1
        # Counted and not read from the clock: an answer to a loop that stood still is there already, and the store was not down.
        elif self._ticks > _PATIENCE or not self._attached:
            self._limit.reschedule(loop.time())


_clients: WeakValueDictionary[tuple[object, ...], StoreClient] = WeakValueDictionary()


def client_of(source: Any, key: str, process: bool) -> StoreClient:
    """The one for that client, or that URL, in the loop that runs or for the whole ``process``; for a cluster, the one of the key.

    A node of a cluster that is down keeps its keys waiting, and must not keep those of the others. Called in a decision.
    """
    native = None if process else running_loop()
    loop = native if isinstance(native, asyncio.AbstractEventLoop) else None
    if loop is None and not process:
        raise RuntimeError(
            "RedisLimiter and RedisBudget work on asyncio and uvloop, because their client does; this is another event loop. With"
            " scope='process' they work here too."
        )
    # Source and loop live as long as it does.
    place = (source if isinstance(source, str) else id(source), id(loop), os.getpid(), key if is_cluster(source) else "")
    client = _clients.get(place)
    if client is None:
        client = _clients[place] = StoreClient(source, loop)
    return client
