"""reset(): after any history, a scheduler is like a new one."""

from __future__ import annotations

import random

import pytest
from helpers.strategies import EACH
from helpers.transcripts import S

import aiorate


@pytest.mark.parametrize("receipts", [True, False])
@pytest.mark.parametrize("name", EACH)
def test_after_a_reset_a_scheduler_is_like_a_new_one(name: str, receipts: bool) -> None:
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
    """A custom strategy without reset()."""

    reset = aiorate.Scheduler.reset


def test_a_strategy_without_reset_says_so() -> None:
    """The error names the missing method."""
    limiter = aiorate.Limiter(Plain("10/s"))

    with pytest.raises(RuntimeError, match=r"Plain has no method reset\(now\)"):
        limiter.reset()


@pytest.mark.parametrize("name", EACH)
def test_a_charge_may_be_the_first_call(name: str) -> None:
    """The first instant given starts the schedule, that of a charge too."""
    charged, taken = EACH[name](), EACH[name]()
    permits = min(charged.max_permits or 7, 7)

    charged.charge(permits, S)
    now = S
    for _ in range(permits):
        now = max(now, taken.peek(1, now))
        taken.take(1, now)

    assert charged.peek(1, S) >= taken.peek(1, S) - S // 1000
