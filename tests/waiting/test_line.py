"""The line by itself: order, leaving from any place, and memory."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable

import pytest

from aiorate.waiting.line import Line, Outcome


class Waiting:
    """A ticket without a driver."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.gone = False

    def done(self) -> bool:
        return self.gone or self.outcome is not None

    def result(self) -> Outcome:
        assert self.outcome is not None
        return self.outcome

    def set_result(self, outcome: Outcome, /) -> None:
        self.outcome = outcome


def cancelled(line: Line, ticket: Waiting, permits: int = 1) -> None:
    """Leave as a task that was cancelled and has run."""
    ticket.gone = True
    line.leave(ticket, permits)


def closed(line: Line, ticket: Waiting, permits: int = 1) -> None:
    """Leave as a coroutine that was closed: its ticket is untouched."""
    line.leave(ticket, permits)


@pytest.mark.parametrize("go", [cancelled, closed, None])
def test_the_line_is_a_queue_that_tickets_may_leave(go: Callable[[Line, Waiting, int], None] | None) -> None:
    """Compared with a plain list, with tickets that leave from any place, in one way or in both."""
    dice, line, model = random.Random(14), Line(), list[tuple[Waiting, int, int]]()

    for step in range(5000):
        choice = dice.random()
        if choice < 0.5:
            request = Waiting(), dice.randrange(1, 9), step
            line.join(*request)
            model.append(request)
        elif model and choice < 0.8:
            ticket, permits, _ = model.pop(dice.randrange(len(model)))
            (go or dice.choice([cancelled, closed]))(line, ticket, permits)
        elif model:
            assert line.first() == model.pop(0)
            assert line.pop_first() == (model[0] if model else None)
        assert len(line) == len(model)
        assert line.first() == (model[0] if model else None)
        assert bool(line) is bool(model)
        assert line.total == sum(permits for _, permits, _ in model)
        few = dice.randrange(40)
        assert (head := line.head(few)) == model[:few]
        assert line.rest(head) == sum(permits for _, permits, _ in model[few:])

    assert list(line) == model
    assert line.clear() == [ticket for ticket, _, _ in model]
    assert (len(line), line.first()) == (0, None)


def test_a_cancelled_ticket_is_skipped_before_its_task_runs() -> None:
    """It is never granted between its cancellation and the next step of its task, and the line's counts stay right."""
    dice, line, model, leaving = random.Random(15), Line(), list[Waiting](), list[Waiting]()

    for step in range(5000):
        choice = dice.random()
        if choice < 0.5:
            model.append(Waiting())
            line.join(model[-1], 1, step)
        elif model and choice < 0.7:
            leaving.append(model.pop(dice.randrange(len(model))))
            leaving[-1].gone = True
        elif leaving and choice < 0.9:
            line.leave(leaving.pop(dice.randrange(len(leaving))), 1)
        elif choice < 0.91:
            assert line.clear() == model
            model.clear()
        first = line.first()
        assert (first and first[0]) is (model[0] if model else None)
        assert bool(line) is bool(model)
        assert len(line) == len(model) + len(leaving) == line.total
        assert [ticket for ticket, _, _ in line.head(len(model))] == model

    assert [ticket for ticket, _, _ in line] == model


def test_holes_are_removed_once_they_outnumber_the_tickets() -> None:
    """The first may wait for hours; cancelled tickets behind it must not take memory meanwhile."""
    line, first = Line(), Waiting()
    line.join(first, 1, 0)
    kept = weakref.WeakSet[Waiting]()

    for _ in range(10_000):
        ticket = Waiting()
        kept.add(ticket)
        line.join(ticket, 1, 0)
        cancelled(line, ticket)

    assert line.first() == (first, 1, 0)
    assert len(kept) < 100
