"""The record of how full a pool has been, compared with a plain list of all notes."""

from __future__ import annotations

import random

import pytest

from aiorate.schedulers.peaks import Peaks


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("steady", [True, False])
def test_peaks_are_never_too_low_and_exact_while_few(seed: int, steady: bool) -> None:
    """A peak that is too low would credit a permit that had spilled; one that is too high only loses it."""
    dice, peaks, takes = random.Random(seed), Peaks(), list[list[int]]()
    now = 0
    for step in range(400):
        now += dice.randrange(3)
        level = 100_000 - 200 * step if steady else dice.randrange(1000)  # descending, nothing is ever forgotten by itself
        peaks.note(now, level)
        takes.append([now, level])
        if dice.random() < 0.05:
            taken, amount = now - dice.randrange(20), dice.randrange(50)
            peaks.raise_since(taken, amount)
            for take in takes:
                take[1] += amount if take[0] > taken else 0

        for taken in (now, now - 1, now - dice.randrange(1, 60)):
            true = max((level for at, level in takes if at > taken), default=None)
            said = peaks.since(taken)
            assert (said is None) == (true is None)
            if said is not None:
                assert said >= true  # type: ignore[operator]
                assert said == true or len(takes) > 64


def test_another_unit_is_rounded_up() -> None:
    """There must never be more room than there was."""
    peaks = Peaks()
    peaks.note(1, 7)
    peaks.note(2, -7)

    peaks.scale(1, 2)

    assert (peaks.since(0), peaks.since(1), peaks.since(2)) == (4, -3, None)


def test_a_clock_that_goes_back_keeps_the_order_of_takes() -> None:
    """By the order of events, not by readings of the clock."""
    peaks = Peaks()
    peaks.note(10, 5)
    peaks.note(3, 4)

    assert (peaks.since(9), peaks.since(3)) == (5, 5)
    peaks.note(2, 6)
    assert (peaks.since(9), peaks.since(10)) == (6, None)
