"""The program of examples/adapters/ for several workers: a real gunicorn, whose workers share a real store."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from helpers.driving import LONG
from helpers.stores import RealServer

ROOT = Path(__file__).parents[2]


@contextmanager
def gunicorn(store: str, *options: str) -> Iterator[str]:
    """Three workers of four threads each, and the URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "REDIS": store, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "gunicorn", "-w", "3", "--threads", "4", "-b", f"127.0.0.1:{port}", "--log-level", "error"]
    server = subprocess.Popen([*command, *options, "flask_workers:app"], cwd=ROOT / "examples" / "adapters", env=environment)
    try:
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/items"
    finally:
        server.terminate()
        server.wait(LONG)


@pytest.mark.parametrize("options", [(), ("--preload",)], ids=["", "preload"])
def test_workers_of_gunicorn_share_one_limit(store: RealServer, options: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    """Ten of thirty at once are served, by several workers: the app was forked before or after its limiters were made."""
    begin = time.monotonic()
    with gunicorn(store.url, *options) as url, ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(lambda _: requests.get(url, timeout=LONG), range(30)))
        more = int((time.monotonic() - begin) / 6)  # one comes back each 6 s

    statuses = Counter(answer.status_code for answer in answers)
    assert {200, 429} == set(statuses)
    assert 10 <= statuses[200] <= 10 + more
    assert all(1 <= int(answer.headers["Retry-After"]) <= 60 for answer in answers if answer.status_code == 429)
    assert "" == capfd.readouterr().err
