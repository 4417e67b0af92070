"""``simulate``: what a limit would do to requests, on a virtual clock. Nothing waits, and no loop runs.

Requests wait in one line, in order of arrival, and are woken exactly on time: what a `Limiter` does on a loop that is never late.
"""

from __future__ import annotations

import os
import stat
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from aiorate._tools import strategies
from aiorate._tools.figures import SECOND, busiest, percentile, plot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiorate import Scheduler


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = 9_214_646_400  # seconds, 2262-01-01: the ns of later instants do not fit in 64 bits
_AT_ONCE = 20  # requests
_CATCH_UP = SECOND // 50  # ns, as of a Limiter


def run(file: str | None, rate: str, strategy: str | None, burst: int | None, max_wait: float | None, requests: int | None) -> int:
    """Run the command; returns its exit code: 2 if the arrivals or the limit cannot be used."""
    longest = None if max_wait is None else round(max_wait * SECOND)
    at_once = file is None and (requests is not None or not _is_fed())
    try:
        arrivals = [(0, 1)] * (requests or _AT_ONCE) if at_once else _arrivals(file or "-")
        start = arrivals[0][0]
        arrivals = [(instant - start, permits) for instant, permits in arrivals]
        scheduler = strategies.make(strategy, rate, burst=burst, origin=start)
        limit = repr(scheduler)
        waits = play(scheduler, arrivals, longest)
    except (OSError, ValueError) as error:
        print(f"aiorate simulate: {error}", file=sys.stderr)
        return 2
    print(f"{limit}\n")
    if at_once:
        _print_instants(waits)
    else:
        _print_summary(scheduler, arrivals, waits)
    return 0


def _is_fed() -> bool:
    """Whether standard input is a pipe or a file, and not a terminal."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is none
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _arrivals(file: str) -> list[tuple[int, int]]:
    is_input = file == "-"
    source = "standard input" if is_input else ascii(file)
    with open(0 if is_input else file, encoding="utf-8-sig", errors="backslashreplace", closefd=not is_input) as lines:
        arrivals = read(lines, source)
    if not arrivals:
        raise ValueError(f"{source} has no arrivals.")
    return arrivals


def read(lines: Iterable[str], source: str) -> list[tuple[int, int]]:
    """Read a time from each line, and the permits if there is another number. Returns instants (ns) and permits, in order of time.

    Raises ValueError, which names the line.
    """
    arrivals = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                arrivals.append(_arrival(line))
            except (ValueError, OverflowError):
                raise ValueError(
                    f"{source}, line {number}: {line.strip()[:60]!a} is no arrival. Write a time, as seconds or as"
                    " 2026-01-31T12:00:00, and after it the permits, if it is more than one."
                ) from None
    return sorted(arrivals)


def _arrival(line: str) -> tuple[int, int]:
    words = line.split()
    permits = int(words.pop()) if len(words) > 1 and words[-1].isdigit() else 1
    text = " ".join(words)
    try:
        seconds = Decimal(text)
    except InvalidOperation:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = Decimal((moment - _EPOCH) // timedelta(microseconds=1)) / 1_000_000
    if permits < 1 or not seconds.is_finite() or abs(seconds) > _LAST:
        raise ValueError
    return int(seconds * SECOND), permits


def play(scheduler: Scheduler, arrivals: Sequence[tuple[int, int]], max_wait: int | None = None) -> list[int | None]:
    """The wait (ns) of each request; None for one that is refused, because it would wait longer than ``max_wait``.

    Raises ValueError if a request asks for more permits than can ever be granted.
    """
    waits: list[int | None] = []
    last = 0  # when the latest request was granted
    for made, permits in arrivals:
        now = max(made, last)
        # Behind others it is refused before it is tried, because what is tried may be granted.
        at = now if _too_long(now - made, max_wait) else scheduler.take(permits, now, max(made, now - _CATCH_UP))
        if _too_long(at - made, max_wait):
            waits.append(None)
            continue
        if at > now:
            scheduler.take(permits, at, max(made, at - _CATCH_UP))
        last = max(now, at)
        waits.append(last - made)
    return waits


def _too_long(wait: int, max_wait: int | None) -> bool:
    return max_wait is not None and wait > max_wait


def _print_instants(waits: Sequence[int | None]) -> None:
    print("request   granted at (s)   after the one before (s)")
    before = 0
    for number, wait in enumerate(waits, 1):
        if wait is None:
            print(f"{number:7} {'refused':>16}")
        else:
            print(f"{number:7} {wait / SECOND:16.6f} {(wait - before) / SECOND:26.6f}")
            before = wait


def _print_summary(scheduler: Scheduler, arrivals: Sequence[tuple[int, int]], waits: Sequence[int | None]) -> None:
    grants = [(made + wait, permits) for (made, permits), wait in zip(arrivals, waits, strict=True) if wait is not None]
    ordered = sorted(wait for wait in waits if wait is not None)
    span, period = arrivals[-1][0], scheduler.rate.period_ns
    at_once = ordered.count(0)
    unit = "requests" if all(permits == 1 for _, permits in arrivals) else "permits"
    print(f"{'requests':12} {len(waits):9}   in {span / SECOND:.3f} s" + (f", {len(waits) * SECOND / span:.4g}/s" if span else ""))
    for name, count in (("at once", at_once), ("waited", len(ordered) - at_once), ("refused", len(waits) - len(ordered))):
        print(f"{name:12} {count:9}   {count / len(waits):.1%}")
    for name, percent in (("median wait", 50), ("95 % wait", 95), ("longest wait", 100)):
        print(f"{name:12} {percentile(ordered, percent) / SECOND:9.3f} s")
    print(f"most {unit} in any {period / SECOND:g} s: {busiest(arrivals, period)} arrived, {busiest(grants, period)} granted")
    if span or any(ordered):
        print()
        print(plot(f"{unit} per second: arrived (o) and granted (bars), and the rate", grants, arrivals, scheduler.rate.per_second))
