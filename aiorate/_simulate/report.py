"""The result of a simulation as text of at most 80 columns, and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aiorate._simulate.errors import printable
from aiorate._simulate.words import show_count, show_duration
from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiorate._simulate.arrivals import Arrivals
    from aiorate._simulate.play import Admission
    from aiorate._simulate.summary import Summary

__all__ = ["Limit", "Suggestion", "as_json", "as_text"]


_A_DATE = 365 * 86_400 * NS_PER_SECOND  # earlier times count from something else than 1970


@dataclass(frozen=True, slots=True)
class Limit:
    """What was simulated."""

    code: str
    """The expression that makes the strategy."""
    rate: str
    per_second: float
    admission: Admission
    key: str | None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What would keep the goals, or why nothing does."""

    what: str
    """``"burst"`` or ``"rate"``: the number that was searched."""
    about: str
    """In words: the smallest burst at a rate, and so on."""
    code: str | None
    """The expression that makes the strategy; None: none keeps the goals."""
    why: str | None
    """What is not possible, or a reservation."""


def as_text(arrivals: Arrivals, limit: Limit, summary: Summary, goals: str | None, suggestions: Sequence[Suggestion]) -> str:
    """Everything but the plot."""
    lines = [*_about_arrivals(arrivals), "", *_about_limit(limit), "", *_figures(summary, limit)]
    lines = [printable(line) for line in lines]
    if goals is not None:
        lines += ["", f"To keep {goals}:"]
        for suggestion in suggestions:
            lines.append(f"  {suggestion.about}:")
            if suggestion.code is not None:
                lines.append(f"    {_limiter(suggestion.code, limit)}")
            if suggestion.why is not None:
                lines += _wrapped(suggestion.why, "    ")
    return "\n".join(lines)


def _about_arrivals(arrivals: Arrivals) -> Iterator[str]:
    count = len(arrivals.instants)
    mean = arrivals.per_second
    over = "" if count == 1 else ", all at one instant" if mean is None else f" in {show_duration(arrivals.span)}, {mean:.4g}/s on average"
    yield from _wrapped(f"{printable(arrivals.source)} ({arrivals.form}): {_requests(count)}{over}", "")
    if arrivals.start >= _A_DATE:
        yield f"  first at {_utc(arrivals.start)}"
    if arrivals.spread == "even":
        yield from _wrapped(
            "Times are whole seconds: the requests of a second are spread evenly over it (--spread none: all at its beginning)", "  "
        )
    elif arrivals.spread == "random":
        yield from _wrapped("Times are whole seconds: the requests of a second are spread at random over it", "  ")
    elif arrivals.crowded:
        yield from _wrapped(
            "Times are whole seconds, so the requests of a second come all at its beginning, as a burst (--spread even: spread over it)",
            "  ",
        )
    if arrivals.unordered:
        yield from _wrapped(
            f"{show_count(arrivals.unordered)} came before the line above them, by {show_duration(arrivals.back)} at most, and were sorted",
            "  ",
        )
    if arrivals.skipped:
        yield f"  broken lines, left out: {show_count(arrivals.skipped)}"


def _about_limit(limit: Limit) -> Iterator[str]:
    yield limit.code
    admission = limit.admission
    if limit.key is not None:
        yield f"  one for each {limit.key}"
    if admission.permits > 1:
        yield f"  {admission.permits} permits for each request"
    if admission.max_wait is not None:
        yield f"  a request that would wait longer than {show_duration(admission.max_wait)} is refused"
    if admission.max_waiting is not None:
        yield f"  a request that finds {admission.max_waiting} others waiting is refused"


def _figures(summary: Summary, limit: Limit) -> Iterator[str]:
    def share(number: int) -> str:
        return f"{show_count(number):>12} {number / summary.requests:>8.2%}"

    yield f"granted at once {share(summary.at_once)}"
    yield f"granted later   {share(summary.granted - summary.at_once)}"
    yield f"refused         {share(summary.refused)}"
    if summary.granted:
        yield ""
        waits = (("p50", summary.p50), ("p90", summary.p90), ("p99", summary.p99), ("max", summary.longest))
        yield "waits (granted):  " + "   ".join(f"{name} {show_duration(wait)}" for name, wait in waits)
    one = "" if limit.key is None else f" of one {limit.key}"
    arrived, granted = show_count(summary.arrived_in_window), show_count(summary.granted_in_window)
    yield from _wrapped(f"fullest window of {show_duration(summary.window)}{one}:  {arrived} arrived, {granted} granted", "")
    if summary.clients is not None:
        counts = [show_count(number or 0) for number in (summary.clients, summary.clients_delayed, summary.clients_refused)]
        yield from _wrapped(
            f"{limit.key}:  {counts[0]} values, of which {counts[1]} had a request delayed or refused, and {counts[2]} refused", ""
        )


def _limiter(code: str, limit: Limit) -> str:
    return f"Limiter({code})" if limit.key is None else f"KeyedLimiter(lambda {limit.key if limit.key.isidentifier() else 'key'}: {code})"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{show_count(count)} requests"


def _utc(ns: int) -> str:
    seconds, rest = divmod(ns, NS_PER_SECOND)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{text}{fraction} UTC"


def _wrapped(text: str, indent: str, width: int = 80) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent or "  ", break_long_words=False)


def as_json(arrivals: Arrivals, limit: Limit, summary: Summary, goals: str | None, suggestions: Sequence[Suggestion]) -> dict[str, Any]:
    """The shape that docs/simulate.md describes. All times are seconds."""
    admission = limit.admission
    waits: dict[str, float | None] = dict.fromkeys(("p50", "p90", "p99", "max", "mean"))
    if summary.granted:
        whole = {"p50": summary.p50, "p90": summary.p90, "p99": summary.p99, "max": summary.longest, "mean": summary.mean}
        waits = {name: wait / NS_PER_SECOND for name, wait in whole.items()}
    return {
        "arrivals": {
            "source": arrivals.source,
            "format": arrivals.form,
            "requests": summary.requests,
            "first": arrivals.start / NS_PER_SECOND,
            "seconds": arrivals.span / NS_PER_SECOND,
            "per_second": arrivals.per_second,
            "spread": arrivals.spread,
            "out_of_order": arrivals.unordered,
            "skipped_lines": arrivals.skipped,
        },
        "limit": {
            "strategy": limit.code,
            "rate": limit.rate,
            "per_second": limit.per_second,
            "permits": admission.permits,
            "max_wait": None if admission.max_wait is None else admission.max_wait / NS_PER_SECOND,
            "max_waiting": admission.max_waiting,
            "key": limit.key,
        },
        "granted": summary.granted,
        "granted_at_once": summary.at_once,
        "refused": summary.refused,
        "waits": waits,
        "fullest_window": {
            "seconds": summary.window / NS_PER_SECOND,
            "arrived": summary.arrived_in_window,
            "granted": summary.granted_in_window,
        },
        "keys": None
        if summary.clients is None
        else {"number": summary.clients, "delayed": summary.clients_delayed, "refused": summary.clients_refused},
        "suggest": None
        if goals is None
        else {
            "goals": goals,
            "found": [
                {
                    "searched": each.what,
                    "strategy": each.code,
                    "limiter": None if each.code is None else _limiter(each.code, limit),
                    "note": each.why,
                }
                for each in suggestions
            ],
        },
    }
