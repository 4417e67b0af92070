"""The one task that asks a store, for all limiters of a client in an event loop. At most one call is in flight.

All that arrives meanwhile goes with the next call. The task ends when nothing was wanted for a second. With ``scope="process"``, the event
loop is that of a thread, which starts when it is first needed, and ends with the last task. A child process after a fork has its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from functools import partial
from itertools import islice
from random import uniform
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet, WeakValueDictionary

from aiorate._loops.table import loop_here, running_loop
from aiorate._store.address import identity, is_cluster
from aiorate._store.failures import Refusal, Unreachable
from aiorate._store.store import CONNECT_SECONDS, store_of
from aiorate._tree.deciding import decisions

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aiorate._store.store import Asked, Store


_CALL_SECONDS = 0.5  # for one answer
_TICK = 0.25  # seconds between looks at a call that may hang, and at a task that may be idle
_IDLE_TICKS = 4
_MOST = 256  # keys in one call: writing and reading that keeps the loop busy for 10 ms, and the server for 3
_RETRY, _LONGEST_RETRY = 0.01, 0.25


class Session(Protocol):
    """A limit's talk with the store. All but `run` is called through that, in the client's loop, in any order."""

    client: StoreClient | None
    """The one that asks for it; None: none. It is called only by that one."""

    @property
    def run(self) -> Callable[..., Any]: ...
    def question(self) -> Asked | None: ...
    def answered(self, reply: object) -> None: ...
    def unreachable(self, cause: BaseException, silent: float | None) -> None: ...
    def failed(self, error: BaseException) -> None: ...


class Word:
    """What a task waits for. Told once, in any thread."""

    def __init__(self) -> None:
        loop = loop_here()
        assert loop is not None  # a task runs
        self._loop, self._signal, self._told = loop, loop.signal(), False

    def tell(self) -> None:
        """Let the task go on."""
        self._told = True
        try:
            self._loop.post(partial(self._loop.wake, self._signal))
        except (RuntimeError, OSError):  # its loop is closed
            return

    async def heard(self) -> None:
        """Wait for it. The loop turns in any case."""
        await (self._loop.yield_once() if self._told else self._loop.wait(self._signal))


class StoreClient:
    """Asks on behalf of the sessions that woke it, in one call after the other."""

    def __init__(self, source: object, loop: asyncio.AbstractEventLoop, thread: _Thread | None = None) -> None:
        self._loop, self._thread = loop, thread
        self._source: object = source  # kept: while this lives, no other client has its id
        self._store: Store = store_of(source)
        self._connected: bool = False  # whether the store answered the last call
        self._attached: WeakSet[Session] = WeakSet()
        self._wanting: dict[Session, None] = {}
        self._asked: list[Session] = []  # those of the call in flight
        self._task: asyncio.Task[None] | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._ticks: int = 0  # since the call in flight began, or the store was heard last, or since there is nothing to ask
        self._heard: int = 0  # the answers of the store until the last tick
        self._given_up: bool = False  # whether the call was cancelled, as it takes too long
        self._over: bool = False  # whether the task was cancelled, as no session was left
        self._leaving: dict[Word, Session] = {}  # those that leave once they have nothing to tell, and for whom
        self._left: list[Word] = []  # for those who wait for the end of the task
        self._idle: asyncio.Future[bool] | None = None  # what the task awaits while there is nothing to ask; False: it may end
        self._retry: float = 0.0
        self._silent: float | None = None  # when the first call began of those without an answer since the last

    @property
    def here(self) -> bool:
        """Whether it asks for callers of this thread."""
        return self._loop is running_loop() if self._thread is None else self._thread.alive

    @property
    def busy(self) -> bool:
        """Whether its task runs."""
        return self._task is not None

    def wake(self, session: Session) -> None:
        """Ask the store for it in the loop's next iteration, or when the call in flight is answered. Called in a decision."""
        if self._thread is None:
            self._want(session)
        else:
            self._thread.post(partial(self._want, session))

    async def detach(self, session: Session) -> None:
        """Forget it, once it has nothing to tell, or cannot. After the last, neither task nor connection is left, nor a thread."""
        told, thread = Word(), self._thread
        if thread is None:
            self._leave(session, told)
        elif not decisions.run(thread.post, partial(self._leave, session, told)):
            told.tell()
        await told.heard()
        if thread is not None and not thread.alive:
            thread.thread.join()

    # In the loop.

    def _want(self, session: Session) -> None:
        self._attached.add(session)
        self._wanting[session] = None
        if self._task is None:
            # Not by the loop's task factory: an eager task would ask inside the caller, before the caller's request is in line.
            self._task = asyncio.Task(self._run(), loop=self._loop, name="aiorate-redis")
        elif self._idle is not None:
            self._rouse(True)

    def _leave(self, session: Session, told: Word) -> None:
        self._leaving[told] = session
        if session not in self._asked:
            self._want(session)

    def _let_go(self, *sessions: Session) -> None:
        """Of these, those that leave have left."""
        for told, session in list(self._leaving.items()):
            if session in sessions:
                del self._leaving[told]
                self._left.append(told)
                self._wanting.pop(session, None)
                self._attached.discard(session)
        if self._attached:
            self._tell()
        elif self._left and self._task is not None:
            self._over = True
            self._task.cancel()

    def _tell(self) -> None:
        """Let those go on who wait for the end, or need not."""
        told, self._left = self._left, []
        for each in told:
            each.tell()

    def _rouse(self, more: bool) -> None:
        """Have the idle task go on, or end."""
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(more)

    async def _run(self) -> None:
        error: BaseException | None = None
        self._over = False
        self._tick = self._loop.call_later(_TICK, self._on_tick)
        try:
            while self._wanting or await self._more():
                await self._ask()
        except GeneratorExit:  # its loop was closed long ago, and its sessions ask in another by now
            raise
        except BaseException as raised:
            error = raised
        self._tick.cancel()
        self._connected = False
        if error is not None and not self._over:
            self._fail(error)
        try:
            await self._store.close()
        finally:
            self._task = self._idle = None
            if self._wanting:  # woken while it was being cancelled
                self._want(next(iter(self._wanting)))
            if self._thread is None or self._task is not None:
                self._tell()
            else:
                self._loop.call_soon(self._loop.stop)  # once a connection that was just closed is gone
        if not isinstance(error, (Exception, asyncio.CancelledError, type(None))):
            raise error

    async def _more(self) -> bool:
        """Wait until something is wanted. False: nothing was for a while."""
        self._ticks = 0
        self._idle = idle = self._loop.create_future()
        return await idle or bool(self._wanting)  # a session may have woken it in the same iteration

    async def _ask(self) -> None:
        """Make one call for the sessions that want something, in order."""
        self._asked, questions = [], []
        for session in list(islice(self._wanting, _MOST)):
            del self._wanting[session]
            question: Asked | None = None
            if session.client is self:  # else it asks in another event loop by now
                try:
                    question = session.run(session.question)
                except Exception as error:  # of a clock, say: the other sessions go on
                    session.run(session.failed, error)
            if question is None:
                self._let_go(session)
            else:
                self._asked.append(session)
                questions.append(question)
        if not questions:
            return
        self._ticks, self._heard, self._given_up = 0, self._store.heard, False
        began = self._loop.time()
        try:
            replies = await self._store.ask(questions)
        except asyncio.CancelledError:
            if not self._given_up or self._over or self._task is None:
                raise
            self._task.uncancel()
            replies = [_no_answer(self._longest_call)] * len(questions)
        lost: dict[Session, Unreachable] = {}
        asked, self._asked = self._asked, []
        for session, reply in zip(asked, replies, strict=True):
            more = False
            try:
                if isinstance(reply, Unreachable):
                    raise reply
                if session.client is self:
                    session.run(session.answered, reply)
                    more = not isinstance(reply, Refusal)
            except Unreachable as failure:
                lost[session] = failure
            except Exception as error:  # which does not concern the others
                session.run(session.failed, error)
            if session in self._leaving.values():
                if more:  # to tell, perhaps
                    self._wanting[session] = None
                elif session not in lost:
                    self._let_go(session)
        if lost:
            await self._lose(lost, began)
        else:
            self._connected, self._silent, self._retry = True, None, 0.0

    async def _lose(self, lost: dict[Session, Unreachable], began: float) -> None:
        """These got no answer to the call that ``began`` then: ask again a little later."""
        await self._store.close()
        self._connected = False
        if self._silent is None:
            self._silent = began
        for session, failure in lost.items():
            if session.client is self:
                self._wanting[session] = None
                session.run(session.unreachable, failure.__cause__ or failure, began - self._silent)
        self._let_go(*lost)
        self._retry = min(max(2 * self._retry, _RETRY), _LONGEST_RETRY)
        await asyncio.sleep(self._retry * uniform(0.5, 1.0))

    def _fail(self, error: BaseException) -> None:
        """The task ends with an error."""
        left = [session for session in (*self._asked, *self._wanting) if session.client is self]
        self._asked, self._wanting = [], {}
        if isinstance(error, asyncio.CancelledError):
            error = RuntimeError("acquire(): the task that asks the store was cancelled")
        for session in left:
            session.run(session.failed, error)
        self._let_go(*self._leaving.values())

    @property
    def _longest_call(self) -> float:
        """Seconds after which a call is given up."""
        return _CALL_SECONDS if self._connected else CONNECT_SECONDS

    def _on_tick(self) -> None:
        self._tick = self._loop.call_later(_TICK, self._on_tick)
        self._ticks += 1
        if not self._asked or self._task is None:
            if self._ticks > _IDLE_TICKS:
                self._rouse(False)
            return
        heard = self._store.heard
        if heard > self._heard:  # it is far away, and alive
            self._heard, self._ticks = heard, 1
        # Counted and not read from the clock: an answer to a loop that stood still is there already, and the store was not down.
        waited = (self._ticks - 1) * _TICK
        if waited >= self._longest_call:
            self._given_up = True
            self._task.cancel()
        elif waited >= _CALL_SECONDS:  # it may still connect, but requests wait only until the end of the grace
            for session in self._asked:
                if session.client is self:
                    session.run(session.unreachable, _no_answer(_CALL_SECONDS), None)
            self._let_go(*self._asked)


def _no_answer(seconds: float) -> Unreachable:
    return Unreachable(f"no answer within {seconds:g} s")


_clients: WeakValueDictionary[tuple[object, int, str], StoreClient] = WeakValueDictionary()


def client_of(source: Any, key: str) -> StoreClient:
    """The one for that client, or that URL, in the loop that runs; for a cluster, the one of the key.

    A node of a cluster that is down keeps its keys waiting, and must not keep those of the others.
    """
    native = running_loop()
    if not isinstance(native, asyncio.AbstractEventLoop):
        raise RuntimeError(
            "RedisLimiter and RedisBudget work on asyncio and uvloop, because their client does; this is another event loop. With"
            " scope='process' they work here too."
        )
    place = (identity(source), id(native), key if is_cluster(source) else "")  # source and loop live as long as it does
    client = _clients.get(place)
    if client is None:
        client = _clients[place] = StoreClient(source, native)
    return client


class _Thread:
    """Called in decisions, and never waits for a store."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self.clients: dict[object, StoreClient] = {}
        self._calls: deque[Callable[[], object]] = deque()  # that the loop has yet to make
        self._process: int = os.getpid()
        self.thread = threading.Thread(target=self._serve, name="aiorate", daemon=True)
        try:
            self.thread.start()
        except BaseException:
            self.loop.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether it is of this process, and will not end before a call that is posted now."""
        return bool(_threads) and _threads[-1] is self and self._process == os.getpid() and self.thread.is_alive()

    def post(self, call: Callable[[], object]) -> bool:
        """Have the loop make a call, if it will. Returns whether it will."""
        if not self.alive:
            return False
        self._calls.append(call)
        self.loop.call_soon_threadsafe(self._make_calls)
        return True

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()
        if not any(client.busy for client in self.clients.values()):
            self.loop.stop()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        ended = False
        while not ended:
            self.loop.run_forever()  # until nothing may be left to do
            ended = decisions.run(self._end)
            for client in self.clients.values():
                if not client.busy:
                    client._tell()
        self.loop.close()

    def _end(self) -> bool:
        """Have the thread end if nothing is asked, and no call is to be made. Returns whether it does."""
        if self._calls or any(client.busy for client in self.clients.values()):
            return False
        if self.alive:
            _threads.pop()
        return True


_threads: list[_Thread] = []
"""The last one is the present one. Those of a parent process are kept, with its tasks."""


def client_of_process(source: object) -> StoreClient:
    """The one for that client, or that URL, in the thread, which is started if there is none. Called in a decision."""
    if not (_threads and _threads[-1].alive):
        _threads.append(_Thread())
    thread, key = _threads[-1], identity(source)
    if key not in thread.clients:
        thread.clients[key] = StoreClient(source, thread.loop, thread)
    return thread.clients[key]
