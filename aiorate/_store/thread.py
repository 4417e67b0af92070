"""The thread that asks stores for all limits of a process: an event loop, and in it a client for each store.

It starts when it is first needed, and ends with the last task of a client. A child process after a fork has its own.
Knows nothing of limits.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from aiorate._store.address import identity
from aiorate._store.client import StoreClient, Word
from aiorate._tree.deciding import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._store.client import Session


class _Thread:
    """Called in decisions, and never waits for a store."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self.clients: dict[object, _Client] = {}
        self.leaving: dict[Word, _Client] = {}
        """Those who wait until a client is at rest, or used by others."""
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

    def post(self, call: Callable[[], object]) -> None:
        """Have the loop make a call."""
        self._calls.append(call)
        self.loop.call_soon_threadsafe(self._make_calls)

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        ended = False
        while not ended:
            self.loop.run_forever()  # until a task ends, or somebody leaves
            ended = run(self._end)
            for told in [told for told, client in self.leaving.items() if not client.busy or client.used]:
                del self.leaving[told]
                told.tell()
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


class _Client(StoreClient):
    """Asks in that thread. The rest of it is called there; in others, in decisions, what it does is posted."""

    def __init__(self, source: object, thread: _Thread) -> None:
        super().__init__(source, thread.loop)
        self._thread = thread

    @property
    def here(self) -> bool:
        return self._thread.alive

    @property
    def used(self) -> bool:
        """Whether a session is left."""
        return bool(self._attached)

    def wake(self, session: Session) -> None:
        self._thread.post(partial(super().wake, session))

    def release(self, session: Session) -> None:
        self._thread.post(partial(super().release, session))

    async def detach(self, session: Session) -> None:
        """As `StoreClient.detach`. After the last, the thread has ended, too."""
        told, thread = Word(), self._thread
        release = super().release

        def leave() -> None:
            release(session)
            thread.leaving[told] = self
            self.loop.stop()

        def begin() -> bool:
            if thread.alive:
                thread.post(leave)
                return True
            return False

        if run(begin):
            await told.heard()
            if not thread.alive:
                thread.thread.join()

    def _ended(self) -> None:
        super()._ended()
        self.loop.call_soon(self.loop.stop)  # once a connection that was just closed is gone


def client_of_process(source: object) -> StoreClient:
    """The one for that client, or that URL, in the thread, which is started if there is none."""
    if not (_threads and _threads[-1].alive):
        _threads.append(_Thread())
    thread, key = _threads[-1], identity(source)
    if key not in thread.clients:
        thread.clients[key] = _Client(source, thread)
    return thread.clients[key]
