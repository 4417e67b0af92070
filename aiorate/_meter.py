"""The meter: a permit that lies ready is had by one call, which reads the clock, compares and adds.

While only single permits are asked for, four strategies are a straight line: a bucket, a pool with burst ratio 1, the ticks accumulator,
and burst compensation with a strictness of 0 or 1. A permit is due at an instant, the next one some ticks later, and what lies idle for
longer than the slack is cut off. The scheduler keeps that instant in its meter and nowhere else, and what was cut off is counted there.

Time is counted in ticks, as everywhere in the schedulers (`Rate._ticks`). The meter that is compiled from ``_cmeter.c`` does the same,
several times faster. It is optional, and the environment variable ``AIORATE_PURE=1`` leaves it out. Knows nothing of who waits, or of
the reason for which it is shut.
"""

from __future__ import annotations

from math import inf
from os import environ
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Take = Callable[[int, int, int | None], int]


FAR = 1 << 62
"""An instant that no clock reaches, and a length of time in ns that none measures."""
ENDLESS = inf
"""The slack of a line from which nothing is cut off."""
NO_LINE = (1, 1, -inf, -1)
"""In place of the numbers: the line is not straight, and no grab succeeds."""


class PureLoopCheck:
    """Whether an event loop was seen to run its other tasks: one for all meters of the loop."""

    __slots__ = ("thread", "try_until", "until")

    def __init__(self) -> None:
        self.until: int = 0  # the reading before which nobody needs to ask; 0: everybody has to
        self.try_until: int = 0
        """The same for callers that cannot let the loop turn, and only have to know that it is this one."""
        self.thread: int = 0  # the thread in which the loop runs, for which alone this holds; 0: any thread


class PureMeter:
    """A straight line of permits, one due every ``cost`` ticks. Shut at first: `until` opens it."""

    __slots__ = ("above", "ask", "check", "cut", "due", "grabs", "last", "numbers", "offset", "peak", "read", "since", "until")

    def __init__(self, numbers: tuple[int, int, float, int] = NO_LINE, due: int | None = None, *, ask: Take | None = None) -> None:
        self.numbers: tuple[int, int, float, int] = numbers
        """`unit`, `cost`, `slack` and `kept`: ticks of a nanosecond, ticks from one permit to the next, the most ticks for which a permit
        lies idle, and how many count where it lay idle for longer. Whole numbers; the slack may be `ENDLESS`."""
        self.due: int | None = due
        """The tick at which the next permit is due; None: the schedule has not begun, and no grab succeeds."""
        self.ask: Take | None = ask
        """A scheduler's `take`, for one whose permits lie on no straight line: asked for each permit. None: the permits lie on a line."""
        self.until: int = 0  # the instant before which `grab` may take a permit; 0: it is shut
        self.check: PureLoopCheck | None = None  # what is known of the event loop; None: nothing that matters
        self.above: PureMeter | None = None
        """The meter of a limit that is shared with others, from which each grab takes a permit too; None: there is none."""
        self.offset: int = 0  # what the clock is ahead of the limiter's own time, in ns
        self.since: int = FAR
        """The instant since which callers wait, because a wake-up was late: permits lie idle until then only; `FAR`: it was not."""
        self.read: Callable[[], int] = monotonic_ns
        self.grabs: int = 0  # permits taken by `grab`
        self.last: int = 0  # the instant of the last grab
        self.cut: int = 0  # the ticks that were cut off by grabs
        self.peak: int = -1
        """The most ticks that a grab found idle since the scheduler has looked; -1: there was none."""

    def grab(self, trying: bool = False, /) -> bool:
        """Take one permit, as the scheduler's ``take(1, now, since)`` does, if the meter is open. ``trying``: its caller cannot wait."""
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
        unit, cost, slack, kept = self.numbers
        idle, lost = now * unit - due, 0
        if idle < 0:
            return False
        if now > self.since:
            idle = max(self.since * unit - due, 0)
            if idle > slack:
                return False
        elif idle > slack:
            if kept < 0:
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

    def __reduce__(self) -> tuple[object, ...]:
        """For copies of a scheduler: the line alone, shut."""
        return type(self), (self.numbers, self.due), (None, {name: getattr(self, name) for name in ("since", "last", "cut", "peak")})


COMPILED: bool = False
"""Whether `Meter` is the compiled one."""
if TYPE_CHECKING:
    Meter: TypeAlias = PureMeter
    LoopCheck: TypeAlias = PureLoopCheck
elif environ.get("AIORATE_PURE"):
    Meter, LoopCheck = PureMeter, PureLoopCheck
else:
    try:
        from aiorate._cmeter import LoopCheck, Meter

        COMPILED = True
    except ImportError:
        Meter, LoopCheck = PureMeter, PureLoopCheck
