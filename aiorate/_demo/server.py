"""The demo's server: it notes when each request arrives, and does nothing else.

It runs in its own process, so a busy client delays no arrival. The first line of its output names its port. It ends when its input
is closed, which happens however the demo ends. Knows nothing of limiters.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from contextlib import asynccontextmanager
from time import monotonic_ns  # one clock for all processes of a machine
from typing import TYPE_CHECKING

from aiohttp import ClientSession, web

from aiorate._demo.children import NEW_GROUP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import TextIO

__all__ = ["ServerError", "counting_app", "fetch_arrivals", "fetch_senders", "serve", "server"]


class ServerError(RuntimeError):
    """The server could not be started."""


def counting_app() -> web.Application:
    """Notes the instant of each ``GET /``, and the sender of ``GET /3``: 3.

    ``POST /arrivals`` returns the instants and then the senders (64-bit each; -1 is unknown), and forgets them.
    """
    arrivals, senders = array("q"), array("q")

    async def arrive(request: web.Request) -> web.Response:
        arrivals.append(monotonic_ns())
        senders.append(int(request.match_info.get("sender", "-1")))
        return web.Response(text="ok")

    async def report(request: web.Request) -> web.Response:
        body = arrivals.tobytes() + senders.tobytes()
        del arrivals[:], senders[:]
        return web.Response(body=body)

    app = web.Application()
    app.router.add_get("/", arrive)
    app.router.add_get(r"/{sender:\d{1,9}}", arrive)
    app.router.add_post("/arrivals", report)
    return app


async def fetch_arrivals(url: str) -> list[int]:
    """The instants (ns) of arrivals since the previous call."""
    return [instant for instant, _ in await fetch_senders(url)]


async def fetch_senders(url: str) -> list[tuple[int, int]]:
    """The instants (ns) of arrivals since the previous call, each with its sender."""
    async with ClientSession() as session, session.post(f"{url}/arrivals") as response:
        numbers = array("q", await response.read()).tolist()
    half = len(numbers) // 2
    return list(zip(numbers[:half], numbers[half:], strict=True))


async def serve(port: int, say: TextIO, until: Callable[[], Awaitable[object]]) -> int:
    """Run on loopback until ``until`` returns; returns the exit code. Prints ``port N``, or why it cannot listen."""
    runner = web.AppRunner(counting_app(), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except OSError as error:
            print(f"cannot listen on port {port}: {error.strerror}", file=say, flush=True)
            return 2
        print(f"port {runner.addresses[0][1]}", file=say, flush=True)
        await until()
        return 0
    finally:
        await runner.cleanup()


@asynccontextmanager
async def server(port: int = 0) -> AsyncIterator[str]:
    """Run the server in its own process; the target is its URL. Port 0 is any free port. Raises ServerError."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches the demo only, which then closes the input
        creationflags=NEW_GROUP,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode().strip()
        word, _, number = line.partition(" ")
        if word != "port":
            raise ServerError(line or "the server ended before it began")
        yield f"http://127.0.0.1:{number}"
    finally:
        process.stdin.close()
        await process.stdout.read()  # to its end, so that nothing stays in the pipe
        await process.wait()


async def _input_closed() -> None:
    await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    sys.exit(asyncio.run(serve(int(sys.argv[1]), sys.stdout, _input_closed)))
