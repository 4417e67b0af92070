"""The demo: its parts, in this process, and short runs as users start it."""

from __future__ import annotations

import asyncio
import copy
import io
import os
import re
import runpy
import signal
import socket
import subprocess
import sys

import aiohttp
import pytest
from helpers.driving import LONG
from helpers.platforms import needs_signals
from helpers.strategies import EACH

import aiorate
from aiorate._demo import load as _demo_load
from aiorate._demo import run as _demo
from aiorate._demo import server as _demo_server
from aiorate._demo.children import NEW_GROUP, new_group
from aiorate._demo.strategies import NAMES, make

ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")}


# The parts.


@pytest.mark.parametrize("name", EACH)
def test_noting_grants_changes_nothing_else(name: str) -> None:
    """The demo must measure the strategy that users get, with the same driver and optional attributes."""
    plain, noted, grants = EACH[name](), EACH[name](), []
    kind = type(noted)
    noted = _demo_load.noting(noted, grants)
    expected = []

    for now in range(0, 2_000_000_000, 7_000_000):
        at = plain.take(1, now)
        assert at == noted.take(1, now)
        expected += [now] * (at <= now)

    assert expected == grants
    assert isinstance(noted, kind)
    assert repr(plain) == repr(noted)
    assert hasattr(plain, "books_since") == hasattr(noted, "books_since")
    twin = copy.deepcopy(noted)  # planning grants nothing
    twin.take(1, 9_000_000_000)
    twin.give_back(1, 9_000_000_000)
    assert expected == grants
    noted.take(1, 9_000_000_000)
    noted.give_back(1, 9_000_000_000)
    assert expected == grants  # granted and not used is not granted


@pytest.mark.parametrize("name", NAMES)
def test_every_grant_of_a_limiter_is_noted(name: str) -> None:
    """Also if the limiter takes many permits at once and counts down, or gives unused ones back."""
    limiter = _demo_load.WatchedLimiter(make(name, aiorate.Rate(100_000_000), origin=0))

    kept = sum(limiter.try_acquire() for _ in range(20_000))

    assert limiter.statistics().granted == kept
    assert len(limiter.grants) == kept
    assert sorted(limiter.grants) == limiter.grants


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_can_be_made_for_any_rate(name: str) -> None:
    """Parameters are derived from the rate: a slow rate must not give a burst of 0."""
    for text in ("100000/s", "500/s", "1/min", "10000/day"):
        scheduler = make(name.lower(), aiorate.Rate.parse(text))

        assert name == type(scheduler).__name__
        assert aiorate.Rate.parse(text) == scheduler.rate
        assert scheduler.take(1, 1_000) <= 1_000


def test_an_unknown_strategy_is_refused_with_the_list() -> None:
    """Nobody remembers all ten."""
    with pytest.raises(ValueError, match=r"'Leaky' is not a strategy; there are TokenPool, .*CalendarWindow"):
        make("Leaky", aiorate.Rate(1))


@pytest.mark.asyncio
async def test_the_server_notes_each_arrival_once() -> None:
    """It says where it listens. The figures of the demo come from these instants alone."""
    say, begun, done = io.StringIO(), asyncio.Event(), asyncio.Event()

    async def until() -> None:
        begun.set()
        await done.wait()

    task = asyncio.create_task(_demo_server.serve(0, say, until))
    await begun.wait()
    url = say.getvalue().replace("port ", "http://127.0.0.1:").strip()
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.get(url) as response:
                assert await response.text() == "ok"

    arrivals = await _demo_server.fetch_arrivals(url)

    assert len(arrivals) == 3
    assert sorted(arrivals) == arrivals
    assert await _demo_server.fetch_arrivals(url) == []
    done.set()
    assert await task == 0


def test_the_server_ends_when_its_input_does(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """However the demo ends, even killed, no process stays behind."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sys, "argv", ["server", "0"])
    monkeypatch.delitem(sys.modules, _demo_server.__name__)

    with pytest.raises(SystemExit) as stop:
        runpy.run_module(_demo_server.__name__, run_name="__main__")

    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("port ")


@pytest.mark.asyncio
async def test_a_server_that_cannot_listen_says_why() -> None:
    """A port in use is a message, not a traceback."""
    say = io.StringIO()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        code = await _demo_server.serve(taken.getsockname()[1], say, asyncio.Event().wait)

    assert code == 2
    assert "cannot listen on port" in say.getvalue()
    assert "in use" in say.getvalue()


# Whole runs.


@pytest.mark.slow
def test_a_short_run_keeps_the_guarantee(capsys: pytest.CaptureFixture[str]) -> None:
    """The main job on real requests, in this process. It does not check how many a busy machine sends."""
    code = _demo.run(aiorate.Rate.parse("200/s"), "TokenBucket", seconds=0.5, clients=6, port=0)

    shown = capsys.readouterr().out
    assert code == 0
    delivered = float(re.search(r"delivered rate.* ([0-9.]+)/s \(", shown)[1])  # type: ignore[index]
    assert 0 < delivered <= 248  # a bucket of 20, and 200/s for 0.52 s
    assert shown.count("kept") == 3
    assert re.search(r"waits p50 +- +[0-9.]+ ms", shown)
    assert "BROKEN" not in shown


@pytest.mark.slow
def test_a_limiter_that_grants_too_much_is_caught(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The check can fail: this strategy never refuses, and promises the bound of a bucket."""

    class Generous(aiorate.BurstCompensation):
        def take(self, permits: int, now: int, since: int | None = None) -> int:
            return now

        peek = take

    monkeypatch.setattr(_demo, "make", lambda name, rate: Generous(rate))

    code = _demo.run(aiorate.Rate.parse("1/s"), "TokenBucket", seconds=0.5, clients=4, port=0)

    assert code == 1
    assert "BROKEN" in capsys.readouterr().out


@pytest.mark.slow
def test_failed_requests_are_not_a_success(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without arrivals no guarantee is broken, which must not count as kept."""

    async def elsewhere(url: str, *arguments: object) -> None:
        await _demo_load.run_load(url + "/nowhere", *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(_demo, "run_load", elsewhere)

    code = _demo.run(aiorate.Rate.parse("20/s"), "TokenPool", seconds=0.2, clients=2, port=0)

    assert code == 2
    assert "requests failed" in capsys.readouterr().err


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The message comes from the server's process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        code = _demo.run(aiorate.Rate(20), "TokenPool", seconds=0.2, clients=2, port=port)

    assert code == 2
    assert f"cannot listen on port {port}" in capsys.readouterr().err


def test_a_rate_that_the_strategy_cannot_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started."""
    assert _demo.run(aiorate.Rate.parse("3/7s"), "CalendarWindow", seconds=1, clients=2, port=0) == 2
    assert "divide a day" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_in_a_pipe_prints_plain_text() -> None:
    """And exits with 0. As users and their scripts start it."""
    command = [sys.executable, "-m", "aiorate", "demo", "--rate", "200/s", "--seconds", "1"]

    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=LONG)

    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    words = " ".join(done.stdout.split())
    rates = re.search(r"delivered rate ([\d.]+)/s ([\d.]+)/s", words)
    counts = re.search(r"requests by httpx2 (\d+) (\d+) requests by aiohttp (\d+) (\d+)", words)
    worst = re.search(r" 1 s (\d+) (\d+) (\d+) (\d+) kept", words)
    assert rates is not None
    assert counts is not None
    assert worst is not None
    assert 0 < float(rates[2]) <= 206
    assert min(map(int, counts.groups())) > 0
    granted, guarantee, arrived, allowed = map(int, worst.groups())
    assert granted <= guarantee == 206  # a pool of 2, and 200/s for 1.02 s
    assert arrived <= allowed


@pytest.mark.slow
@needs_signals
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_it_without_a_traceback() -> None:
    """Also with requests in line and under way; the server's process ends too."""
    command = [sys.executable, "-m", "aiorate", "demo", "--rate", "20/s", "--seconds", "30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any("with the limiter" in line for line in process.stdout)

        process.send_signal(signal.SIGINT)

        assert process.stderr.read() == "interrupted\n"
        process.stdout.read()
        assert process.wait(LONG) == 130


@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error() -> None:
    """As in ``demo | head -1``: neither a traceback nor 1, which says that the guarantee was broken."""
    command = [sys.executable, "-m", "aiorate", "demo", "--seconds", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()

        assert process.stderr.read() == ""
        assert process.wait(LONG) == 141


def test_ctrl_c_reaches_no_child_process() -> None:
    """Each system has another way for that: Windows ignores the one of POSIX, and the child printed a traceback."""
    assert new_group("nt") == getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200)
    assert new_group("posix") == 0
    assert new_group(os.name) == NEW_GROUP
