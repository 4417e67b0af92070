"""The program of examples/adapters/ for requests, with a server that enforces a limit."""

from __future__ import annotations

import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from helpers.driving import LONG, SECOND
from helpers.server import in_thread

from aiorate import Limiter, LineFull, TokenBucket

PROGRAM = Path(__file__).parents[2] / "examples" / "adapters" / "requests_session.py"


def program() -> dict[str, Any]:
    return runpy.run_path(str(PROGRAM))


def test_a_server_that_allows_ten_per_second_refuses_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight threads, fifteen requests: those of the program as it stands.

    A busy machine may delay a request for longer than the margin: up to three tries.
    """
    for _ in range(3):
        with in_thread() as server:
            server.enforce(10, 1.0, sliding=True)
            program()["main"](server.url)
        assert len(server.arrivals) == 15 + server.refused
        if "0 refused" in capsys.readouterr().out and not server.refused:
            return
    pytest.fail("the server refused requests, three times")


def test_a_429_pauses_every_thread_and_is_sent_again() -> None:
    """The first answer asks for half a second: the requests after it keep to that, and the first comes again."""
    made = program()
    with in_thread() as server:
        server.answers((429, {"Retry-After": "0.5"}))
        with made["make_session"]() as session:
            assert 429 == session.get(server.url, timeout=LONG).status_code
        with ThreadPoolExecutor(3) as threads:
            answers = list(threads.map(made["get"], [server.url] * 3))

    assert [200] * 3 == [answer.status_code for answer in answers]
    first, *later = (arrival.instant for arrival in server.arrivals)
    assert min(later) - first >= 0.5 * SECOND


def test_a_redirect_pays_again() -> None:
    """The server counts it."""
    made = program()
    with in_thread() as server, made["make_session"]() as session:
        assert 200 == session.get(f"{server.url}/redirect/2", timeout=LONG).status_code

    assert 3 == made["limiter"].statistics().granted == len(server.arrivals)


def test_the_errors_of_a_limiter_reach_the_caller() -> None:
    """Nothing is sent once the line is full."""
    limiter = Limiter(TokenBucket("1/min", burst=1), max_waiting=0, scope="process")
    with in_thread() as server, requests.Session() as session:
        session.mount("http://", program()["LimitedAdapter"](limiter))
        session.get(server.url, timeout=LONG)
        with pytest.raises(LineFull):
            session.get(server.url, timeout=LONG)

    assert 1 == len(server.arrivals)
