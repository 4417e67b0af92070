"""What only some platforms have: the marks that skip a test elsewhere, each with its reason."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from pathlib import Path
from time import get_clock_info

import pytest

from aiorate._loops import kernel_timer


def _has_kernel_timers() -> bool:
    try:
        os.close(kernel_timer.create())
    except (OSError, AttributeError, NotImplementedError):  # as KernelTimers.add()
        return False
    return True


KERNEL_TIMERS = _has_kernel_timers()

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork() does not exist here")
needs_signals = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the signals of POSIX do not exist here")
"""SIGKILL and SIGUSR1, and SIGINT for another process or for one thread."""
needs_kernel_timers = pytest.mark.skipif(not KERNEL_TIMERS, reason="only Linux has kernel timers (timerfd)")
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells the children of a process (/proc)")
needs_terminals = pytest.mark.skipif(find_spec("termios") is None, reason="the terminals of POSIX (termios) do not exist here")
needs_uvloop = pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not installed; it does not exist for Windows")
needs_fine_clock = pytest.mark.skipif(get_clock_info("monotonic").resolution > 0.001, reason="needs a clock finer than a millisecond")
