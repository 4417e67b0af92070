"""What slows a run down on purpose: busy processes beside it, and a hook that traces every call."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["slowed"]

# Ends with its parent, even if that is killed.
_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"


@contextmanager
def slowed(beside: int, traced: bool) -> Iterator[None]:
    """Keep that many processes busy, and have the interpreter call an empty function at each call and return in this thread."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY, str(os.getpid())]) for _ in range(beside)]
    before = sys.getprofile()
    try:
        if traced:
            sys.setprofile(_nothing)
        yield
    finally:
        sys.setprofile(before)
        for each in busy:
            each.kill()
            each.wait()


def _nothing(frame: FrameType, event: str, argument: object) -> None:
    return None
