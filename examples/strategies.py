"""The grants of each strategy side by side: the same requests, one column per strategy, in virtual time.

Fourteen requests are made at once, and after an idle time fourteen more, at a rate of ten per second. Read down a column for one
strategy, and across to compare: which begins with a burst, which stores unused permits, which forgets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate import (
    AllOf,
    BurstCompensation,
    BurstRatio,
    CalendarWindow,
    Scheduler,
    SlidingWindow,
    SmoothBursty,
    SmoothWarmingUp,
    TicksAccumulator,
    TokenBucket,
    TokenPool,
)
from aiorate.testing import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = 1_000_000_000  # ns
RATE = "10/s"

STRATEGIES: dict[str, Callable[[], Scheduler]] = {
    "TokenPool": lambda: TokenPool(RATE),
    "Pool 1.5": lambda: TokenPool(RATE, burst_ratio=1.5),
    "Ticks": lambda: TicksAccumulator(RATE),
    "Strict": lambda: BurstCompensation(RATE),
    "Ratio 1.5": lambda: BurstRatio(RATE, ratio=1.5),
    "Bursty": lambda: SmoothBursty(RATE, max_stored=5),
    "WarmingUp": lambda: SmoothWarmingUp(RATE, warmup=1),
    "Bucket 5": lambda: TokenBucket(RATE, burst=5),
    "Sliding": lambda: SlidingWindow(RATE),
    "Calendar": lambda: CalendarWindow(RATE, "UTC", origin=0),
    "AllOf": lambda: AllOf(SlidingWindow(RATE), TokenBucket("20/s", burst=2)),
}

MADE = [0] * 14 + [3_750_000_000] * 14
"""The instants of the requests (ns)."""


def grant_times() -> dict[str, list[int]]:
    """The instants (ns) of all grants, by strategy."""
    return {name: simulate(build(), MADE) for name, build in STRATEGIES.items()}


def most_within(window: int, instants: list[int]) -> int:
    """The most grants in any half-open window of that length (ns)."""
    return max(sum(start <= instant < start + window for instant in instants) for start in instants)


def main() -> None:
    """Print both tables."""
    columns = grant_times()
    print(f"Granted at (s), at a rate of {RATE}, for requests that are made at:\n")
    print("    ", *(f"{name:>9}" for name in columns))
    for number, made in enumerate(MADE):
        if made != MADE[number - 1]:
            print()
        print(f"{made / SECOND:4}", *(f"{instants[number] / SECOND:9.3f}" for instants in columns.values()))
    print("\nThe most that was granted in any window of (s):\n")
    for window in (SECOND // 4, SECOND):
        print(f"{window / SECOND:4}", *(f"{most_within(window, instants):9}" for instants in columns.values()))


if __name__ == "__main__":
    main()
