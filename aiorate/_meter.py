"""The meter takes a permit that lies ready in one call, which reads the clock, compares and adds.

For single permits, four strategies are a straight line: a bucket, a pool with burst ratio 1, the ticks accumulator, and burst compensation
with a strictness of 0 or 1. A permit is due at an instant, the next one some ticks (`Rate._ticks`) later, and of the time that it lies idle
so much is kept and the rest cut off. The scheduler keeps that instant in its meter and nowhere else.

The meter that is compiled from ``_cmeter.c`` does the same, several times faster. It is optional, and the environment variable
``AIORATE_PURE=1`` leaves it out.
"""

from __future__ import annotations

import copyreg
from contextlib import suppress
from math import inf
from os import environ
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    Take = Callable[[int, int, int | None], int]


FAR = 1 << 62  # an instant that no clock reaches, in ns
ENDLESS = inf  # what is kept where nothing is cut off
NO_LINE = -inf  # the same where the line is not straight, and no grab succeeds


class PureLoopCheck:
    """Whether an event loop was seen to run its other tasks: one for all meters of the loop."""

    __slots__ = ("thread", "try_until", "until")

    def __init__(self) -> None:
        self.until: int = 0  # the clock's reading before which nobody needs to ask; 0: everybody has to
        self.try_until: int = 0
        """The same for callers that cannot let the loop turn, and only need to know that it is this one."""
        self.thread: int = 0  # the only thread for which this holds, which runs the loop; 0: any thread


class PureMeter:
    """A straight line of permits, one due every ``cost`` ticks. Shut at first: `until` opens it."""

    __slots__ = ("above", "ask", "check", "cut", "due", "grabs", "last", "numbers", "offset", "peak", "read", "since", "until")

    def __init__(self, ask: Take | None = None) -> None:
        self.numbers: tuple[int, int, Any] = (1, 1, NO_LINE)
        """`unit`, `cost` and `kept`: ticks of a nanosecond, ticks from one permit to the next, and how many of the ticks for which a permit
        lies idle count: `ENDLESS` for all, `NO_LINE` for a meter that grants none. Less than a nanosecond above that is within the instant:
        cutting it off would be drift."""
        self.due: int | None = None
        """The tick at which the next permit is due; None: the schedule has not begun, and no grab succeeds."""
        self.ask: Take | None = ask
        """The `take` of a scheduler whose permits lie on no straight line, called for each permit."""
        self.until: int = 0  # the instant before which `grab` may take a permit; 0: it is shut
        self.check: PureLoopCheck | None = None
        self.above: PureMeter | None = None
        """The meter of a limit that is shared with others, from which each grab takes a permit too."""
        self.offset: int = 0  # what the clock is ahead of the limiter's own time, in ns
        self.since: int = FAR
        """The instant since which callers wait because a wake-up was late: permits lie idle only until then."""
        self.read: Callable[[], int] = monotonic_ns
        self.grabs: int = 0  # permits taken by `grab`
        self.last: int = 0  # the instant of the last grab
        self.cut: int = 0  # ticks that grabs cut off
        self.peak: int = -1  # the most ticks that a grab found idle since the scheduler has looked; -1: there was none

    def grab(self, trying: bool = False, /) -> bool:
        """Take one permit, as the scheduler's ``take(1, now, since)`` does, if it is due and the meter is open.

        ``trying``: for a caller that cannot wait.
        """
        until, check = self.until, self.check
        checked = ENDLESS if check is None else check.try_until if trying else check.until
        if not until or not checked or (check is not None and check.thread and check.thread != get_ident()):
            return False
        now = self.read()
        if now >= checked:
            return False
        now -= self.offset
        if now >= until:
            return False
        if self.ask is not None:
            taken = self.ask(1, now, None if now < self.since else self.since) <= now
            self.grabs += taken
            return taken
        if (due := self.due) is None:
            return False
        unit, cost, kept = self.numbers
        idle, lost = now * unit - due, 0
        if idle < 0:
            return False
        if late := now > self.since:
            idle = max(self.since * unit - due, 0)
        if idle - kept >= unit:
            if late or kept < 0:
                return False
            idle, lost = kept, idle - kept
        if self.above is not None and not self.above.grab(trying):
            return False
        self.due, self.cut = due + lost + cost, self.cut + lost
        if idle > self.peak:
            self.peak = idle
        self.last = now
        self.grabs += 1
        return True


Meter: TypeAlias = PureMeter
LoopCheck: TypeAlias = PureLoopCheck
if not TYPE_CHECKING and not environ.get("AIORATE_PURE"):
    with suppress(ImportError):
        from aiorate._cmeter import LoopCheck, Meter  # noqa: F401  # for those who import it from here
COMPILED: bool = Meter is not PureMeter  # whether `Meter` is the compiled one


def reduced(meter: Meter) -> Any:
    """For copies of a scheduler: the line alone, shut."""
    return type(meter), (), (None, {name: getattr(meter, name) for name in ("numbers", "due", "since", "last", "cut", "peak")})


copyreg.pickle(Meter, reduced)
copyreg.pickle(PureMeter, reduced)
