"""Where a store is asked on behalf of a limiter of all loops and threads of a process: in the thread of the `Service`.

What the client asks and tells runs in the limiter's critical section, and what the limiter tells the client is posted to the thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate._loops.table import loop_here
from aiorate._rate import NS_PER_SECOND
from aiorate._store.service import service

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aiorate._loops.clock import Handle
    from aiorate._loops.loop import Loop
    from aiorate._store.client import Session, StoreClient
    from aiorate._store.place import Returned, Timers
    from aiorate._store.store import Asked
    from aiorate._tree.node import Node

__all__ = ["ProcessPlace"]


class ProcessPlace:
    """The thread of a process that asks stores. ``source`` is a URL, or a client that lends its settings. Called in the section."""

    __slots__ = ("_inside", "_node", "_source")
    open: bool = True

    def __init__(self, source: object, node: Node) -> None:
        self._source: object = source
        self._node: Node = node
        self._inside: _Inside | None = None  # the session, as the client knows it

    @property
    def timers(self) -> Timers:
        return self

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Handle:
        """Call back in the section in ``delay`` seconds of the limiter's clock."""
        node = self._node
        loop = node.loop
        assert loop is not None  # a limiter of the whole process has one from the beginning

        def call() -> None:
            callback()

        return loop.call_at(node.read() + round(delay * NS_PER_SECOND), call)

    def has(self, client: StoreClient) -> bool:
        return service().has(client)

    def find(self, key: str) -> StoreClient:
        return service().find(self._source)

    def attach(self, client: StoreClient, session: Session) -> None:
        service().post(client, partial(client.attach, self._of(session)))

    def wake(self, client: StoreClient, session: Session) -> bool:
        return service().post(client, partial(client.wake, self._of(session)))

    def release(self, client: StoreClient, session: Session) -> None:
        service().post(client, partial(client.release, self._of(session)))

    async def detach(self, client: StoreClient, session: Session) -> None:
        leaving = service().detach(client, self._of(session))
        loop = self._node.loop
        assert loop is not None  # as above
        while not leaving.over:
            await loop.yield_once()

    def returned(self) -> Returned:
        return _Signals(self._node)

    def _of(self, session: Session) -> _Inside:
        if self._inside is None:
            self._inside = _Inside(session, self._node)
        return self._inside


class _Inside:
    """A session whose calls run in the critical section of its limiter."""

    __slots__ = ("__weakref__", "_node", "_session")

    def __init__(self, session: Session, node: Node) -> None:
        self._session: Session = session
        self._node: Node = node

    @property
    def client(self) -> StoreClient | None:
        return self._session.client

    @property
    def key(self) -> str:
        return self._session.key

    @property
    def limits(self) -> object:
        return self._node.tree.run(self._limits)

    def _limits(self) -> object:
        return self._session.limits

    @property
    def in_grace(self) -> bool:
        return self._session.in_grace

    def question(self) -> Asked | None:
        return self._node.tree.run(self._session.question)

    def answered(self, reply: object) -> None:
        self._node.tree.run(self._session.answered, reply)

    def unreachable(self, cause: BaseException, silent: float) -> None:
        self._node.tree.run(self._session.unreachable, cause, silent)

    def late(self, cause: BaseException) -> None:
        self._node.tree.run(self._session.late, cause)

    def alive(self) -> None:
        self._node.tree.run(self._session.alive)

    def refused(self, cause: BaseException) -> None:
        self._node.tree.run(self._session.refused, cause)

    def failed(self, error: BaseException) -> None:
        self._node.tree.run(self._session.failed, error)

    def forked(self) -> None:
        """Nothing: the session itself is told."""


class _Signals:
    """A wait for tasks of any event loop."""

    __slots__ = ("_node", "_over", "_waiting")

    def __init__(self, node: Node) -> None:
        self._node: Node = node
        self._over: bool = False
        self._waiting: list[tuple[Loop, Any]] = []

    def done(self) -> bool:
        return self._over

    def over(self) -> None:
        self._over = True
        for loop, signal in self._waiting:
            try:
                loop.post(partial(loop.wake, signal))
            except (RuntimeError, OSError):  # that loop is closed
                continue

    async def wait(self) -> None:
        loop = loop_here()
        assert loop is not None  # a coroutine runs
        signal = loop.signal()
        if not self._node.tree.run(self._join, loop, signal):
            await loop.wait(signal)

    def _join(self, loop: Loop, signal: object) -> bool:
        if not self._over:
            self._waiting.append((loop, signal))
        return self._over
