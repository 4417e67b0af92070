"""A signal handler that raises, at any instant of aiorate's code at which CPython would run one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import aiorate

ROOT = str(Path(aiorate.__file__).parent)
TOOLS = str(Path(aiorate.__file__).parent / "testing")
ENTRY_IS_GUARDED = sys.version_info >= (3, 15)  # it reports the entry into a with block as a call, but runs no signal handler after it


class Alarm(Exception):
    """What a handler of SIGALRM raises."""


class Interrupt:
    """A profile function that raises at one instant of aiorate's code, counted from 1."""

    def __init__(self, instant: int, error: type[BaseException]) -> None:
        self.left = instant
        self.error = error
        self.where = ""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        path = frame.f_code.co_filename
        if not path.startswith(ROOT) or path.startswith(TOOLS):
            return
        blocks = event == "c_call" and frame.f_code.co_name == "wait_blocking"
        if event in ("call", "c_return") and not (ENTRY_IS_GUARDED and getattr(arg, "__name__", "") == "__enter__"):
            self.left -= 1
        if not self.left or blocks:
            self.left = 0
            self.where = "blocked" if blocks else f"{Path(path).name}:{frame.f_lineno}, {event} in {frame.f_code.co_name}"
            raise self.error

    def run(self, action: Callable[[], object]) -> bool:
        """Run the action. False: it ended or blocked before that instant."""
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            with suppress(BaseException):
                action()
        finally:
            sys.setprofile(before)
        return self.where not in ("", "blocked")
