"""Reads the times of an access log: Apache's and nginx's combined and common log formats.

Of each line it needs the time in brackets, ``[10/Oct/2000:13:55:36 -0700]``, and, for a limit per client, the first field. Nothing else
of the line matters, so other formats with such a time are read too.
"""

from __future__ import annotations

import re
from array import array
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from aiorate._simulate.arrivals import LAST_SECOND
from aiorate._simulate.errors import BadLine
from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EXAMPLE", "AccessLog", "is_access_log"]

EXAMPLE = "[10/Oct/2000:13:55:36 +0200]"
_TIME = re.compile(rb"\[(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))? ([+-])(\d\d)([0-5]\d)\]")
_MONTHS = {name: number for number, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}
_STAMP = len(EXAMPLE)
_MOST_KNOWN = 10_000  # seconds whose text is remembered


def is_access_log(line: bytes) -> bool:
    """Whether the line has a time in brackets, as access logs have."""
    return _TIME.search(line) is not None


class AccessLog:
    """What was read: times in ns since 1970 and, if asked for, the number of the client in each line.

    ``skip_broken`` leaves out lines without a time, and counts them in `skipped`. Otherwise they raise `BadLine`.
    """

    def __init__(self, *, by_client: bool = False, skip_broken: bool = False) -> None:
        self.times = array("q")
        self.keys = array("l") if by_client else None
        self.clients: dict[bytes, int] = {}
        self.skipped = 0
        self.fractions = False
        """Whether a time had a fraction of a second."""
        self._skip_broken = skip_broken
        self._known = _Seconds()

    def read(self, lines: Sequence[bytes], first: int) -> None:
        """Read lines without their ends, of which the first has the number ``first``."""
        known = self._known
        try:
            # Most seconds are that of a line before, and the others are read by `_Seconds`.
            self.times.extend([known[line[(at := line.find(b"[")) : at + _STAMP]] for line in lines])
        except KeyError:
            self._read_slowly(lines, first)
        else:
            if self.keys is not None:
                self.keys.extend([self._client(line) for line in lines])
        if len(known) > _MOST_KNOWN:
            known.clear()

    def _read_slowly(self, lines: Sequence[bytes], first: int) -> None:
        """Read lines of which some are blank or broken, or have their time elsewhere."""
        for number, line in enumerate(lines, first):
            instant = self._time(line, number)
            if instant is not None:
                self.times.append(instant)
                if self.keys is not None:
                    self.keys.append(self._client(line))

    def _client(self, line: bytes) -> int:
        return self.clients.setdefault(line.partition(b" ")[0], len(self.clients))

    def _time(self, line: bytes, number: int) -> int | None:
        match = _TIME.search(line)
        seconds = None if match is None else _seconds(match)
        if match is None or seconds is None:
            if not line.strip():
                return None
            if self._skip_broken:
                self.skipped += 1
                return None
            if match is None:
                raise BadLine(number, line, f"has no time in brackets, such as {EXAMPLE}")
            raise BadLine(number, line, f"has a time that does not exist, or is not from 1970 to 2261: {match[0].decode()}")
        instant = seconds * NS_PER_SECOND
        if match[7]:
            self.fractions = True
            instant += int(match[7].ljust(9, b"0"))
        return instant


class _Seconds(dict[bytes, int]):
    """Ns since 1970 for each text of a second that was read."""

    def __missing__(self, stamp: bytes) -> int:
        match = _TIME.fullmatch(stamp)
        seconds = None if match is None or match[7] else _seconds(match)
        if seconds is None:
            raise KeyError(stamp)
        instant = self[stamp] = seconds * NS_PER_SECOND
        return instant


def _seconds(match: re.Match[bytes]) -> int | None:
    """Since 1970; None if there is no such time. A leap second counts as the one after it, as in POSIX."""
    day, month, year, hour, minute, second, _, sign, ahead_h, ahead_min = match.groups()
    if int(second) > 60 or int(ahead_h) > 23:
        return None
    try:
        begin = datetime(int(year), _MONTHS[month], int(day), int(hour), int(minute), tzinfo=UTC)
    except (KeyError, ValueError):
        return None
    ahead = int(ahead_h) * 3_600 + int(ahead_min) * 60
    seconds = int(begin.timestamp()) + int(second) + (ahead if sign == b"-" else -ahead)
    return seconds if 0 <= seconds < LAST_SECOND else None
