"""The library and its tests on a system without fork, kernel timers, POSIX signals, epoll, time zones, or a fine clock: played Windows."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers.driving import LONG

import aiorate

ROOT = Path(aiorate.__file__).parents[1]

PLAY = "import helpers.windows; helpers.windows.play()\n"

MODULES = """
import importlib, pathlib, aiorate
folder = pathlib.Path(aiorate.__file__).parent
names = {".".join(path.relative_to(folder.parent).with_suffix("").parts) for path in folder.rglob("*.py")}
for name in sorted(names):
    if not name.endswith(("__main__", "_demo.member")):
        importlib.import_module(name.removesuffix(".__init__"))
"""

DECISIONS = """
import asyncio, threading, time
import aiorate
from aiorate.testing import ManualClock

assert time.get_clock_info("monotonic").resolution == 0.015625
schedulers = [
    aiorate.TokenPool("1000/s"), aiorate.TicksAccumulator("1000/s"), aiorate.BurstCompensation("1000/s"),
    aiorate.BurstRatio("1000/s", ratio=1.5), aiorate.SmoothBursty("1000/s"), aiorate.SmoothWarmingUp("1000/s", warmup=0.01),
    aiorate.TokenBucket("1000/s", burst=1), aiorate.SlidingWindow("10/10ms"), aiorate.CalendarWindow("20/s", "UTC"),
    aiorate.AllOf(aiorate.TokenBucket("1000/s", burst=1), aiorate.SlidingWindow("1000/s")),
]
assert len({type(each) for each in schedulers}) == 10


async def main(limiter, count):
    assert type(asyncio.get_running_loop()).__name__ == "Proactor"
    assert type(asyncio.get_running_loop()._selector).__name__ == "SelectSelector"
    await asyncio.gather(*(limiter.acquire() for _ in range(count)))


for scheduler in schedulers:
    for precise in (False, True) if isinstance(scheduler, aiorate.TokenBucket) else (False,):
        limiter = aiorate.Limiter(scheduler if not precise else aiorate.TokenBucket("1000/s", burst=1), precise=precise)
        asyncio.run(main(limiter, 20))
        assert limiter.statistics().granted == 20

shared = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=1), scope="process", precise=True)
threads = [threading.Thread(target=shared.acquire_blocking) for _ in range(5)]
for thread in threads:
    thread.start()
asyncio.run(main(shared, 5))
for thread in threads:
    thread.join()
assert shared.statistics().granted == 10
print("done")
"""


def run_python(program: str, **environment: str) -> str:
    """What the program prints. It must succeed, without a warning."""
    return run("-W", "error", "-c", program, **environment)


def run(*arguments: str, **environment: str) -> str:
    """What the interpreter prints. It must succeed."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8", "AIORATE_PURE": "1", **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=LONG,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def test_every_module_can_be_imported() -> None:
    """Also those of the adapters, the demo and Redis, whose libraries are there."""
    run_python(PLAY + MODULES)


def test_the_core_decides_and_waits_without_what_posix_has() -> None:
    """Ten strategies under asyncio's default loop; `precise` falls back to the loop's timers; threads that block."""
    assert run_python(PLAY + DECISIONS) == "done\n"


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_no_extension_is_built_on_windows(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compiler has no integers of 128 bits. The wheel is pure, and the build says nothing of it."""
    monkeypatch.delenv("AIORATE_PURE", raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    build = runpy.run_path(str(ROOT / "hatch_build.py"))
    said = Mock()
    hook = build["CustomBuildHook"](str(tmp_path), {}, None, None, str(tmp_path), "wheel", said)
    data: dict[str, object] = {"force_include": {}}

    hook.initialize(version, data)

    assert not build["SUPPORTED"]
    assert ({"force_include": {}}, []) == (data, said.mock_calls)


NO_ZONES = """
import sys, aiorate
sys.modules["tzdata"] = None
assert repr(aiorate.CalendarWindow("5/day", "UTC")) == "CalendarWindow('5/day', tz='UTC', used=0)"
try:
    aiorate.CalendarWindow("5/day", "Europe/Berlin")
except ValueError as error:
    print(error)
"""


def test_without_time_zones_the_error_names_the_package() -> None:
    """Windows has none; `UTC` works all the same. The hint was to write the very name that was refused."""
    said = run_python(NO_ZONES, PYTHONTZPATH="")

    assert said == (
        "CalendarWindow(tz='Europe/Berlin'): no time zones are installed here. Install them: pip install tzdata. 'UTC' works without.\n"
    )


COMMANDS = {
    "simulate": ["simulate", "--requests", "3"],
    "help": ["simulate", "--help"],
    "log": ["simulate", "--arrivals", "größe→.csv", "--rate", "5/s"],
    "json": ["simulate", "--arrivals", "größe→.csv", "--rate", "5/s", "--json", "--key", "user"],
    "suggest": ["simulate", "--arrivals", "größe→.csv", "--rate", "5/s", "--suggest", "p99=1s"],
}


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
@pytest.mark.parametrize("command", COMMANDS)
def test_output_fits_terminals_of_few_characters(command: str, encoding: str, tmp_path: Path) -> None:
    """Windows writes cp1252 into a pipe: what it lacks is replaced, and a plot is left out."""
    rows = "".join(f"{1_714_564_800 + number // 5},ann→{number % 3}\n" for number in range(100))
    (tmp_path / "größe→.csv").write_text(f"time,user\n{rows}", encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "aiorate", *COMMANDS[command]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=LONG,
        check=False,
    )

    assert (0, b"") == (done.returncode, done.stderr)
    assert done.stdout.decode(encoding)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_the_demo_fits_terminals_of_few_characters(encoding: str) -> None:
    """Its tables and its plot are drawn with the characters that there are."""
    done = subprocess.run(
        [sys.executable, "-m", "aiorate", "demo", "--seconds", "0.5"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=LONG,
        check=False,
    )

    assert (0, b"") == (done.returncode, done.stderr)
    assert "Kept" in done.stdout.decode(encoding)


SPAWNED = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import aiorate

limiter = aiorate.Limiter(aiorate.TokenBucket("2/day", burst=2), scope="process")


def take(count):
    return [limiter.try_acquire() for _ in range(count)]


def hand(other):
    return other.try_acquire()


if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as workers:
        assert take(1) == [True]
        print(workers.submit(take, 3).result())
        try:
            workers.submit(hand, limiter).result()
        except TypeError as error:
            print(error)
"""


def test_a_spawned_process_makes_its_own_limiter(tmp_path: Path) -> None:
    """The only way to start processes on Windows: the child imports the module again, and no limiter can be sent to it."""
    path = tmp_path / "spawned.py"
    path.write_text(SPAWNED, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )

    own, refused = done.stdout.splitlines()
    assert (0, "[True, True, False]") == (done.returncode, own)
    assert "create another" in refused


INTERRUPTED = """
import _thread, threading
import aiorate

limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1), scope="process")
assert limiter.try_acquire()


def interrupt():
    while not limiter.statistics().waiting:
        threading.Event().wait(0.001)
    _thread.interrupt_main()  # no system call is interrupted, as on Windows


threading.Thread(target=interrupt).start()
try:
    limiter.acquire_blocking()
except KeyboardInterrupt:
    print(limiter.statistics().waiting)
"""


def test_ctrl_c_that_interrupts_no_wait_is_heard_within_a_second() -> None:
    """A thread that waits for a lock hears Ctrl-C on Windows once the wait has ended."""
    assert run_python(INTERRUPTED) == "0\n"


@pytest.mark.slow
def test_all_tests_can_be_collected_where_posix_is_not() -> None:
    """A file that imports `resource` at its head, or needs uvloop, ends the whole run there."""
    run("-m", "pytest", "-p", "helpers.windows", "--collect-only", "-qq", "-n", "0", "-p", "no:cacheprovider", "-m", "slow or not slow")
