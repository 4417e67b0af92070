"""A process-wide limiter, and tasks of closed loops."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import aiorate
from aiorate.testing import ManualClock
from helpers.threads import KINDS

EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def made(clock: ManualClock | None = None, rate: str = "10/s", **options: Any) -> aiorate.Limiter:
    """A process-wide limiter whose first permit is taken."""
    limiter = aiorate.Limiter(aiorate.TokenBucket(rate, burst=1), scope="process", clock=clock, **options)
    assert limiter.try_acquire()
    return limiter


def forget(tasks: list[Any]) -> None:
    """Let tasks of a closed loop be collected, without asyncio's log record."""
    for task in tasks:
        task._log_destroy_pending = False  # the flag that asyncio itself uses
    tasks.clear()
    gc.collect()
