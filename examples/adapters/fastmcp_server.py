"""A FastMCP server that refuses a client above 20 messages at once, or 5 per second, over HTTP. ``pip install fastmcp``.

A client that sends too much gets 429 with the RateLimit fields, before MCP sees the message, and its call raises MCPError. To begin a
session takes one or two messages, and each call of a tool takes one. A client is an address: behind a proxy, or for a limit for each
account, pass ``key=``. To serve, run ``uvicorn fastmcp_server:app``. Run as a program, it serves, and shows a client that heeds the
fields and is never refused.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import httpx2
import uvicorn
from fastmcp import Client, FastMCP
from fastmcp.client.transports import StreamableHttpTransport
from starlette.middleware import Middleware

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.asgi import RateLimitMiddleware
from aiorate.http import hooks

mcp: FastMCP = FastMCP("Books")


@mcp.tool
def find(title: str) -> str:
    """Where the book stands."""
    return f"{title}: shelf {len(title)}"


clients: KeyedLimiter[str] = KeyedLimiter(lambda address: TokenBucket("5/s", burst=20))
app = mcp.http_app(middleware=[Middleware(RateLimitMiddleware, limiter=clients)])


def heeding_client(url: str) -> Client[Any]:
    """A client of MCP that sends at most 100 messages per second, and as many as the last answer of the server says."""
    limiter = Limiter("100/s")

    def http_client(**options: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(**options, event_hooks=hooks(limiter))

    return Client(StreamableHttpTransport(url, httpx_client_factory=http_client))


async def main() -> None:
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        async with heeding_client(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp") as client:
            begin = time.monotonic()
            found = [(await client.call_tool("find", {"title": title})).data for title in ["Emma", "Ulysses", "Persuasion"] * 8]
            print(f"{found[:3]} ... {len(found)} calls in {time.monotonic() - begin:.1f} s")
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main())
