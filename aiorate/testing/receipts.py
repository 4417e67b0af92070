"""The laws of permits that come back by receipt, for `aiorate.testing.laws`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.testing.histories import BACK, History, Step, Trial, same_future

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EXACT_RECEIPTS", "giving_back_leaves_no_trace", "giving_back_makes_nobody_sooner"]


def giving_back_leaves_no_trace(trial: Trial) -> None:
    """A take that is given back at once, by its receipt, leaves no trace."""
    # If the clock went back, receipts are out of order, and a scheduler may lose a permit.
    gave = trial.fresh().run(step for step in trial.before if step.gap not in BACK)
    twin = gave.fork()
    for step in trial.sizes[:3]:
        gave.pass_time(step.gap, 1)
        twin.now = gave.now = max(gave.now, twin.now)
        permits = gave.permits(step.size)
        if gave.take(permits):
            gave.give_back(permits, -1)
    # No later step goes back in time or changes the period, because schedulers may forget older grants.
    same_future(gave, twin, [step for step in trial.after if step.does in ("take", "take all")])


def giving_back_later_leaves_no_trace(trial: Trial) -> None:
    """A take that comes back whole, by receipt and with nothing in between, leaves no trace within 1 ns, early or late."""
    _give_back_later(trial, 1)


def a_group_that_comes_back_leaves_no_trace(trial: Trial) -> None:
    """Takes at one instant that come back whole, by receipt and with nothing in between, leave no trace within 1 ns."""
    _give_back_later(trial, 4)


def _give_back_later(trial: Trial, takes: int) -> None:
    gave = trial.fresh().run(step for step in trial.before if step.gap not in BACK)
    twin, earlier = gave.fork(), len(gave.held)
    _take_group(gave, trial.sizes, takes)
    if takes > 1:  # in portions, and out of order
        for step in trial.sizes * 2:
            if len(gave.held) > earlier:
                gave.give_back(gave.permits(step.size), earlier if step.size % 2 else -1)
    _give_all_back(gave, earlier)
    for step in (*trial.after, *trial.sizes):
        _compare(gave, twin, step)
        gave.now = twin.now = max(gave.due(gave.permits(step.size)), twin.due(twin.permits(step.size)))
        _take_late(gave, step)
        _take_late(twin, step)


def giving_back_makes_nobody_sooner(trial: Trial) -> None:
    """A take that comes back by receipt, after any other takes, makes no request sooner than the earlier of: never taken, kept."""
    gave = trial.fresh().run(step for step in trial.before if step.gap not in BACK)
    twin, earlier = gave.fork(), len(gave.held)
    _take_group(gave, trial.sizes, 4)
    gave.now += 1  # which of one instant comes back makes no difference
    for step in trial.after[1:]:
        gave.pass_time(step.gap, gave.permits(step.size))
        twin.now = gave.now
        if _take_late(gave, step):
            gave.held.pop()
            if not _take_late(twin, step):
                return  # from here on the histories differ by more than the take
    kept = gave.fork()
    _give_all_back(gave, earlier)
    for step in trial.sizes:
        _compare(gave, twin, step, kept)


def _take_group(history: History, steps: list[Step], takes: int) -> None:
    """Fall behind, take at one instant, and let time pass."""
    history.pass_time(steps[0].gap)
    history.now += history.catch_up * abs(steps[-1].size)
    for step in steps[:takes]:
        _take_late(history, step._replace(size=1 + abs(step.size) % 2))
    history.pass_time(steps[-1].gap)


def _give_all_back(history: History, earlier: int) -> None:
    """Give back all grants but the earlier ones, the latest first."""
    while len(history.held) > earlier:
        history.give_back(history.events[history.held[-1]][2], -1)


def _take_late(history: History, step: Step) -> bool:
    """Take the permits of a step, for an odd size at once and else for a request that has stood in line."""
    return history.take(history.permits(step.size), None if step.size % 2 else history.now - history.catch_up * 2 // 3)


def _compare(gave: History, twin: History, step: Step, kept: History | None = None) -> None:
    """Assert that no request is sooner than without the take or, if given, with it kept; and without ``kept`` at most 1 ns later."""
    gave.now = twin.now = max(gave.now, twin.now) + abs(step.gap[0]) * gave.scheduler.rate.period_ns // (3 * gave.scheduler.rate.permits)
    for permits in sorted({1, gave.permits(step.size), gave.permits(0)}):
        at, never = gave.due(permits), twin.due(permits)
        least = never if kept is None else min(never, kept.due(permits, gave.now))
        assert least <= at, f"{permits} permits are due at {at}, and at {never} without the take that came back"
        assert kept or at <= never + 1, f"{permits} permits are due at {at}, and at {never} without the take that came back"


EXACT_RECEIPTS: tuple[Callable[[Trial], None], ...] = (giving_back_later_leaves_no_trace, a_group_that_comes_back_leaves_no_trace)
"""Laws that all strategies of aiorate keep. Another scheduler may lose late returns, and every take of an instant except the latest."""
