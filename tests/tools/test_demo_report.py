"""The output of the demo, from figures by hand: tables, plot and progress, on a terminal and in a pipe."""

from __future__ import annotations

import asyncio
import io
import re

import pytest
from rich.console import Console

import aiorate
from aiorate._demo import load as _demo_load
from aiorate._demo import report as _demo_report
from aiorate._demo import run as _demo
from aiorate._demo.verdict import judge


def _outcome(**changes: object) -> _demo.Outcome:
    limiter = _demo_load.WatchedLimiter(aiorate.BurstCompensation("10/s"))
    limiter.waits = [0.001 * n for n in range(1, 101)]
    free = _demo_load.Load(1.0, answered={"httpx2": 11, "aiohttp": 13})
    load = _demo_load.Load(2.0, answered={"httpx2": 10, "aiohttp": 10})
    instants = [n * 100_000_000 for n in range(20)]
    fields: dict[str, object] = {
        "rate": aiorate.Rate.parse("10/s"),
        "limiter": limiter,
        "free": free,
        "free_arrivals": [n * 40_000_000 for n in range(24)],
        "load": load,
        "arrivals": instants,
        "verdict": judge(limiter.bound_ns, instants, [instant + 2_000_000 for instant in instants], [1_000_000_000]),
    }
    return _demo.Outcome(**(fields | changes))  # type: ignore[arg-type]


def _shown(outcome: _demo.Outcome, *, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal, color_system="standard" if terminal else None)
    _demo.show(console, outcome)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_tables_show_what_was_measured() -> None:
    """Each figure by hand: 24 arrivals in 1 s, 20 in 2 s, waits from 1 to 100 ms, 10 grants in the worst second of at most 11."""
    words = " ".join(_shown(_outcome()).split())

    assert "asked rate none 10.0/s" in words
    assert "delivered rate 24.0/s 10.0/s (100.0%)" in words
    assert "requests by httpx2 11 10 requests by aiohttp 13 10" in words
    assert "waits p50 - 50.0 ms waits p99 - 99.0 ms skipped permits - 0" in words
    assert "1 s 10 11 10 11 kept" in words
    assert "Kept: no window" in words


def test_colours_are_for_terminals_only() -> None:
    """Escape codes in a log file are garbage."""
    assert "\x1b[" in _shown(_outcome(), terminal=True)
    assert "\x1b" not in _shown(_outcome())
    plain = re.sub(r"\x1b\[[0-9;]*m", "", _shown(_outcome(), terminal=True))
    assert _shown(_outcome()) == plain


def test_a_broken_guarantee_is_shown_in_its_window() -> None:
    """In red and in words, since some readers see no red."""
    verdict = judge(lambda window: 3, range(4), range(4), [10])

    shown = _shown(_outcome(verdict=verdict))

    assert "4           3         4                    3   BROKEN" in shown
    assert "BROKEN: some window holds more" in shown


def test_a_strategy_without_a_bound_has_kept_none() -> None:
    """TicksAccumulator promises an average only; "kept" would be a lie."""
    verdict = judge(lambda window: None, range(4), range(4), [10])

    shown = _shown(_outcome(verdict=verdict))

    assert verdict.kept
    assert "bounds no window" in shown
    assert "none" in shown
    assert "Kept" not in shown
    assert "BROKEN" not in shown


def test_a_machine_too_slow_for_the_rate_is_reported() -> None:
    """Otherwise the limiter would be blamed for the missing requests."""
    assert "makes 24 requests/s without any limiter" in _shown(_outcome(rate=aiorate.Rate(1_000)))
    assert "without any limiter" not in _shown(_outcome())


def test_the_plot_works_on_an_ascii_terminal() -> None:
    """It gets question marks, not a UnicodeEncodeError."""
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=80)

    text = str(_demo_report.plot(console, [0], [1_500_000_000], 1.0, 1.0, 2.0))

    assert text.isascii()
    assert "2 s" in text


def test_arrivals_are_binned_by_half_open_intervals() -> None:
    """Instants before the beginning and after the end are not drawn."""
    instants = [-1, 0, 499_999_999, 500_000_000, 999_999_999, 1_000_000_000]

    assert _demo_report.arrivals_per_bin([n for n in instants if n >= 0], 0.5, 2) == [2, 2]


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("terminal", [True, False])
async def test_progress_is_shown_while_it_runs(terminal: bool) -> None:
    """A bar on a terminal, whole lines elsewhere; one line stays at the end."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    load = _demo_load.Load(3.0)

    async with _demo_report.progress(console, "busy", load):
        for _ in range(3):
            load.answered["httpx2"] += 5
            await asyncio.sleep(1.1)

    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("\x1b" in shown) == terminal
    assert "busy: 15 requests answered in 3 s" in shown
    if not terminal:
        assert shown.splitlines()[:2] == ["  busy: 1 s, 5 answered", "  busy: 2 s, 10 answered"]


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_progress_that_cannot_be_written_ends_the_run() -> None:
    """As in ``demo | head -1``: the reader has closed the pipe."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console = _demo_report.new_console()
    console.file = Gone()

    with pytest.raises(BrokenPipeError):
        async with _demo_report.progress(console, "busy", _demo_load.Load(3.0)):
            await asyncio.sleep(2)
