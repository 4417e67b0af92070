"""A connection to a server that can be slow, hang, or lead elsewhere, as a network does to processes that share a limit.

Forwards bytes on loopback after a delay. Knows nothing of what they mean.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Wire:
    """Forwards connections to a port of loopback."""

    def __init__(self, target: int, delay: float) -> None:
        self.port: int = 0
        """The port to connect to."""
        self.connections: int = 0
        """The number of connections made."""
        self.hangs: bool = False
        """While True, bytes are kept, and nothing is forwarded."""
        self.target: int = target
        """The port to which new connections lead."""
        self._delay = delay
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[object]] = set()

    async def serve(self) -> asyncio.Server:
        """Listen on any free port."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def cut(self) -> None:
        """Break all connections, as a network does: bytes under way are lost."""
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()
        if self._tasks:
            await asyncio.wait(self._tasks)  # until all have seen it

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self._ends |= {writer, back}
        await asyncio.gather(self._forward(reader, back), self._forward(there, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()

        def send(data: bytes) -> None:
            if self.hangs:
                loop.call_later(0.01, send, data)
            elif data:
                writer.write(data)
            else:
                writer.close()
                self._ends.discard(writer)

        data = b"?"
        while data:
            data = b""  # what a broken connection has left
            with suppress(ConnectionError):
                data = await reader.read(1 << 16)
            loop.call_later(self._delay, send, data)


@contextmanager
def wire(target: int, delay: float = 0.0) -> Iterator[Wire]:
    """A wire to that port of loopback, with a delay (seconds) in each direction. It runs in a thread, until the end of the block."""
    made = Wire(target, delay)
    ready = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    ends: list[asyncio.Event] = []

    async def run() -> None:
        async with await made.serve():
            end = asyncio.Event()
            loops.append(asyncio.get_running_loop())
            ends.append(end)
            ready.set()
            await end.wait()
            await made.cut()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield made
    finally:
        loops[0].call_soon_threadsafe(ends[0].set)
        thread.join(10)
