"""Event loops in virtual time whose clocks, timers and waits are those of other platforms.

The machine's monotonic clock is virtual too, so that a limiter goes by it as it does in production: its meter may be open.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

TICK = 15_625_000
_START = 12_345 * TICK


@dataclass(frozen=True)
class Platform:
    """What differs from Linux. Durations are in ns."""

    clock: int
    """The clock moves in steps of this; asyncio runs timers up to this early."""
    wait: int
    """A wait ends at a multiple of this, counted as the system does: from the last multiple."""
    late: int = 0
    """A wait ends up to this late: a tenth of its length, as with timers that the system coalesces."""


PLATFORMS = {
    "linux": Platform(clock=1, wait=1_000_000),
    # GetTickCount64() below Python 3.13, and waits of the I/O completion port, which end at a tick of the scheduler.
    "windows": Platform(clock=TICK, wait=TICK),
    # Another program, such as a browser, has set the scheduler to 1 ms: waits are short, and the clock still stands.
    "windows-fine-waits": Platform(clock=TICK, wait=1_000_000),
    # Python 3.13 reads the performance counter.
    "windows-3.13": Platform(clock=100, wait=TICK),
    "macos": Platform(clock=1, wait=1_000, late=8_000_000),
}


class _Waits(selectors.SelectSelector):
    """Without epoll or kqueue, as on Windows. A wait moves the virtual clock, and takes no time."""

    loop: PlayedLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        self.loop.iterations += 1
        if ready or timeout == 0:
            self.loop.true += self.loop.step
            return ready
        assert timeout is not None, "nothing is left to wait for"
        self.loop.wait(timeout)
        return ready


class PlayedLoop(asyncio.SelectorEventLoop):
    """``true`` is the virtual time in ns; ``time()``, and the monotonic clock, show the last tick of it."""

    step = 10_000
    """What an iteration of the loop takes, ns."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.true = _START
        self.iterations = 0
        self.waits = 0
        selector = _Waits()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = platform.clock / 1e9

    def reading(self) -> int:
        """What the machine's clock shows, in ns."""
        return self.true // self.platform.clock * self.platform.clock

    def wait(self, seconds: float) -> None:
        """Move on to the end of a wait of that length, which the system counts in whole ms."""
        asked = -(-round(seconds * 1e9) // 1_000_000) * 1_000_000
        grain = self.platform.wait
        begun = self.true // grain * grain
        end = -(-(begun + asked) // grain) * grain + min(asked // 10, self.platform.late)
        self.waits += 1
        self.true = max(self.true + 1, end)


@contextmanager
def played(platform: Platform) -> Iterator[PlayedLoop]:
    """The loop, by whose clock the machine's monotonic clock goes meanwhile."""
    loop = PlayedLoop(platform)
    clock = SimpleNamespace(monotonic=lambda: loop.reading() / 1e9)
    try:
        with ExitStack() as patches:
            patches.enter_context(patch.object(asyncio.base_events, "time", clock))
            for name, module in list(sys.modules.items()):
                if name.startswith("aiorate") and getattr(module, "monotonic_ns", None) is monotonic_ns:
                    patches.enter_context(patch.object(module, "monotonic_ns", loop.reading))
            yield loop
    finally:
        loop.close()
