"""Reads a column of times from a CSV file: seconds since 1970, or ISO 8601.

Times are kept as written, to the nanosecond. Nothing is guessed: the first line is a header only if it names the column of the times.
"""

from __future__ import annotations

import csv
import re
from array import array
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from aiorate._simulate.arrivals import LAST_SECOND
from aiorate._simulate.errors import BadLine
from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NAMES", "UNITS", "CsvTimes"]

UNITS = {"s": NS_PER_SECOND, "ms": 1_000_000, "us": 1_000, "ns": 1}
NAMES = ("time", "timestamp", "datetime", "date", "ts", "at", "arrival", "arrived")
"""Headers that name the column of the times, in upper or lower case, where no column was given."""

_ISO = re.compile(rb"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d):(\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:?\d\d)?", re.IGNORECASE)
_MOST_KNOWN = 10_000  # minutes whose text is remembered
_SCALES = (NS_PER_SECOND, *(10**places for places in range(9, -1, -1)))  # by the length of a fraction with its point, 0 without
_MOST_PLACES = len(_SCALES)


class CsvTimes:
    """What was read: times in ns since 1970 and, if asked for, a number for each value of the key's column.

    ``column`` and ``key`` are names in the header, or numbers from 1. ``unit`` is that of times that are numbers.
    """

    def __init__(self, *, column: str | None = None, key: str | None = None, unit: str = "s", skip_broken: bool = False) -> None:
        self.times = array("q")
        self.keys = None if key is None else array("l")
        self.clients: dict[bytes, int] = {}
        self.skipped = 0
        self.fractions = False
        """Whether a time had a fraction of a second."""
        self._column, self._key = column, key
        self._unit = UNITS[unit]
        self._unit_name = unit
        self._skip_broken = skip_broken
        self._place: int | None = None  # the column of the times, from 0; None: the first line is still to come
        self._key_place = -1
        self._minutes: dict[tuple[bytes, bytes, bytes | None], int] = {}

    def read(self, lines: Sequence[bytes], first: int) -> None:
        """Read lines without their ends, of which the first has the number ``first``."""
        begin = 0
        while self._place is None:
            if begin == len(lines):
                return
            line = lines[begin]
            if line.strip() and not self._begin(line, first + begin):
                break
            begin += 1
        alone = self._place == 0 and self._key_place < 0 and self._unit == NS_PER_SECOND
        append, scales, most = self.times.append, _SCALES, LAST_SECOND * NS_PER_SECOND
        for number, line in enumerate(lines[begin:] if begin else lines, first + begin):
            if alone:  # digits and at most one point are read at once, in a third of the time
                digits = line.replace(b".", b"", 1)
                if digits.isdigit():
                    places = len(line) - line.find(b".") if len(digits) < len(line) else 0
                    if places < _MOST_PLACES:
                        instant = int(digits) * scales[places]
                        if instant < most:
                            append(instant)
                            if places:
                                self.fractions = True
                            continue
            self._read_line(line, number)

    def _read_line(self, line: bytes, number: int) -> None:
        assert self._place is not None
        try:
            if b'"' in line:
                fields = _quoted(line)
            else:
                fields = line.split(b",", 1 + max(self._place, self._key_place))
            instant = self._time(fields[self._place].strip())
            key = fields[self._key_place].strip() if self.keys is not None else b""
        except (IndexError, csv.Error, _WrongTime) as error:
            if not line.strip():
                return
            if self._skip_broken:
                self.skipped += 1
                return
            raise BadLine(number, line, self._why(error)) from None
        self.times.append(instant)
        if self.keys is not None:
            self.keys.append(self.clients.setdefault(key, len(self.clients)))

    def _begin(self, line: bytes, number: int) -> bool:
        """Find the columns by the first line; returns whether it is a header."""
        try:
            fields = [field.strip() for field in _quoted(line)]
        except csv.Error:
            raise BadLine(number, line, _neither(0)) from None
        names = [field.decode("utf-8", "replace").strip().lower() for field in fields]
        header = False
        if self._column is None:
            place = 0
            if not self._is_time(fields[0]):
                header = True
                found = [place for place, name in enumerate(names) if name in NAMES]
                if len(found) != 1:
                    raise BadLine(number, line, _neither(len(found)))
                place = found[0]
        else:
            place = self._find("--column", self._column, names, number, line)
            header = not self._is_time(fields[place])
            if header and self._column.isdigit() and self._is_number(fields[place]):
                raise BadLine(number, line, self._why(_WrongTime("")))
        if self._key is not None:
            self._key_place = self._find("--key", self._key, names, number, line)
        self._place = place
        return header

    def _find(self, option: str, column: str, names: list[str], number: int, line: bytes) -> int:
        if column.isascii() and column.isdigit():  # never the name of a column: without a header, the names are data
            if 1 <= int(column[:9]) <= len(names):
                return int(column) - 1
        elif column.strip().lower() in names:
            return names.index(column.strip().lower())
        raise BadLine(number, line, f"has no column {column!r}, which {option} asks for: write a name in the header, or 1 to {len(names)}")

    def _is_time(self, field: bytes) -> bool:
        """Whether it is meant as a time: it may be one that is not allowed."""
        try:
            self._time(field)
        except _WrongTime as error:
            return bool(str(error))
        return True

    @staticmethod
    def _is_number(field: bytes) -> bool:
        try:
            Decimal(field.decode("ascii", "replace"))
        except InvalidOperation:
            return False
        return True

    def _time(self, field: bytes) -> int:
        """Ns since 1970. Raises `_WrongTime`."""
        if field.isdigit() and len(field) < _MOST_PLACES:
            ns = int(field) * self._unit
        elif match := _ISO.fullmatch(field):
            day, minute, second, fraction, zone = match.groups()
            begin = self._minutes.get((day, minute, zone))
            if begin is None:
                begin = _epoch(f"{day.decode()}T{minute.decode()}", (zone or b"Z").decode())
                if len(self._minutes) >= _MOST_KNOWN:
                    self._minutes.clear()
                self._minutes[day, minute, zone] = begin
            if int(second) > 60:
                raise _WrongTime("has a time with more than 60 seconds")
            ns = (begin + int(second)) * NS_PER_SECOND
            if fraction:
                ns += int(fraction[:9].ljust(9, b"0"))
        else:
            ns = self._number(field) if re.fullmatch(rb"[+-]?[\d.]+(?:[eE][+-]?\d+)?", field) else _other_iso(field)
        if ns < 0:
            raise _WrongTime("has a time before 1970; times from 1970 to 2261 are allowed")
        if ns >= LAST_SECOND * NS_PER_SECOND:
            raise _WrongTime(self._too_late(field))
        if ns % NS_PER_SECOND:
            self.fractions = True
        return ns

    def _number(self, field: bytes) -> int:
        try:
            number = Decimal(field.decode("ascii"))
        except (InvalidOperation, UnicodeDecodeError):
            raise _WrongTime("") from None
        if number and number.adjusted() > 20:
            raise _WrongTime(self._too_late(field))
        return int(number * self._unit)  # rounded down

    def _too_late(self, field: bytes) -> str:
        finer = {"s": "ms, us or ns", "ms": "us or ns", "us": "ns"}.get(self._unit_name)
        hint = f"; if it counts {finer}, write --unit" if finer and field.isdigit() else ""
        return f"has a time after 2261; times from 1970 to 2261 are allowed{hint}"

    def _why(self, error: Exception) -> str:
        if isinstance(error, IndexError):
            return f"has no column {1 + max(self._place or 0, self._key_place)}"
        if isinstance(error, csv.Error):
            return "is not CSV: a quoted field must end in its line, and a line with a line feed"
        count = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}[self._unit_name]
        return (
            str(error)
            or f"has no time in column {1 + (self._place or 0)}: write {count} since 1970, or ISO 8601 such as 2024-05-01T12:00:00.5Z"
        )


class _WrongTime(Exception):  # it never leaves this file
    """A field is not a time; the text says why, or nothing."""


def _neither(found: int) -> str:
    if found:
        return f"has {found} columns that could be the times; name one with --column"
    return (
        "is not of an access log, which has a time such as [10/Oct/2000:13:55:36 +0200], nor of a CSV file, whose first column has seconds"
        f" since 1970 or ISO 8601 times, or whose header has a column {', '.join(NAMES[:-1])} or {NAMES[-1]}; name another with --column"
    )


def _quoted(line: bytes) -> list[bytes]:
    """The fields of a line of CSV. Raises csv.Error."""
    text = line.decode("utf-8", "surrogateescape")
    return [field.encode("utf-8", "surrogateescape") for row in csv.reader([text], strict=True) for field in row]


def _epoch(minute: str, zone: str) -> int:
    """Seconds since 1970. Raises `_WrongTime`."""
    try:
        return int(datetime.fromisoformat(minute + zone.upper().replace("Z", "+00:00")).timestamp())
    except (ValueError, OverflowError):
        raise _WrongTime("has a time that does not exist") from None


def _other_iso(field: bytes) -> int:
    """Less usual forms, such as a date alone, to the microsecond. Without a time zone: UTC. Raises `_WrongTime` without a text."""
    try:
        time = datetime.fromisoformat(field.decode("ascii"))
    except ValueError:
        raise _WrongTime("") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
