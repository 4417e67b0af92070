"""The thread that asks stores for all limiters of a process: one event loop, and in it a client for each store.

It starts when it is first needed, and ends about a second after it was needed last. A child process after a fork has its own. Knows
nothing of limiters.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from aiorate._lock import Lock
from aiorate._store.client import client_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._store.client import Session, StoreClient

__all__ = ["Leaving", "Service", "service"]

_LOOK = 0.25  # seconds between looks whether it is still needed


class Service:
    """All methods may be called in any thread, and never wait for the store."""

    def __init__(self) -> None:
        self.process: int = os.getpid()
        """The process of its thread."""
        self._lock: Lock = Lock()  # held for a few steps, and never while a limiter's section is taken
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the thread; None: none runs
        self._thread: threading.Thread | None = None
        self._clients: dict[object, StoreClient] = {}  # those that ask in that loop
        self._pending: int = 0  # calls that the loop has yet to make
        self._changed: asyncio.Event | None = None

    def has(self, client: StoreClient) -> bool:
        """Whether that client asks in the thread that runs now."""
        return client.loop is self._loop

    def find(self, source: object) -> StoreClient:
        """The client for that client, or that URL, in the thread, which is started if there is none."""
        with self._lock:
            loop = self._loop or self._start()
            key = source if isinstance(source, str) else id(source)  # the client holds it
            client = self._clients.get(key)
            if client is None:
                client = self._clients[key] = client_of(source, loop, "")
            return client

    def post(self, client: StoreClient, call: Callable[[], object]) -> bool:
        """Make a call in the thread, on behalf of that client. False if it no longer asks there: the thread has ended meanwhile."""
        with self._lock:
            if self._loop is not client.loop:
                return False
            self._pending += 1
            client.loop.call_soon_threadsafe(self._make, call)
            return True

    def detach(self, client: StoreClient, session: Session) -> Leaving:
        """Have the client forget a session. The thread ends then if no session is left."""
        with self._lock:
            leaving = Leaving(self, self._thread)
            if self._loop is client.loop:
                leaving.done = False
                self._pending += 1
                client.loop.call_soon_threadsafe(self._detach, client, session, leaving)
            return leaving

    def _detach(self, client: StoreClient, session: Session, leaving: Leaving) -> None:
        leaving.task = client.loop.create_task(client.detach(session))
        leaving.task.add_done_callback(partial(self._left, leaving))

    def _left(self, leaving: Leaving, task: asyncio.Task[None]) -> None:
        with self._lock:
            self._pending -= 1
            leaving.done = True  # only now: then whether the thread is needed is known
        if self._changed is not None:
            self._changed.set()

    @property
    def unused(self) -> bool:
        """Whether no session is left."""
        with self._lock:
            return not self._pending and not any(client.used for client in self._clients.values())

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._run, args=(loop,), name="aiorate-redis", daemon=True)
        try:
            thread.start()
        except BaseException:
            loop.close()
            raise
        self._loop, self._thread, self._clients, self._pending = loop, thread, {}, 0
        return loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._serve(loop))
        finally:
            with self._lock:
                if self._loop is loop:  # an error ended it
                    self._loop = self._thread = None
            loop.close()

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        changed = asyncio.Event()
        with self._lock:
            if self._loop is not loop:  # the start was interrupted
                return
            self._changed = changed
        while True:
            changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await changed.wait()
            if self._end():
                closing = asyncio.all_tasks() - {asyncio.current_task()}
                if closing:  # a client that is no longer busy may still be closing its connection
                    await asyncio.wait(closing)
                return

    def _end(self) -> bool:
        """Have the thread end if nothing is asked, and no call is to be made."""
        with self._lock:
            if self._pending or any(client.busy for client in self._clients.values()):
                return False
            self._loop = self._thread = self._changed = None
            self._clients = {}
            return True

    def _make(self, call: Callable[[], object]) -> None:
        try:
            call()
        finally:
            with self._lock:
                self._pending -= 1


class Leaving:
    """A session that leaves its client. ``thread`` is that of the service."""

    def __init__(self, service: Service, thread: threading.Thread | None) -> None:
        self._service: Service = service
        self._thread: threading.Thread | None = thread
        self.done: bool = True
        """Whether the client has forgotten it."""
        self.task: asyncio.Task[None] | None = None  # the loop knows its tasks weakly

    @property
    def over(self) -> bool:
        """Whether the client has forgotten it, and the thread has ended if no session is left."""
        if self._thread is None or not self._thread.is_alive():
            return True
        return self.done and not self._service.unused


_services: list[Service] = [Service()]  # the last one is that of this process; the others are kept, with the tasks of a parent


def service() -> Service:
    """That of this process."""
    if _services[-1].process != os.getpid():  # not by a hook: those of other modules may need it before
        _services.append(Service())
    return _services[-1]
