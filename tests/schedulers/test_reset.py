"""Beginning anew: a scheduler that was reset is as good as new, whatever it had been through."""

from __future__ import annotations

import random

import pytest
from helpers.strategies import EACH
from helpers.transcripts import S

import aiorate


@pytest.mark.parametrize("receipts", [True, False])
@pytest.mark.parametrize("name", EACH)
def test_after_a_reset_nothing_is_left_of_what_was(name: str, receipts: bool) -> None:
    """No debt, no credit, no backlog."""
    dice = random.Random(name)
    used, now = EACH[name](), 0
    for _ in range(40):
        now += dice.randrange(S // 3)
        most = min(used.max_permits or 5, 5)
        taken = now if used.take(dice.randint(1, most), now) <= now else None
        if dice.random() < 0.3:
            used.charge(dice.randint(1, 9), now)
        if dice.random() < 0.3:
            used.give_back(1, now, taken)
    reset_at = now + dice.randrange(S)

    used.reset(reset_at)
    fresh = EACH[name]()
    fresh.peek(1, reset_at)  # which is when its schedule begins

    used.receipts = fresh.receipts = receipts
    assert (used.lag(reset_at), used.spilled, used.stock(reset_at)) == (fresh.lag(reset_at), fresh.spilled, fresh.stock(reset_at))
    now = reset_at
    for _ in range(60):
        permits = dice.randint(1, min(used.max_permits or 5, 5))
        assert used.peek(permits, now) == fresh.peek(permits, now)
        assert used.take(permits, now) == fresh.take(permits, now)
        now += dice.randrange(S // 4)
    assert repr(used) == repr(fresh)


class Plain(aiorate.BurstCompensation):
    """A strategy of somebody's own, which never said how it begins."""

    reset = aiorate.Scheduler.reset


def test_a_strategy_that_does_not_say_how_it_begins_says_so() -> None:
    """The method is one that most never miss; the error names it."""
    limiter = aiorate.Limiter(Plain("10/s"))

    with pytest.raises(RuntimeError, match=r"Plain has no method reset\(now\)"):
        limiter.reset()


@pytest.mark.parametrize("name", EACH)
def test_what_is_charged_before_anything_was_asked_counts_from_then(name: str) -> None:
    """The first instant given starts the schedule, whoever gives it."""
    charged, taken = EACH[name](), EACH[name]()
    permits = min(charged.max_permits or 7, 7)

    charged.charge(permits, S)
    now = S
    for _ in range(permits):
        now = max(now, taken.peek(1, now))
        taken.take(1, now)

    assert charged.peek(1, S) >= taken.peek(1, S) - S // 1000
