"""The one task and the one connection by which all limiters of a client in an event loop ask a store, and what errors there mean.

At most one call is in flight. All that arrives meanwhile goes with the next one. The task ends, and closes the connection, when nothing
was wanted for a second. With ``scope="process"``, a thread runs the event loop for as long as the task lives.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from contextlib import suppress
from functools import partial
from operator import call
from random import uniform
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from aiorate._loops.table import loop_here, running_loop
from aiorate._store.options import is_cluster, settings_of
from aiorate._store.script import SHA, TEXT, Refusal, Unreachable
from aiorate._tree.deciding import decisions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Asked = tuple[bytes, Sequence[str | bytes]]  # the key, and the other arguments of the script
    Command = tuple[str | bytes | int, ...]


_TICK = 0.25  # seconds between looks at a call that may hang, or an idle task
_PATIENCE = 2  # ticks without an answer until a call is given up
_LONGEST = 32  # the same while connecting: a cluster or a Sentinel takes a dozen round trips
_IDLE = 4
_MOST = 256  # keys in one call, which keeps the loop busy for 10 ms, and the server for 3
_RETRY, _LONGEST_RETRY = 0.01, 0.25
# For opening a connection. The task itself tries again.
_ALONE: dict[str, Any] = {"retry": None, "retry_on_error": [], "retry_on_timeout": False}
_ALONE["socket_timeout"] = _ALONE["socket_connect_timeout"] = _PATIENCE * _TICK
_PASSING = {  # of what a server says
    *("BusyLoadingError", "ReadOnlyError", "ClusterDownError", "MasterDownError", "OutOfMemoryError", "TryAgainError"),
    *("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN", "UNBLOCKED", "UNKILLABLE"),
}
_OF_CLUSTERS = {"RedisClusterException", "ValkeyClusterException"}  # no node would do: the cause says why
_REFUSALS = {"ResponseError", "AuthenticationError", "AuthorizationError", "AuthenticationWrongNumberOfArgsError", *_OF_CLUSTERS}
# Servers before 7.0 wrap the error of a command that a script called.
_CODE = re.compile(r"(?:(?:ERR )?Error running script .*@user_script: ?\d+: )?-?([A-Z]+)(?: |$)")


class StoreClient:
    """Asks on behalf of the sessions that woke it, in that loop or, if it is None, in one of its own.

    It calls `StoreSession.question`, and then ``answered``, ``unreachable`` or ``failed``: in decisions, in its loop. A given client lends
    the settings of its connections: a call takes half the time through one opened here, which does not count against the client's pool.
    The client of a cluster is used itself, and never closed.
    """

    def __init__(self, source: Any, loop: Any) -> None:
        self._source, self._loop = source, loop  # kept: while this lives, no other client or loop has its id
        self._settings: Any = settings_of(source)
        self._connection: Any = None
        self._decide: Callable[..., Any] = decisions.run if loop is None else call
        self._wanting: dict[Any, None] = {}
        self._asked: list[Any] = []  # those of the call in flight
        self._leaving: dict[Callable[[], object], Any] = {}  # whom to tell, and the session
        self._runs: bool = False  # whether the task does. Changed in decisions
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._native: asyncio.AbstractEventLoop | None = None  # that of the task, while it runs
        self._woken: asyncio.Event = asyncio.Event()  # awaited while there is nothing to ask
        self._ticks: int = 0  # since the call in flight began, the store last answered, or there was last something to ask
        self._silent: float | None = None  # when the first unanswered call since the last answer began

    @property
    def here(self) -> bool:
        """Whether it serves this thread."""
        return self._loop is None or self._loop is running_loop()

    # In decisions.

    def wake(self, session: object) -> None:
        """Ask the store for it in the loop's next iteration, or when the call in flight is answered."""
        self._wanting[session] = None
        if self._runs:
            self._rouse()
        else:
            self._start()

    async def detach(self, session: object) -> None:
        """Forget it, once it has nothing to tell, or cannot. The connection is closed, and whoever else wants something opens another."""
        loop = loop_here()
        assert loop is not None  # a task runs
        signal = loop.signal()
        self._decide(self._detach, session, partial(loop.post, partial(loop.wake, signal)))
        await loop.wait(signal)
        thread = self._thread  # first: the next one runs
        if thread is not None and not self._runs:
            thread.join()

    def _detach(self, session: object, tell: Callable[[], object]) -> None:
        self._leaving[tell], self._ticks = session, max(self._ticks, 0)
        self.wake(session)

    def _rouse(self) -> None:
        """Have the idle task go on, or end if nothing is wanted."""
        if self._loop is not None:
            self._woken.set()
        elif self._native is not None:
            self._native.call_soon_threadsafe(self._woken.set)

    def _start(self) -> None:
        if self._loop is not None:
            # Without the loop's task factory: an eager task would ask before the caller's request is in line.
            self._task = asyncio.Task(self._run(), loop=self._loop, name="aiorate-redis")
        else:
            self._thread = threading.Thread(target=self._serve, name="aiorate", daemon=True)
            self._thread.start()
        self._runs = True

    def _end(self) -> None:
        self._runs, self._native = False, None
        if self._wanting:  # woken meanwhile
            self._start()
        for tell, session in [*self._leaving.items()]:
            if session not in self._wanting:
                del self._leaving[tell]
                with suppress(RuntimeError, OSError):  # its loop is closed
                    tell()

    def _questions(self) -> list[Asked]:
        questions: list[Asked] = []
        for session in [*self._wanting][:_MOST]:
            del self._wanting[session]
            question = session.question() if session.client is self else None  # else it asks in another event loop by now
            if question is not None:
                self._asked.append(session)
                questions.append(question)
        return questions

    def _hear(self, replies: list[object], began: float) -> None:
        """The call that began then is over."""
        silent, self._silent = self._silent, None
        for session, reply in zip(self._asked, replies, strict=True):
            if session.client is not self:
                continue
            try:
                session.answered(refusal_of(reply) if isinstance(reply, Exception) else reply)
            except Unreachable as none:  # or an answer that makes no sense
                self._silent = began if silent is None else silent
                self._wanting.pop(session, None)
                if session.unreachable(none, began - self._silent):
                    self._wanting[session] = None
        self._asked = []

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            error = RuntimeError("acquire(): the task that asks the store was cancelled")
        left, self._asked, self._wanting = (*self._asked, *self._wanting), [], {}
        for session in left:
            if session.client is self:
                session.failed(error)

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
        loop = self._native = asyncio.get_running_loop()
        self._task, self._woken, self._ticks = asyncio.current_task(), asyncio.Event(), 0
        self._timer = loop.call_later(_TICK, self._on_tick, loop)
        try:
            while self._ticks <= _IDLE:  # something was wanted a while ago
                leaving = self._leaving.values()
                if leaving and self._wanting.keys().isdisjoint(leaving):
                    break
                if self._wanting:
                    await self._ask(loop)
                else:
                    self._woken.clear()
                    await self._woken.wait()
        except GeneratorExit:  # its loop was closed, and its sessions ask in another by now
            raise
        except BaseException as raised:
            error = raised
            self._decide(self._fail, error)
        self._timer.cancel()
        try:
            await self._close()
        finally:
            self._decide(self._end)
        if not isinstance(error, (Exception, asyncio.CancelledError, type(None))):
            raise error

    def _on_tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ticks are counted, and no clock is read: if the loop stood still, the answer may be there already."""
        self._timer = loop.call_later(_TICK, self._on_tick, loop)
        self._ticks += 1
        if not self._asked:
            if self._ticks > _IDLE:
                self._woken.set()
        elif self._ticks > _PATIENCE and self._task is not None:
            self._task.cancel()

    async def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make one call. Without an answer, wait a little before the next."""
        questions: list[Asked] = self._decide(self._questions)
        if not questions:
            return
        self._ticks, began = 0, loop.time()
        replies: list[object]
        try:
            if self._connection is None:
                await self._open()
            commands: list[Command] = [("EVALSHA", SHA, 1, key, *words) for key, words in questions]
            replies = await self._call(commands)
            missing = [place for place, reply in enumerate(replies) if "NoScriptError" in kinds_of(reply)]
            if missing:
                again = [commands[place] for place in missing]
                again[0] = ("EVAL", TEXT, *again[0][2:])  # and the server has it for the others
                for place, reply in zip(missing, await self._call(again), strict=True):
                    replies[place] = reply
        except asyncio.CancelledError:
            if self._ticks <= _PATIENCE or self._task is None:  # by somebody else
                raise
            self._task.uncancel()
            replies = [TimeoutError("none in time")] * len(questions)
        except Exception as error:
            replies = [error] * len(questions)
        self._decide(self._hear, replies, began)
        if self._silent is not None:
            await self._close()
            if self._wanting and not self._leaving:
                await asyncio.sleep(min(max(loop.time() - self._silent, _RETRY), _LONGEST_RETRY) * uniform(0.5, 1.0))
        self._ticks = 0

    async def _open(self) -> None:
        if not self._leaving:
            self._ticks = _PATIENCE - _LONGEST
        if self._settings is None:
            await self._source.initialize()  # not in many calls at once, which close each other's connections
        else:
            connection = self._settings.connection_class(**{**self._settings.connection_kwargs, **_ALONE})
            await connection.connect()
            connection.socket_timeout = None  # from here on ticks are counted, which costs less
            self._connection = connection
        self._ticks = 0

    async def _call(self, commands: Sequence[Command]) -> list[object]:
        """Returns the reply to each, or the server's error. Raises if there is no answer."""
        connection, replies = self._connection, list[object]()
        if connection is not None:
            await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        for command in commands:
            try:
                replies.append(await (self._source.execute_command(*command) if connection is None else connection.read_response()))
            except Exception as error:
                if "ResponseError" not in kinds_of(error):
                    raise
                replies.append(error)
        self._ticks = 0
        return replies

    async def _close(self) -> None:
        """Close our own connection. The next call resolves the address again, which may be another server's by then."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is broken already
                await connection.disconnect()


_clients: WeakValueDictionary[tuple[object, ...], StoreClient] = WeakValueDictionary()


def client_of(source: Any, key: str, process: bool) -> StoreClient:
    """The one for that client or URL, in the loop that runs or for the whole ``process``. Called in a decision.

    In a cluster, each key has its own, since a node that is down must not keep other nodes' keys waiting.
    """
    loop = None if process else running_loop()
    if not process and not isinstance(loop, asyncio.AbstractEventLoop):
        raise RuntimeError("RedisLimiter and RedisBudget work on asyncio and uvloop, and with scope='process' in any event loop.")
    place = (source if isinstance(source, str) else id(source), id(loop), os.getpid(), key if is_cluster(source) else "")
    return _clients.get(place) or _clients.setdefault(place, StoreClient(source, loop))


def kinds_of(error: object) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def refusal_of(error: Exception) -> Refusal:
    """What lasts until somebody puts it right. Raises `Unreachable` for what may pass. The error is the ``__cause__``.

    The name of the class decides, which redis-py and valkey-py share, and the code, the first word of what the server said. The rest may
    quote the name of a limiter.
    """
    cause: BaseException = error
    while kinds_of(cause) & _OF_CLUSTERS and cause.__cause__ is not None:
        cause = cause.__cause__
    name, text, kinds = type(error).__name__, " ".join(str(error).split()), kinds_of(cause)
    if "ResponseError" in kinds and (code := _CODE.match(str(cause))):
        kinds.add(code[1])
    if name != "ResponseError":
        text = f"{name}: {text}"
    elif code := _CODE.match(text):
        text = text[code.start(1) :]
    if kinds & _PASSING or kinds.isdisjoint(_REFUSALS):
        raise Unreachable(text) from error
    refusal = Refusal(text)
    refusal.__cause__ = error
    return refusal
