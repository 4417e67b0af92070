"""Reads arrivals from a file or standard input: opens it, cuts it into lines, and has the reader of its format read them."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from typing import TYPE_CHECKING, cast

from aiorate._simulate.access_log import AccessLog, is_access_log
from aiorate._simulate.arrivals import Arrivals, arrange
from aiorate._simulate.csv_times import CsvTimes
from aiorate._simulate.errors import ArrivalsError, BadLine, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader

__all__ = ["FORMATS", "read_arrivals"]

FORMATS = ("auto", "log", "csv")
STDIN = "-"
_CHUNK = 1 << 18
_LOOKED_AT = 100  # lines that decide about the format if broken ones may be among them
_LONGEST = 1 << 20  # bytes of a line
_UTF8 = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_GZIP = b"\x1f\x8b"


def read_arrivals(
    path: str,
    *,
    form: str = "auto",
    column: str | None = None,
    unit: str = "s",
    key: str | None = None,
    spread: str | None = None,
    skip_broken: bool = False,
    seed: int = 0,
    watch: Callable[[int, int | None], object] = lambda done, total: None,
) -> Arrivals:
    """Read all arrivals. ``key`` is "address" for an access log, or a column of a CSV file; None: all requests are alike.

    ``form`` is one of `FORMATS`; "auto" looks at the first line. ``spread`` None means "even" for an access log, whose times are whole
    seconds, and "none" for a CSV file. ``watch`` is told how many bytes were read, and of how many. Raises `ArrivalsError`.
    """
    name = "standard input" if path == STDIN else path
    reader: AccessLog | CsvTimes | None = None
    if path == STDIN and sys.stdin is None:
        raise ArrivalsError("standard input is closed.")
    try:
        with _Input(path) as source:
            for lines, first in source.lines():
                if reader is None:
                    reader = _reader(lines, first, form, column, unit, key, skip_broken)
                    if reader is None:
                        continue  # blank lines
                reader.read(lines, first)
                watch(source.done, source.total)
    except BadLine as bad:
        raise ArrivalsError(f"{name}, line {bad.number} {bad.why}. The line: {shown(bad.line)}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ArrivalsError(f"{name} is a damaged gzip file ({error}).") from None
    except OSError as error:
        raise ArrivalsError(f"cannot read {name}: {error.strerror or error}.") from None
    if reader is None or not reader.times:
        raise ArrivalsError(f"{name} has no arrivals: it {'is empty' if reader is None else 'has no line with a time'}.")
    is_log = isinstance(reader, AccessLog)
    return arrange(
        name,
        "access log" if is_log else "CSV",
        reader.times,
        reader.keys,
        spread if spread is not None else "even" if is_log else "none",
        whole=not reader.fractions,
        skipped=reader.skipped,
        seed=seed,
    )


def _reader(
    lines: list[bytes], first: int, form: str, column: str | None, unit: str, key: str | None, skip_broken: bool
) -> AccessLog | CsvTimes | None:
    begun = next(((number, line) for number, line in enumerate(lines, first) if line.strip()), None)
    if begun is None:
        return None
    number, begins = begun
    if b"\0" in begins:
        raise BadLine(number, begins, "is not text")
    if form == "log" or (form == "auto" and column is None and any(map(is_access_log, lines[:_LOOKED_AT] if skip_broken else [begins]))):
        if column is not None:
            raise ArrivalsError("--column is for CSV files, not for access logs.")
        if key not in (None, "address"):
            raise ArrivalsError(f"--key {key}: an access log has one key, address.")
        return AccessLog(by_client=key is not None, skip_broken=skip_broken)
    return CsvTimes(column=column, key=key, unit=unit, skip_broken=skip_broken)


class _Input:
    """The lines of a file, compressed by gzip or not."""

    def __init__(self, path: str) -> None:
        self._raw = cast("BufferedReader", sys.stdin.buffer) if path == STDIN else open(path, "rb")  # noqa: SIM115  # closed in __exit__
        self._closes = path != STDIN
        try:
            status = os.fstat(self._raw.fileno())
            self.total = status.st_size or None
        except (OSError, ValueError):  # not a file of the system's
            self.total = None
        self.done = 0

    def __enter__(self) -> _Input:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._closes:
            self._raw.close()

    def lines(self) -> Iterator[tuple[list[bytes], int]]:
        """Lists of lines without their ends, each with the number of its first line. Raises BadLine for a line that is too long."""
        stream: BufferedReader | gzip.GzipFile = self._raw
        if self._raw.peek(2).startswith(_GZIP):
            stream = gzip.GzipFile(fileobj=self._raw)
        rest, first = b"", 1
        while chunk := stream.read(_CHUNK):
            if not self.done:
                if chunk.startswith(_UTF16):
                    raise BadLine(1, chunk, "is UTF-16; convert the file to UTF-8")
                chunk = chunk.removeprefix(_UTF8)
            self.done = self.done + len(chunk) if self.total is None else self._raw.tell()
            chunk = rest + chunk
            if b"\r\n" in chunk:
                chunk = chunk.replace(b"\r\n", b"\n")
            lines = chunk.split(b"\n")
            rest = lines.pop()
            if lines:
                yield lines, first
                first += len(lines)
            if len(rest) > _LONGEST:
                raise BadLine(first, rest, f"is longer than {_LONGEST} bytes")
        if rest:
            yield [rest.removesuffix(b"\r")], first
