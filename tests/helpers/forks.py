"""Programs that fork, each in its own process, so that a fork never meets the event loop of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import aiorate

PRELUDE = """
import asyncio, multiprocessing, os, sys, threading, traceback, warnings
from concurrent.futures import ProcessPoolExecutor
import aiorate

warnings.simplefilter("ignore", DeprecationWarning)  # forking a program with threads, as executors do


def in_child(function):
    # Run it in a forked process, to its end; only its output comes back.
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        try:
            function()
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert status == 0, "the child failed"


def in_line(limiter, count):
    while limiter.statistics().waiting != count:
        threading.Event().wait(0.001)
"""


def program(source: str, **values: object) -> str:
    """Run the program with these values as constants, and return its output; an error if it fails or does not end."""
    constants = "".join([f"{name} = {value!r}\n" for name, value in values.items()])
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + constants + source],
        env={**os.environ, "PYTHONPATH": str(Path(aiorate.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout
