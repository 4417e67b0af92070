"""Where a store is asked on behalf of a limiter: in the event loop of its callers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from aiorate._loops.table import running_loop
from aiorate._store.client import client_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._loops.clock import Handle
    from aiorate._store.client import Session, StoreClient

__all__ = ["LoopPlace", "Place", "Returned", "Timers"]


class Timers(Protocol):
    """Calls back later."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Handle:
        """Call back in ``delay`` seconds."""
        ...


class Returned(Protocol):
    """A wait until the store has heard of what comes back to it."""

    def done(self) -> bool:
        """Whether it is over."""
        ...

    def over(self) -> None:
        """The store has heard, or will not."""
        ...

    async def wait(self) -> None:
        """Return once it is over. Several tasks may wait."""
        ...


class Place(Protocol):
    """The way from a session to the client that asks for it."""

    @property
    def open(self) -> bool:
        """Whether the store can be asked from here."""
        ...

    @property
    def timers(self) -> Timers | None:
        """What calls the session back; None: nothing does in this loop."""
        ...

    def has(self, client: StoreClient) -> bool:
        """Whether that client still asks here."""
        ...

    def find(self, key: str) -> StoreClient:
        """The client for that key."""
        ...

    def attach(self, client: StoreClient, session: Session) -> None:
        """Have the client know the session."""
        ...

    def wake(self, client: StoreClient, session: Session) -> bool:
        """Have the client ask for the session soon. False if it has ended meanwhile."""
        ...

    def release(self, client: StoreClient, session: Session) -> None:
        """Another client asks for the session from now on."""
        ...

    async def detach(self, client: StoreClient, session: Session) -> None:
        """Have the client forget the session. After the last, neither task nor thread nor connection is left."""
        ...

    def returned(self) -> Returned:
        """A wait that begins now."""
        ...


class LoopPlace:
    """The event loop that runs in this thread, one after the other. ``source`` is a client or a URL."""

    __slots__ = ("_source",)

    def __init__(self, source: object) -> None:
        self._source: object = source

    @property
    def open(self) -> bool:
        return running_loop() is not None  # not for try_acquire() and delay() outside a loop

    @property
    def timers(self) -> Timers | None:
        native = running_loop()
        return native if isinstance(native, asyncio.AbstractEventLoop) else None

    def has(self, client: StoreClient) -> bool:
        return client.loop is running_loop()

    def find(self, key: str) -> StoreClient:
        native = running_loop()
        if not isinstance(native, asyncio.AbstractEventLoop):
            raise RuntimeError(
                "RedisLimiter works on asyncio and uvloop, because its client does; this is another event loop. With scope='process' it"
                " works here too."
            )
        return client_of(self._source, native, key)

    def attach(self, client: StoreClient, session: Session) -> None:
        client.attach(session)

    def wake(self, client: StoreClient, session: Session) -> bool:
        client.wake(session)
        return True

    def release(self, client: StoreClient, session: Session) -> None:
        client.release(session)

    async def detach(self, client: StoreClient, session: Session) -> None:
        await client.detach(session)

    def returned(self) -> Returned:
        return _Future(asyncio.get_running_loop().create_future())


class _Future:
    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future: asyncio.Future[None] = future

    def done(self) -> bool:
        return self._future.done()

    def over(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        await asyncio.shield(self._future)  # for which another call may wait too
