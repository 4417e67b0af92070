"""Arrivals: when requests came, in order, wherever that was read. Pure arithmetic on whole nanoseconds."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise, repeat
from operator import gt, sub
from typing import TYPE_CHECKING

from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["LAST_SECOND", "SPREADS", "Arrivals", "arrange"]

LAST_SECOND = 9_214_646_400  # 2262-01-01: the ns of later instants do not fit in 64 bits
SPREADS = ("even", "random", "none")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in order of arrival, or those of one key after those of another, each in order of arrival."""

    source: str
    """The name of the file, or what was generated."""
    form: str
    """The format that was read."""
    start: int
    """When the first came, in ns since 1970; 0 if they were generated."""
    instants: array[int]
    """Ns since the first."""
    span: int
    """Ns from the first to the last."""
    ends: array[int] | None
    """Where the requests of each key end; None: there is one line for all."""
    spread: str
    """How the requests of one second were spread over it: one of `SPREADS`."""
    crowded: bool
    """Whether all times were whole seconds, and some came several times."""
    unordered: int
    """Requests that came earlier than the one before them in the file."""
    back: int
    """How much earlier at most, in ns."""
    skipped: int
    """Broken lines that were left out."""

    def lines(self) -> Iterator[tuple[int, int]]:
        """Where the requests of each line begin and end."""
        return pairwise([0, *(self.ends or (len(self.instants),))])

    @property
    def per_second(self) -> float | None:
        """The mean rate; None if all came at once."""
        return (len(self.instants) - 1) * NS_PER_SECOND / self.span if self.span else None


def arrange(
    source: str, form: str, times: array[int], keys: array[int] | None, spread: str | None, *, whole: bool, skipped: int, seed: int
) -> Arrivals:
    """Sort times (ns since 1970, at least one), by key if there are ``keys``, and spread those of one second over it.

    ``whole``: all are whole seconds.

    ``spread`` None spreads nothing, as "none" does, and so does any spread of times that are not whole seconds.
    """
    later = islice(times, 1, None)
    unordered = sum(map(gt, times, later))
    back = 0
    if unordered:
        back = max(map(sub, times, islice(times, 1, None)))
        if keys is None:
            times = array("q", sorted(times))
        else:
            order = sorted(range(len(times)), key=times.__getitem__)
            times, keys = array("q", [times[place] for place in order]), array("l", [keys[place] for place in order])
    start = times[0]
    counts = Counter(times) if whole else {}
    crowded = whole and len(counts) < len(times)
    spread = spread if crowded and spread is not None else "none"
    instants = array("q", map(sub, times, repeat(start)) if spread == "none" else _spread(counts, start, spread, seed))
    if instants[0]:  # spread at random
        start += instants[0]
        instants = array("q", [instant - instants[0] for instant in instants])
    span, ends = instants[-1], None
    if keys is not None:
        order = sorted(range(len(keys)), key=keys.__getitem__)
        instants = array("q", map(instants.__getitem__, order))
        ends = array("l", accumulate(count for _, count in sorted(Counter(keys).items())))
    return Arrivals(source, form, start, instants, span, ends, spread, crowded, unordered, back, skipped)


def _spread(counts: Mapping[int, int], start: int, spread: str, seed: int) -> list[int]:
    """Ns since ``start``. The requests of a second, in their order: evenly from its beginning, or at random places in it."""
    instants: list[int] = []
    chance = random.Random(seed).random
    for second, count in counts.items():
        begin = second - start
        if spread == "even":
            instants += [begin + place * NS_PER_SECOND // count for place in range(count)]
        else:
            instants += sorted([begin + int(chance() * NS_PER_SECOND) for _ in range(count)])
    return instants
