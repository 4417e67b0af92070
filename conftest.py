"""Runs the Python blocks of README.md and docs/, so that what they say is true.

A block may await at its top level, and the tests it defines are run. The blocks of one page share names and an event loop in
virtual time, where a wait of a minute takes none. A block that speaks of ``https://api.example.com`` or ``server_url`` runs in
real time instead, and finds a local server there.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import threading
from types import FunctionType
from typing import TYPE_CHECKING, Any

from sybil import Sybil
from sybil.evaluators.python import pad
from sybil.parsers.myst import CodeBlockParser

from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from sybil import Example

EXAMPLE_URL = "https://api.example.com"


class Page:
    """What the blocks of one page share: two loops and, once a block needs it, a server."""

    def __init__(self) -> None:
        self.virtual = asyncio.Runner(loop_factory=VirtualLoop)
        self.real = asyncio.Runner()
        self._server: Server | None = None

    def server(self) -> Server:
        if self._server is None:
            self._server = Server()
        return self._server

    def close(self) -> None:
        self.virtual.close()
        self.real.close()
        if self._server is not None:
            self._server.close()


class Server:
    """An HTTP server in a thread of its own that answers every request with ``ok``."""

    def __init__(self) -> None:
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        if not self._ready.wait(300):
            raise RuntimeError("the server of the documents did not start")

    async def _serve(self) -> None:
        from aiohttp import web
        from aiohttp.test_utils import TestServer

        async def answer(request: web.Request) -> web.Response:
            return web.Response(text="ok")

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        async with TestServer(app) as server:
            self.url = str(server.make_url("")).rstrip("/")
            self._ready.set()
            await self._over.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()


def evaluate(example: Example) -> None:
    """Run one block."""
    page: Page = example.document.namespace["__page__"]
    source = str(example.parsed)
    on_the_wire = EXAMPLE_URL in source or "server_url" in source
    if on_the_wire:
        example.namespace["server_url"] = page.server().url
        source = source.replace(EXAMPLE_URL, page.server().url)
    tests = [node.name for node in ast.parse(source).body if getattr(node, "name", "").startswith("test_")]
    padded = pad(source, example.line + example.parsed.line_offset)
    code = compile(padded, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    block = FunctionType(code, example.namespace)

    async def run() -> None:
        for step in (block, *tests):
            result: Any = example.namespace[step]() if isinstance(step, str) else step()
            if inspect.isawaitable(result):
                await result

    if "asyncio.run(" in source or "asyncio.Runner(" in source:
        block()  # it brings its own loop
    else:
        (page.real if on_the_wire else page.virtual).run(run())


def begin(namespace: dict[str, Any]) -> None:
    """Before the first block of a page."""
    namespace["__page__"] = Page()
    namespace["__name__"] = "__page__"


def end(namespace: dict[str, Any]) -> None:
    """After its last."""
    namespace["__page__"].close()


pytest_collect_file = Sybil(
    parsers=[CodeBlockParser(language="python", evaluator=evaluate)],
    patterns=["README.md", "docs/*.md"],
    setup=begin,
    teardown=end,
).pytest()
