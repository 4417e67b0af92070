"""Numbers, durations and dates in the value of a header field. Text in, numbers out; unreadable text is None.

Knows no header by its name. The sources:

* dates: RFC 9110, https://www.rfc-editor.org/rfc/rfc9110#section-5.6.7, and RFC 3339
* durations such as ``6m0s``: https://pkg.go.dev/time#ParseDuration
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite

LONGEST = 86_400.0
"""Seconds, one day: pauses and resets are cut to it, whatever a server says."""

_LARGEST = 999_999_999_999_999  # as in structured fields: RFC 9651, section 3.3.1

_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_GO_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_GO_DURATION = re.compile(f"(?:{_GO_PART.pattern})+")
_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
# The three forms of RFC 9110, section 5.6.7, and those of mail, which give their zone as a number. Dates of JavaScript do not match.
_HTTP_DATE = re.compile(r"[A-Za-z]{3,9},? .+[0-9]{2}:[0-9]{2}:[0-9]{2}(?: GMT| UTC| [+-][0-9]{4}| [0-9]{4})")
_RFC_3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})?")
# Clients, and aiorate, join fields of one name with commas, and a date contains a comma itself.
_PIECE = re.compile(r"\s*(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,[^,]*|[^,]+", re.IGNORECASE)


def numbers(text: str) -> list[float]:
    """The plain numbers among the values, which commas separate."""
    return [float(piece) for piece in map(str.strip, text.split(",")) if _NUMBER.fullmatch(piece)]


def whole(number: float) -> int:
    """The count of requests, rounded down: half a request cannot be sent."""
    return int(min(number, _LARGEST))


def window(seconds: float) -> float | None:
    """The window of a policy in seconds; None unless it is 1 to `LONGEST`."""
    return float(seconds) if 1 <= seconds <= LONGEST else None


def bounded(seconds: float) -> float | None:
    """The seconds, 0 to `LONGEST`; None for NaN. Less than a nanosecond, the unit of limiters, is 0."""
    if not isfinite(seconds):
        return LONGEST if seconds > 0 else None
    return min(seconds, LONGEST) if seconds >= 1e-9 else 0.0


def latest(text: str, clock: Clock) -> tuple[float, float] | None:
    """The latest of the times in the text, in seconds from now, 0 to `LONGEST`, and the error; None if no time can be read.

    The error is in seconds: a time to the second and a Date add one each. A duration has none.
    """
    return max((time for piece in _PIECE.findall(text) if (time := _time(piece, clock)) is not None), default=None)


class Clock:
    """The server's Unix time in seconds: its Date plus the time that the response spent in caches, or the local clock."""

    __slots__ = ("_age", "_date", "_now", "error")

    def __init__(self, date: str, age: float, now: float | None) -> None:
        self._date = date
        self._age = age
        self._now = now
        self.error: float = 0.0
        """Seconds by which the time may be wrong, once it was asked for: a Date has whole seconds."""

    def now(self) -> float:
        """The time of the response. Its Date is parsed at the first call."""
        if self._date:
            sent = next((moment for piece in _PIECE.findall(self._date) if (moment := _moment(piece)) is not None), None)
            self._date = ""
            if sent is not None:
                self._now = sent + self._age
                self.error = 1.0
        if self._now is None:
            self._now = time.time()
        return self._now


def _time(text: str, clock: Clock) -> tuple[float, float] | None:
    # Seconds from now, in any of the known forms, and the error. The past counts as now.
    text = text.strip()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        if seconds > 1e21:
            return LONGEST, 0.0  # after the year 33658 in nanoseconds
        while seconds > 1e12:  # not seconds: 1e12 ms was in 2001
            seconds /= 1000
        return _until(seconds, clock) if seconds > 1e9 else _exactly(seconds)
    if _GO_DURATION.fullmatch(text):
        return _exactly(sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(text)))
    moment = _moment(text)
    return None if moment is None else _until(moment, clock)


def _exactly(seconds: float) -> tuple[float, float] | None:
    cut = bounded(seconds)
    return None if cut is None else (cut, 0.0)


def _until(moment: float, clock: Clock) -> tuple[float, float] | None:
    cut = bounded(moment - clock.now())
    return None if cut is None else (cut, clock.error + moment.is_integer())


def _moment(text: str) -> float | None:
    # The Unix time of a date of RFC 3339 or HTTP. Without a zone it is in UTC.
    text = text.strip()
    try:
        if _RFC_3339.fullmatch(text):
            moment = datetime.fromisoformat(text.upper())
        elif _HTTP_DATE.fullmatch(text):
            moment = parsedate_to_datetime(text)
        else:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
