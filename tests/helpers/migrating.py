"""To run the rows of docs/migrating/: the code of a cell in the names of its library, and the moments at which requests go."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aiorate
from aiorate.testing import ManualClock, VirtualLoop
from helpers.driving import LONG
from helpers.threads import in_thread

__all__ = [
    "BEGINS",
    "CLOSE",
    "PAGES",
    "Check",
    "HandTime",
    "MovingLoop",
    "Row",
    "Side",
    "a_crowd",
    "check_pairs",
    "each_row",
    "in_thread_time",
    "in_virtual_time",
    "moments",
    "ours",
    "rows_of",
    "same_moments",
    "timeline",
]

PAGES = Path(__file__).parents[2] / "docs" / "migrating"
BEGINS = 1000  # seconds that the clock of a loop reads at first, as a real one does not begin at 0
CLOSE = 2e-3  # seconds: aiorate sets no two timers within a millisecond, and requests that come at once are nanoseconds apart here


@dataclass(frozen=True)
class Row:
    """A row of a table: its two cells as they are written."""

    left: str
    right: str

    @property
    def theirs(self) -> list[str]:
        """The code in the left cell, each piece."""
        return re.findall(r"`([^`]+)`", self.left)

    @property
    def ours(self) -> list[str]:
        """The code in the right cell, each piece."""
        return re.findall(r"`([^`]+)`", self.right)


Check = Callable[[Row], None]


def rows_of(page: str) -> list[Row]:
    """The rows of all tables of a page whose second column is aiorate's."""
    rows: list[Row] = []
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    for table in re.findall(r"^\|[^|\n]+\| aiorate \|\n\|---\|---\|\n((?:\|.*\|\n)+)", text, flags=re.MULTILINE):
        for line in table.splitlines():
            left, right = re.split(r" \| ", line.strip("| "))
            rows.append(Row(left, right))
    return rows


def each_row(page: str, but: Iterable[str] = ()) -> pytest.MarkDecorator:
    """Run a test for each row of the page, except for those that need a server and have their own test."""
    rows = [row for row in rows_of(page) if row.left not in but]
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.left.replace("`", ""))


def check_pairs(page: str, pairs: Mapping[str, Callable[..., None]]) -> None:
    """Every row has a check, every check a row, and no two rows are alike."""
    cells = [row.left for row in rows_of(page)]
    assert cells, f"{page}.md has no table"
    assert len(set(cells)) == len(cells)
    assert sorted(set(cells) - set(pairs)) == [], "these rows have no check"
    assert sorted(set(pairs) - set(cells)) == [], "these checks have no row"


class Side:
    """One library's half of a row: names, in which code of the page runs. It may await."""

    def __init__(self, *modules: ModuleType, **names: Any) -> None:
        self.names: dict[str, Any] = {"asyncio": asyncio}
        for module in modules:
            public = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
            self.names |= {name: getattr(module, name) for name in public}
        self.names |= names

    def call(self, code: str) -> Any:
        """Run code; returns the value of an expression. A block gets an empty body."""
        source = f"{code} pass" if code.endswith(":") else code
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            compiled = compile(source, "<a row>", "eval", flags=flags, dont_inherit=True)
        except SyntaxError:
            compiled = compile(source, "<a row>", "exec", flags=flags, dont_inherit=True)
        return eval(compiled, self.names)

    async def run(self, code: str) -> Any:
        """Run code that may await or be awaited."""
        value = self.call(code)
        while asyncio.iscoroutine(value) or isinstance(value, asyncio.Future):
            value = await value
        return value

    def close(self) -> None:
        """Close the limiter, if its library wants that."""
        close = getattr(self.names.get("limiter"), "close", None)
        if close is not None:
            close()


def ours(**names: Any) -> Side:
    """The names of aiorate."""
    return Side(aiorate, **names)


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run in a loop in which waiting takes no time."""
    with asyncio.Runner(loop_factory=MovingLoop) as runner:
        runner.run(asyncio.sleep(BEGINS))
        return runner.run(main())


def a_crowd(size: int, *later: float) -> list[float]:
    """The seconds at which requests are made: many at once, and more."""
    return [0.0] * size + list(later)


class MovingLoop(VirtualLoop):
    """A loop in virtual time that also moves by a nanosecond whenever it is read, and that can stall.

    A limiter that computes in floats may find that 1e-17 permits are missing. It spins until the clock moves, as every real clock does.
    """

    _late_ns = 0

    def time(self) -> float:
        self._late_ns += 1
        return super().time() + self._late_ns * 1e-9

    def stall(self, begin: float, end: float) -> None:
        """Let a callback keep the loop busy between these seconds from now."""

        def stall() -> None:
            self._late_ns += round((end - begin) * 1e9)

        self.call_later(begin, stall)


async def moments(side: Side, call: str, arrivals: Iterable[float]) -> list[float]:
    """Run the call in a task for each arrival; the seconds from now at which they were done, in that order."""
    loop = asyncio.get_running_loop()
    began, done = loop.time(), list[float]()

    async def one(at: float) -> None:
        await asyncio.sleep(at)
        await side.run(call)
        done.append(loop.time() - began)

    await asyncio.gather(*(one(at) for at in arrivals))
    return done


def timeline(side: Side, made: str, call: str, arrivals: Iterable[float], stall: tuple[float, float] | None = None) -> list[float]:
    """The moments at which requests go that wait for a new limiter."""

    async def main() -> list[float]:
        side.names["limiter"] = side.names["throttler"] = await side.run(made)
        if stall is not None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, MovingLoop)
            loop.stall(*stall)
        try:
            return await moments(side, call, arrivals)
        finally:
            side.close()

    return in_virtual_time(main)  # type: ignore[no-any-return]


def same_moments(theirs: Iterable[float], ours: Iterable[float], *, later: float = 0.0) -> None:
    """Fail unless as many requests go, each at the same moment, or with their library up to ``later`` seconds later."""
    pairs = list(zip(theirs, ours, strict=True))
    apart = [(number, one, other) for number, (one, other) in enumerate(pairs) if not -CLOSE <= one - other <= later + CLOSE]
    assert not apart, f"(number, seconds with the other library, seconds with aiorate): {apart}"


class HandTime:
    """A clock that stands in for the module ``time``: it moves when it is told to, or when code sleeps."""

    def __init__(self) -> None:
        self.seconds = float(BEGINS)

    def time(self) -> float:
        return self.seconds

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def in_thread_time(limiter: aiorate.Limiter, clock: ManualClock, work: Callable[[], Any], step: float) -> Any:
    """Run work that blocks in a thread, and move the clock on by a step whenever it waits for the limiter."""
    done = in_thread(work)
    while not done.done():
        if limiter.statistics().waiting:
            clock.advance(step)
    return done.result(LONG)
