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


def run(*arguments: str, encoding: str = "utf-8", folder: Path = ROOT, **environment: str) -> str:
    """What the interpreter prints, which must be in that encoding. It must succeed, and print no error."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": encoding, "AIORATE_PURE": "1", **environment},
        capture_output=True,
        encoding=encoding,
        timeout=LONG,
    )
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    return done.stdout


MODULES = """
import helpers.windows; helpers.windows.play()
import importlib, pathlib, aiorate
folder = pathlib.Path(aiorate.__file__).parent
for name in sorted(".".join(path.relative_to(folder.parent).with_suffix("").parts) for path in folder.rglob("*.py")):
    if not name.endswith("__main__"):
        importlib.import_module(name.removesuffix(".__init__"))
"""

DECISIONS = """
import helpers.windows; helpers.windows.play()
import asyncio, threading, time
import aiorate
from aiorate._tools.cli import STRATEGIES

assert time.get_clock_info("monotonic").resolution == 0.015625


async def main(limiter, count):
    assert type(asyncio.get_running_loop()).__name__ == "Proactor"
    assert type(asyncio.get_running_loop()._selector).__name__ == "SelectSelector"
    await asyncio.gather(*(limiter.acquire() for _ in range(count)))


for name, make in STRATEGIES.items():
    for precise in (False, True):
        limiter = aiorate.Limiter(make("20/s" if name == "CalendarWindow" else "10/10ms"), precise=precise and name == "TokenBucket")
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
"""

NO_ZONES = """
import sys, aiorate
sys.modules["tzdata"] = None
assert repr(aiorate.CalendarWindow("5/day", "UTC")) == "CalendarWindow('5/day', tz=UTC)"
try:
    aiorate.CalendarWindow("5/day", "Europe/Berlin")
except ValueError as error:
    print(error)
"""

INTERRUPTED = """
import _thread, signal, threading
import aiorate

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
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


def test_every_module_can_be_imported() -> None:
    """Also those of the adapters, the demo and Redis, whose libraries are there."""
    run("-W", "error", "-c", MODULES)


def test_the_core_decides_and_waits_without_what_posix_has() -> None:
    """Ten strategies under asyncio's default loop; `precise` falls back to the loop's timers; threads that block."""
    run("-W", "error", "-c", DECISIONS)


def test_no_extension_is_built_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compiler has no integers of 128 bits. The wheel is pure, and the build says nothing of it."""
    monkeypatch.delenv("AIORATE_PURE", raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    build = runpy.run_path(str(ROOT / "hatch_build.py"))
    for version in ("standard", "editable"):
        said, data = Mock(), {"force_include": {}}

        build["CustomBuildHook"](str(tmp_path), {}, None, None, str(tmp_path), "wheel", said).initialize(version, data)

        assert not build["SUPPORTED"]
        assert ({"force_include": {}}, []) == (data, said.mock_calls)


def test_without_time_zones_the_error_names_the_package() -> None:
    """Windows has none; `UTC` works all the same."""
    assert "pip install tzdata" in run("-W", "error", "-c", NO_ZONES, PYTHONTZPATH="")


def test_output_fits_terminals_of_few_characters(tmp_path: Path) -> None:
    """Windows writes cp1252 into a pipe: everything is ASCII."""
    (tmp_path / "größe→").write_text("".join(f"{number // 5}\n" for number in range(100)), encoding="utf-8")
    for encoding, arguments in (("cp1252", ("größe→", "--rate", "3/s")), ("ascii", ("größe→", "--rate", "3/s")), ("ascii", ("--help",))):
        assert run("-m", "aiorate", "simulate", *arguments, encoding=encoding, folder=tmp_path).isascii(), (encoding, arguments)


@pytest.mark.slow
def test_the_demo_fits_terminals_of_few_characters() -> None:
    assert "Kept" in run("-m", "aiorate", "demo", "--seconds", "0.5", encoding="cp1252")


def test_ctrl_c_that_interrupts_no_wait_is_heard_within_a_second() -> None:
    """A thread that waits for a lock hears Ctrl-C on Windows once the wait has ended."""
    assert run("-W", "error", "-c", INTERRUPTED) == "0\n"


@pytest.mark.slow
def test_all_tests_can_be_collected_where_posix_is_not() -> None:
    """A file that imports `resource` at its head, or needs uvloop, ends the whole run there."""
    run("-m", "pytest", "-p", "helpers.windows", "--collect-only", "-qq", "-n", "0", "-p", "no:cacheprovider", "-m", "slow or not slow")
