"""The scenario `ready`: its limiters are in the state that it says, and its ratios are of the right figures. No test asks for a speed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import Any

import pytest
from benchmarks import conditions, main, measure, ready, subjects

import aiorate

pytestmark = pytest.mark.slow  # each test plays a whole scenario

STRATEGIES = {subject.name: subject for subject in subjects.AIORATE if subject.name in ready.STRATEGIES}
LEAKY = "asynciolimiter-leaky"


def plan(*chosen: Any) -> Any:
    return measure.Plan("smoke", 1, ("asyncio",), chosen, str)


def available(limiters: Callable[[], Awaitable[list[Any]]]) -> list[int]:
    """What each limiter of a lap has."""

    async def look() -> list[int]:
        return [calls.limiter.statistics().available for calls in await limiters()]

    return measure.run_in("asyncio", look, 5.0)


@pytest.mark.parametrize(
    ("name", "rate", "most"),
    [
        ("aiorate TokenBucket", 1_000, 10),
        ("aiorate TokenBucket", 1_000_000, 10_000),
        ("aiorate TokenPool", 1_000, 2),
        ("aiorate TokenPool", 1_000_000, 1_000),
    ],
)
def test_the_full_limiters_of_a_lap_are_full(name: str, rate: int, most: int) -> None:
    """Each has its own store; with one for all, only the first call would find it full."""
    assert available(ready.filled(STRATEGIES[name], rate)) == [most] * ready.RING


@pytest.mark.parametrize("rate", [1_000, 1_000_000])
@pytest.mark.parametrize("name", ready.STRATEGIES)
def test_the_limiter_in_use_is_half_full(name: str, rate: int) -> None:
    """All calls of a lap take from it. A full or an empty one would take another way through the code."""
    found = available(ready.half_used(STRATEGIES[name], rate))

    assert len(found) == ready.RING
    assert 0 < min(found)
    assert max(found) < ready.STORE


@pytest.mark.parametrize(
    ("permits", "initial", "why"), [("1000/s", 0, "no store to take from"), ("1/d", ready.STORE // 2 + 1, "full or empty")]
)
def test_a_limiter_not_in_use_has_no_figure(permits: str, initial: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls would be refused, and being refused is cheap."""
    monkeypatch.setattr(ready, "CALLS", ready.CALLS[2:])
    monkeypatch.setattr(ready, "hundred_workers", lambda *_: lambda: (1.0, 1.0))

    def make(rate: float, burst: int) -> Any:
        return subjects.limited(aiorate.TokenBucket(permits, burst, min(burst, initial)))

    small = subjects.Subject("aiorate TokenBucket", "aiorate", "", make)

    rows = [row for row in ready.run(plan(small)) if row.subject.endswith("1 000/s in use")]

    assert [((), why)] * 2 == [(row.samples, row.remark) for row in rows]


def test_a_coarse_clock_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows counts CPU time in steps of 15 ms."""
    monkeypatch.setattr(ready, "CALLS", ready.CALLS[:1])
    monkeypatch.setattr(ready, "thread_time_ns", lambda: 0)
    monkeypatch.setattr(ready, "hundred_workers", lambda *_: lambda: (1.0, 1.0))

    rows = [row for row in ready.run(plan(STRATEGIES["aiorate TokenPool"])) if row.unit == ready.RATIO]

    assert {((), "the clock of CPU time is too coarse")} == {(row.samples, row.remark) for row in rows}


def test_laps_that_are_all_late_have_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their limiters look at the loop, and a limiter that is called each millisecond seldom does."""
    monkeypatch.setattr(ready, "CALLS", ready.CALLS[2:])
    monkeypatch.setattr(ready, "hundred_workers", lambda *_: lambda: (1.0, 1.0))
    hours = iter(range(10**9))
    monkeypatch.setattr(ready, "perf_counter_ns", lambda: next(hours) * 3_600 * 10**9)

    rows = [row for row in ready.run(plan(STRATEGIES["aiorate TokenBucket"])) if "1 000/s full" in row.subject]

    assert {((), "no lap in time")} == {(row.samples, row.remark) for row in rows}


def test_the_dearest_is_compared_with_the_cheapest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same call by as many callers. The mean of laps includes looks at the loop, and does not count."""
    figures = cycle([(4.0, 20.0), (2.0, 2.0), (8.0, 8.0), (6.0, 6.0)])
    monkeypatch.setattr(ready, "run_in", lambda *_: next(figures))
    monkeypatch.setattr(ready, "hundred_workers", lambda *_: lambda: (1.0, 1.0))

    rows = list(ready.run(plan(STRATEGIES["aiorate TokenPool"])))

    spread = {row.case: row.samples for row in rows if row.unit == ready.SPREAD}
    calls = ("await acquire()", "async with", "try_acquire()")
    assert spread == {f"{call}, {callers}": (4.0,) for call in calls for callers in ("1 caller", "100 callers")}
    assert {row.samples for row in rows if row.subject.endswith(ready.MEAN)} == {(20.0,)}


def test_others_are_measured_where_they_have_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a clock differs between machines. The spread is aiorate's alone."""
    monkeypatch.setattr(ready, "CALLS", ready.CALLS[:2])
    monkeypatch.setattr(ready, "run_in", lambda *_: (2.0, 2.0))
    monkeypatch.setattr(ready, "hundred_workers", lambda *_: lambda: (1.0, 1.0))
    others = [subject for subject in main.SUBJECTS if subject.name in ready.COMPARED]

    rows = list(ready.run(plan(*others)))

    found = {(row.subject, row.case) for row in rows}
    assert found == {
        (name, f"await acquire(), {callers}") for name in ("empty coroutine + clock", LEAKY) for callers in ("1 caller", "100 callers")
    }


def test_workers_are_compared_by_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limiter that delivers half the rate at half the cost is not a cheap one."""
    monkeypatch.setattr(ready, "CALLS", ())
    leaky = cycle([(0.5, 20.0), (1.0, 60.0)])
    monkeypatch.setattr(ready, "hundred_workers", lambda loop, subject, *_: lambda: next(leaky) if subject.name == LEAKY else (0.6, 45.0))

    rows = list(ready.run(plan(STRATEGIES["aiorate TokenPool"])))

    assert {row.unit: row.median for row in rows} == pytest.approx({ready.CPU: 1.5, ready.DELIVERED: 0.8})


def test_workers_that_get_nothing_have_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their cost for each permit would be infinite."""
    monkeypatch.setattr(ready, "CALLS", ())
    monkeypatch.setattr(ready, "hundred_workers", lambda *_: lambda: (0.0, 1.0))

    rows = list(ready.run(plan(STRATEGIES["aiorate TokenPool"])))

    assert {((), "nothing delivered")} == {(row.samples, row.remark) for row in rows}


def test_busy_processes_and_the_hook_end_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left behind, they would slow down everything after it."""
    started: list[Any] = []

    def start(*arguments: Any) -> Any:
        started.append(subprocess.Popen(*arguments))
        return started[-1]

    monkeypatch.setattr(conditions, "subprocess", type("Starts", (), {"Popen": staticmethod(start)}))
    before = sys.getprofile()

    def fail() -> None:
        with conditions.slowed(2, traced=True):
            assert sys.getprofile() is not before
            assert [each.poll() for each in started] == [None, None]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert sys.getprofile() is before
    assert None not in [each.poll() for each in started]


def test_the_report_says_what_slowed_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures are not comparable with others."""
    monkeypatch.setattr(main, "measure", lambda names, plan: iter(()))

    assert main.main(["ready", "--size", "smoke", "--loop", "asyncio", "--beside", "1", "--traced"]) == 0

    assert "python tests/benchmarks ready --size smoke --loop asyncio --beside 1 --traced\n" in capsys.readouterr().out


def test_ready_needs_its_floor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The leaky bucket is the floor of the workers, whichever subjects are chosen."""
    monkeypatch.setitem(sys.modules, "asynciolimiter", None)

    assert main.main(["ready", "--only", "TokenPool"]) == 2
    assert "the benchmarks need asynciolimiter" in capsys.readouterr().err
