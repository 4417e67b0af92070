"""The programs of examples/adapters/ for Flask and Django: exact limits for each client, from any number of threads."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import requests
from helpers.driving import LONG
from werkzeug.serving import make_server

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.testing import ManualClock

EXAMPLES = Path(__file__).parents[2] / "examples" / "adapters"
Program = Callable[[str], ModuleType]


def by_hand(clock: ManualClock) -> KeyedLimiter[str]:
    """The limit of the programs, with a clock that stands still."""
    return KeyedLimiter(lambda address: Limiter(TokenBucket("5/s", burst=10), clock=clock, scope="process"), scope="process")


@pytest.fixture(scope="module")
def django_is_set_up() -> None:
    """Once for the run: Django's settings belong to the process."""
    import django
    from django.conf import settings

    settings.configure(ROOT_URLCONF="django_site", MIDDLEWARE=["django_site.rate_limit"], ALLOWED_HOSTS=["*"], SECRET_KEY="none")
    django.setup()


class Asking:
    """A site, asked without a server: status and Retry-After of one request from an address."""

    def __init__(self, program: Program, framework: str, clock: ManualClock) -> None:
        self.module = program({"flask": "flask_app", "django": "django_site"}[framework])
        self.module.clients = by_hand(clock)  # type: ignore[attr-defined]
        self.wsgi = self.module.app if framework == "flask" else self._django()
        self.ask = getattr(self, framework)

    def _django(self) -> Any:
        from django.core.wsgi import get_wsgi_application

        return get_wsgi_application()

    def flask(self, address: str = "192.0.2.1") -> tuple[int, str | None]:
        answer = self.module.app.test_client().get("/items", environ_base={"REMOTE_ADDR": address})
        return answer.status_code, answer.headers.get("Retry-After")

    def django(self, address: str = "192.0.2.1") -> tuple[int, str | None]:
        from django.test import Client

        answer = Client().get("/items", REMOTE_ADDR=address)
        return answer.status_code, answer.headers.get("Retry-After")


@pytest.fixture(params=["flask", "django"])
def framework(request: pytest.FixtureRequest) -> str:
    if request.param == "django":
        request.getfixturevalue("django_is_set_up")
    return str(request.param)


@contextmanager
def serving(wsgi: Any) -> Iterator[str]:
    """A real server with a thread for each request."""
    server = make_server("127.0.0.1", 0, wsgi, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/items"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_client_is_served_when_it_was_told(program: Program, framework: str) -> None:
    """Not a nanosecond earlier; whole seconds are rounded up."""
    clock = ManualClock()
    site = Asking(program, framework, clock)

    served = [site.ask() for _ in range(10)]
    refused = site.ask()
    clock.advance(0.199999999)
    early = site.ask()
    clock.advance(0.000000001)

    assert [(200, None)] * 10 == served
    assert (429, "1") == refused == early
    assert (200, None) == site.ask()


def test_each_client_has_a_separate_limit(program: Program, framework: str) -> None:
    """One that sends too much delays nobody else."""
    site = Asking(program, framework, ManualClock())

    statuses = [site.ask("192.0.2.1")[0] for _ in range(12)]

    assert {200: 10, 429: 2} == Counter(statuses)
    assert (200, None) == site.ask("192.0.2.2")


def test_threads_share_the_limit_of_a_client(program: Program, framework: str) -> None:
    """Thirty requests at once through a real server: exactly ten are served."""
    site = Asking(program, framework, ManualClock())

    with serving(site.wsgi) as url, ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(lambda _: requests.get(url, timeout=LONG).status_code, range(30)))

    assert {200: 10, 429: 20} == Counter(statuses)


def test_django_under_asgi_has_the_same_limit(program: Program, django_is_set_up: None) -> None:
    """The middleware never waits, so it may run beside an event loop."""
    Asking(program, "django", ManualClock())
    from django.test import AsyncClient

    async def main() -> list[int]:
        answers = await asyncio.gather(*(AsyncClient().get("/items") for _ in range(12)))
        return [answer.status_code for answer in answers]

    assert {200: 10, 429: 2} == Counter(asyncio.run(main()))


def test_calls_of_flask_to_another_api_wait_in_line(program: Program) -> None:
    """`with` blocks the thread of the request until its permit."""
    site = Asking(program, "flask", ManualClock())

    with serving(site.wsgi) as url, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: requests.get(url, timeout=LONG), range(10)))

    assert 10 == site.module.upstream.statistics().granted


@pytest.mark.parametrize("name", ["flask_app", "django_site"])
def test_the_program_prints_what_it_did(name: str) -> None:
    """As its users start it."""
    done = subprocess.run([sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, timeout=LONG)

    assert re.fullmatch(r"Counter\({200: 1[0-2](, 429: [12])?}\)\n", done.stdout)  # more on a slow machine
    assert 0 == done.returncode
