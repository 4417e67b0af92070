"""A process-wide limiter for tests, and the kinds of loops."""

from __future__ import annotations

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
