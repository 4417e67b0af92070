"""How the benchmarks compute figures from instants, and draw pictures from figures. No time passes."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections import deque
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks import cancelling, conformance, keys, measure, memory, plots, precision, scale

import aiorate
from aiorate.testing import ManualClock

MS = 1_000_000


def test_lateness_counts_from_the_first_grant() -> None:
    """Early grants count from just before it: a first grant that is seen late would make all others look early."""
    first, asked = 50, 20
    instants = [first, *(first + place * 100 * MS + late for place, late in enumerate((5_000, 7_000, 9_000, -40), 1))]

    paced = precision.judge(asked, instants, 10, cpu_ns=8_000)

    assert (7.0, 9.0, 9.0) == (paced.p50, paced.p99, paced.most)
    assert paced.cpu == 2.0
    assert paced.early == 1


@pytest.mark.parametrize(("slower", "ppm"), [(0, 0.0), (1_000, 10.0), (-1_000, -10.0), (100 * MS, 1e6)])
def test_drift_is_the_growth_of_lateness(slower: int, ppm: float) -> None:
    """Intervals that are too long add up; a constant lateness of the timer does not."""
    instants = [0, *(place * (100 * MS + slower) + 500_000 for place in range(1, 31))]

    assert precision.judge(0, instants, 10, cpu_ns=0).drift == pytest.approx(ppm)


def test_drift_needs_only_one_grant() -> None:
    """Some subjects are too slow for a second one."""
    assert precision.judge(0, [0, 200 * MS], 10, cpu_ns=0).drift == pytest.approx(1e6)


@pytest.mark.parametrize(
    ("instants", "most"),
    [([], 0), ([7], 1), ([0, 50, 99], 3), ([0, 50, 100], 2), ([0, 100, 200], 1), ([0, 0, 0, 100], 3), ([0, 60, 90, 150, 155], 4)],
)
def test_the_most_in_any_window(instants: list[int], most: int) -> None:
    """A window includes its beginning, excludes its end, and may begin anywhere."""
    assert conformance.most_in_any(100, instants) == most


class Forgetful:
    """Loses the permit of a task that is cancelled between its grant and its run."""

    def __init__(self) -> None:
        self.line: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        self.line.append(asyncio.get_running_loop().create_future())
        await self.line[-1]

    def grant(self) -> None:
        while self.line and self.line[0].done():
            self.line.popleft()
        if self.line:
            self.line.popleft().set_result(None)


def test_doomed_tasks_are_cancelled_when_granted() -> None:
    """Permits get lost only here; one iteration of the loop earlier or later, nothing shows."""
    struck: list[bool] = []

    async def forgetful() -> list[bool]:
        limiter = Forgetful()
        doomed = asyncio.ensure_future(cancelling.Doomed(limiter.acquire(), lambda: struck.append(True)))
        other = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        limiter.grant()
        for _ in range(5):
            await asyncio.sleep(0)
        seen = [doomed.cancelled(), other.done()]
        other.cancel()
        return seen

    async def ours() -> list[bool]:
        clock = ManualClock()
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/s", 1), clock=clock)
        await limiter.acquire()
        doomed = asyncio.ensure_future(cancelling.Doomed(limiter.acquire(), lambda: struck.append(True)))
        other = asyncio.create_task(limiter.acquire())
        await clock.run(1)
        return [doomed.cancelled(), other.done()]

    assert [True, False] == asyncio.run(forgetful())
    assert [True, True] == asyncio.run(ours())
    assert len(struck) == 2


def test_a_call_that_need_not_wait_is_not_cancelled() -> None:
    """A doomed task gets a permit that is available; its result or error comes through."""

    async def passes() -> str:
        await asyncio.sleep(0)
        return "granted"

    async def breaks() -> None:
        raise ZeroDivisionError

    async def main() -> list[Any]:
        doomed = [cancelling.Doomed(each(), pytest.fail) for each in (passes, breaks)]
        return await asyncio.gather(*doomed, return_exceptions=True)

    passed, broken = asyncio.run(main())

    assert passed == "granted"
    assert isinstance(broken, ZeroDivisionError)


@pytest.mark.parametrize("name", [memory.FLOOR, "aiorate TokenPool", "aiorate TokenBucket"])
def test_a_child_process_weighs_its_subject(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run in this process. Only checks that the weight is at least that of a task and its future."""
    memory.child(name, "30", "3")
    tracemalloc.stop()

    found = json.loads(capsys.readouterr().out)

    assert found["waiter"] > 200
    assert set(found) == ({"waiter"} if name == memory.FLOOR else {"waiter", "besides", "limiter", "threads"})


TWO = ("aiorate TokenPool", "aiolimiter")


def made_up() -> list[Any]:
    """Figures of every scenario that has a picture."""
    rows = []

    def row(
        scenario: str, case: str, unit: str, loop: str = "asyncio", names: tuple[str, ...] = ("aiorate TokenPool", "aiolimiter")
    ) -> None:
        for place, name in enumerate(("floor: bare future", *names), 1):
            rows.append(measure.Measured(scenario, loop, name, case, unit, (10.0 * place, 11.0 * place, 12.0 * place)))

    for case in ("acquire(), 1 000 000/s", "async with", "try"):
        row("uncontended", case, "ns")
    for loop in ("asyncio", "uvloop"):
        for many in ("100", "1 000", "10 000"):
            row("drain", f"{many} waiters", plots.COST, loop)
            row("sustained", f"{many}/s", plots.CORE, loop)
            row("scale", many, scale.WAITING, loop)
            row("scale", many, scale.LIMITERS, loop)
        for what in ("p50", "p99", "max"):
            row("precision", f"1 000/s {what}", "us late", loop, ("aiorate TokenPool, precise", "aiolimiter"))
    for rate in scale.RATES:
        row("scale", rate, scale.IN_HAND)
        row("scale", rate, scale.IN_LINE, "")
    for unit in (*keys.USES, keys.OWING, keys.EVICTING):
        for many in ("1", "1 000 000"):
            row("keys", many, unit, names=("aiorate TokenPool", f"aiorate TokenPool{keys.SHARED}"))
    rows.append(measure.Measured("drain", "asyncio", "limits-moving", "10 000 waiters", plots.COST, (), "stopped after 20 s"))
    return rows


@pytest.mark.slow  # draws pictures
def test_the_same_figures_give_the_same_pictures() -> None:
    """They are kept with the documents, and change with the figures only. They are readable on white and on black."""
    pictures = plots.plots(made_up())

    assert list(pictures) == ["uncontended", "drain", "sustained", "precision", "scale", "keys"]
    assert pictures == plots.plots(made_up())
    for text in pictures.values():
        shown = "".join(ElementTree.fromstring(text).itertext())
        assert "aiorate TokenPool" in shown
        assert "#000000" not in text
        assert "#ffffff" not in text
        assert "dc:date" not in text


def test_a_run_without_figures_has_no_pictures() -> None:
    """Such as a run in which all subjects failed."""
    other = [measure.Measured("drain", "asyncio", "aiolimiter", "100 waiters", "wall/ideal", (1.0,))]
    failed = [measure.Measured("drain", "asyncio", "aiolimiter", "100 waiters", plots.COST, (), "hangs")]

    assert plots.plots([]) == {}
    assert plots.plots(failed) == {}
    assert plots.plots(other) == {}
