"""FastAPI applications with slowapi and with aiorate, asked without a server, and a clock for both. Needs slowapi."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fastapi
import httpx2
import pytest
import slowapi
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIMiddleware
from slowapi.util import get_remote_address

import aiorate
import aiorate.asgi
from aiorate.redis import RedisLimiter
from aiorate.testing import ManualClock, reset_limiters
from helpers.migrating import BEGINS, PAGES, HandTime, Side, ours

__all__ = ["FIVE", "PAGE", "Ask", "Both", "blocks", "run"]

PAGE = "slowapi"
FIVE = 'KeyedLimiter(lambda client: SlidingWindow("5/min"))'


@dataclass(frozen=True)
class Ask:
    """A request, ``at`` seconds after the first."""

    at: float = 0
    path: str = "/search"
    address: str = "192.0.2.1"
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)


def blocks() -> list[str]:
    """The programs of the page."""
    text = (PAGES / f"{PAGE}.md").read_text(encoding="utf-8")
    return re.findall(r"^```py(?:thon)?\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def run(program: str) -> tuple[dict[str, Any], str]:
    """Run a program of the page; its names, and what it prints."""
    names: dict[str, Any] = {"__name__": "page"}
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(program, "<a program>", "exec", dont_inherit=True), names)
    return names, printed.getvalue()


class Both:
    """An application with slowapi and one with aiorate, and their clocks, which move together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time, self.clock = HandTime(), ManualClock(BEGINS * 1_000_000_000)
        for module in ("limits.storage.memory", "limits.strategies", "slowapi.extension"):
            monkeypatch.setattr(f"{module}.time", self.time)
        with monkeypatch.context() as outside:
            outside.undo()
            limited = run(blocks()[1])[0]["limited"]
        common = {"FastAPI": fastapi.FastAPI, "Request": fastapi.Request, "__name__": "page"}
        self.theirs = Side(slowapi, get_remote_address=get_remote_address, **common)
        self.ours = ours(limited=limited, KeyedLimiter=self._keyed, RedisLimiter=RedisLimiter, reset_limiters=reset_limiters, **common)
        self.ours.names |= {name: getattr(aiorate.asgi, name) for name in aiorate.asgi.__all__}
        self.ours.names["CalendarWindow"] = partial(aiorate.CalendarWindow, origin=0)  # the clock is that of Unix time
        self.make_theirs("")
        self.ours.names["clients"] = self.ours.call(FIVE)

    def _keyed(self, factory: Callable[[Any], Any]) -> aiorate.KeyedLimiter[Any]:
        def make(key: Any) -> aiorate.Limiter:
            made = factory(key)
            return made if isinstance(made, aiorate.Limiter | RedisLimiter) else aiorate.Limiter(made, clock=self.clock)

        return aiorate.KeyedLimiter(make)

    def make_theirs(self, options: str, *, middleware: bool = False) -> None:
        """An application with a limiter of slowapi that has these options."""
        key = "" if options.startswith("key_func") else "key_func=get_remote_address, "
        app = self.theirs.names["app"] = fastapi.FastAPI()
        app.state.limiter = self.theirs.names["limiter"] = self.theirs.call(f"Limiter({key}{options})")
        app.add_exception_handler(RateLimitExceeded, slowapi._rate_limit_exceeded_handler)  # type: ignore[arg-type]  # as its users
        if middleware:
            app.add_middleware(SlowAPIMiddleware)

    def route(self, side: Side, decorator: str = "", options: str = "", *paths: str) -> None:
        """Routes with that decorator, or with those options of the route's own decorator."""
        side.names.setdefault("app", fastapi.FastAPI())
        for path in paths or ("/search", "/health"):
            above = f"@app.api_route({path!r}, methods=['GET', 'POST']{options})\n" + (f"{decorator}\n" if decorator else "")
            side.call(f"{above}async def {path.strip('/')}(request: Request): return 'ok'")

    def ours_in(self, middleware: str) -> None:
        """An application with that middleware around."""
        self.ours.names["app"] = fastapi.FastAPI()
        self.route(self.ours)
        self.ours.names["app"] = self.ours.call(middleware)

    def ask(self, *asks: Ask) -> tuple[list[Any], list[Any]]:
        """The answers of both to the same requests."""

        async def main() -> tuple[list[Any], list[Any]]:
            one: list[Any] = []
            other: list[Any] = []
            now = 0.0
            for ask in asks:
                self.time.sleep(ask.at - now)
                self.clock.advance(ask.at - now)
                now = ask.at
                for side, answers in ((self.theirs, one), (self.ours, other)):
                    transport = httpx2.ASGITransport(side.names["app"], client=(ask.address, 1))
                    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
                        answers.append(await client.request(ask.method, ask.path, headers=ask.headers))
            return one, other

        return asyncio.run(main())

    def agree(self, *asks: Ask, passed: int) -> None:
        """Both let the same requests pass."""
        one, other = ([answer.status_code for answer in answers] for answers in self.ask(*asks))
        assert one == other
        assert passed == one.count(200)
        assert len(asks) - passed == one.count(429)
