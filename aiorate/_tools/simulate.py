"""``simulate``: what a `Limiter` would do to requests on a loop that is never late. Nothing waits, and no loop runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND as SECOND
from aiorate.testing._laws import grants

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiorate import Scheduler


def run(scheduler: Scheduler, file: str, max_wait: float | None) -> int:
    """Returns the exit code. Raises OSError or ValueError if the arrivals cannot be read."""
    with open(0 if file == "-" else file, encoding="utf-8-sig", errors="backslashreplace", closefd=file != "-") as lines:
        arrivals = read(lines)
    print(f"{scheduler!r}\n")
    granted = list(grants(scheduler, arrivals, None if max_wait is None else round(max_wait * SECOND)))
    waits = sorted(at - made for made, at in zip(arrivals, granted, strict=True) if at is not None)
    count, span, period, at_once = len(arrivals), arrivals[-1], scheduler.rate.period_ns, waits.count(0)
    print(f"{'requests':12} {count:9}   in {span / SECOND:.3f} s" + (f", {count * SECOND / span:.4g}/s" if span else ""))
    for name, part in (("at once", at_once), ("waited", len(waits) - at_once), ("refused", count - len(waits))):
        print(f"{name:12} {part:9}   {part / count:.1%}")
    for name, percent in (("median wait", 50), ("95 % wait", 95), ("longest wait", 100)):
        wait = waits[-(-len(waits) * percent // 100) - 1] if waits else 0
        print(f"{name:12} {wait / SECOND:9.3f} s")
    passed = [at for at in granted if at is not None]
    print(f"most requests in any {period / SECOND:g} s: {busiest(arrivals, period)} arrived, {busiest(passed, period)} granted")
    return 0


def read(lines: Iterable[str]) -> list[int]:
    """Read a number of seconds from each line. Returns instants (ns) in order, the first at 0."""
    instants = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                instants.append(round(float(line) * SECOND))
            except (ValueError, OverflowError):
                raise ValueError(f"line {number}: {line.strip()[:60]!a} is no arrival: write one number of seconds.") from None
    if not instants:
        raise ValueError("there are no arrivals.")
    first = min(instants)
    return sorted(instant - first for instant in instants)


def busiest(instants: Sequence[int], window: int) -> int:
    """The most instants, in order, in any half-open window of that length (ns)."""
    most = first = 0
    for last, instant in enumerate(instants):
        while instants[first] <= instant - window:
            first += 1
        most = max(most, last - first + 1)
    return most
