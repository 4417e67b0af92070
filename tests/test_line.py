"""The line on its own: order, leaving from anywhere, and what it keeps."""

from __future__ import annotations

import random

from aiorate.line import Line, Ticket


class Waiting(Ticket):
    """A ticket of no driver."""

    def __init__(self) -> None:
        self.state = 0


def test_it_is_a_queue_whoever_leaves_it() -> None:
    """Against a plain list, with tickets leaving from everywhere."""
    dice, line, model = random.Random(14), Line(), list[Waiting]()

    for _ in range(5000):
        choice = dice.random()
        if choice < 0.5:
            ticket = Waiting()
            line.join(ticket)
            model.append(ticket)
        elif model and choice < 0.8:
            ticket = model.pop(dice.randrange(len(model)))
            line.leave(ticket)
        elif model:
            assert line.first() is model.pop(0)
            line.serve()
        assert len(line) == len(model)
        assert line.first() is (model[0] if model else None)

    assert list(line) == model
    assert line.clear() == model
    assert (len(line), line.first()) == (0, None)


def test_holes_are_closed_when_they_outnumber_those_in_line() -> None:
    """The first may wait for hours; those behind it who gave up must cost nothing meanwhile."""
    line = Line()
    line.join(first := Waiting())

    for _ in range(10_000):
        line.join(ticket := Waiting())
        line.leave(ticket)

    assert line.first() is first
    assert len(line._tickets) < 100
