"""How ``simulate`` reads arrivals: access logs and CSV files, good and broken. Nothing is guessed."""

from __future__ import annotations

import csv
import gzip
import io
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorate._simulate.access_log import AccessLog
from aiorate._simulate.csv_times import CsvTimes
from aiorate._simulate.errors import ArrivalsError, BadLine, shown
from aiorate._simulate.source import read_arrivals

if TYPE_CHECKING:
    from pathlib import Path

NS = 1_000_000_000
NOON = 1_714_564_800  # 2024-05-01 12:00:00 UTC


def logged(time: str, client: str = "10.0.0.1") -> str:
    return f'{client} - - [{time}] "GET /a?b=[1] HTTP/1.1" 200 5 "-" "curl/8 [x]"'


def saved(path: Path, *lines: str, end: str = "\n") -> str:
    file = path / "arrivals"
    file.write_bytes("".join(line + end for line in lines).encode())
    return str(file)


def instants(path: str, **options: object) -> list[int]:
    arrivals = read_arrivals(path, **options)  # type: ignore[arg-type]
    return [arrivals.start + instant for instant in arrivals.instants]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("01/May/2024:12:00:00 +0000", NOON),
        ("01/May/2024:14:00:00 +0200", NOON),
        ("01/May/2024:06:30:00 -0530", NOON),
        ("29/Feb/2024:23:59:59 +0000", 1_709_251_199),
        ("31/Dec/2016:23:59:60 +0000", 1_483_228_800),
        ("01/Jan/1970:00:00:00 +0000", 0),
    ],
)
def test_a_log_has_times_with_zones_and_leap_days(text: str, seconds: int, tmp_path: Path) -> None:
    """A leap second counts as the one after it."""
    assert instants(saved(tmp_path, logged(text))) == [seconds * NS]


@pytest.mark.parametrize("line", ["::1 - - [{}]", "- - [x] [{}] [01/May/2001:00:00:00 +0000]", 'h - a[b] [{}] "GET / HTTP/1.0" 200 1'])
def test_the_first_time_in_brackets_is_that_of_the_line(line: str, tmp_path: Path) -> None:
    """Other brackets may stand before and after it."""
    assert instants(saved(tmp_path, line.format("01/May/2024:12:00:00 +0000"))) == [NOON * NS]


def test_times_with_fractions_are_not_spread(tmp_path: Path) -> None:
    """They are exact already."""
    path = saved(tmp_path, *[logged(f"01/May/2024:12:00:00.{part} +0000") for part in ("25", "25", "5")])

    assert instants(path) == [NOON * NS + part for part in (250_000_000, 250_000_000, 500_000_000)]


def test_requests_of_a_second_are_spread_evenly_over_it(tmp_path: Path) -> None:
    """Four in a second, then a single one, which stays where it is."""
    path = saved(tmp_path, *[logged("01/May/2024:12:00:00 +0000")] * 4, logged("01/May/2024:12:00:03 +0000"))

    even, none, chance = (read_arrivals(path, spread=spread) for spread in ("even", "none", "random"))

    assert [*even.instants] == [0, NS // 4, NS // 2, 3 * NS // 4, 3 * NS]
    assert [*none.instants] == [0, 0, 0, 0, 3 * NS]
    assert (even.spread, none.spread, chance.spread, none.crowded) == ("even", "none", "random", True)
    assert [*chance.instants] == sorted(chance.instants)
    assert chance.instants[3] < NS
    assert chance.start >= NOON * NS
    assert [*chance.instants] == [*read_arrivals(path, spread="random").instants]
    assert [*chance.instants] != [*read_arrivals(path, spread="random", seed=1).instants]


def test_lines_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    """A server logs a request when it ends."""
    path = saved(tmp_path, *[logged(f"01/May/2024:12:00:{second} +0000", second) for second in ("03", "01", "02", "05")])

    arrivals = read_arrivals(path, key="address")

    assert [*arrivals.instants] == [2 * NS, 0, NS, 4 * NS]
    assert [*arrivals.lines()] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert (arrivals.unordered, arrivals.back, arrivals.span) == (1, 2 * NS, 4 * NS)
    assert [*read_arrivals(path).instants] == sorted(arrivals.instants)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("garbage", "line 3 has no time in brackets, such as [10/Oct/2000:13:55:36 +0200]. The line: 'garbage'"),
        ("\x1b[31mred\x07", r"The line: '\x1b[31mred\x07'"),
        ("x" * 10_000, "x' ..."),
        (logged("30/Feb/2024:12:00:00 +0000"), "line 3 has a time that does not exist"),
        (logged("01/Foo/2024:12:00:00 +0000"), "line 3 has a time that does not exist"),
        (logged("01/May/2024:25:00:00 +0000"), "line 3 has a time that does not exist"),
        (logged("01/May/2024:12:00:61 +0000"), "line 3 has a time that does not exist"),
        (logged("01/May/2024:12:00:00 +2400"), "line 3 has a time that does not exist"),
        (logged("01/May/2024:12:00:00"), "line 3 has no time"),
        (logged("31/Dec/1969:23:59:59 +0000"), "not from 1970 to 2261"),
        (logged("01/Jan/2262:00:00:00 +0000"), "not from 1970 to 2261"),
        (logged("01/May/2024:12:00:00 +0000")[:30], "line 3 has no time"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_broken_line_of_a_log_is_named(line: str, hint: str, end: str, tmp_path: Path) -> None:
    """With its number, and printable. Left out if that is asked for."""
    good = logged("01/May/2024:12:00:00 +0000")
    path = saved(tmp_path, good, "", line, good, end=end)

    with pytest.raises(ArrivalsError) as error:
        read_arrivals(path)
    left = read_arrivals(path, skip_broken=True)

    assert hint in str(error.value)
    assert str(error.value).startswith(f"{path}, line 3 has ")
    assert str(error.value).isprintable()
    assert (len(left.instants), left.skipped) == (2, 1)


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"", "it is empty"),
        (b"\n \r\n\n", "it is empty"),
        (b"time\n", "no line with a time"),
        (b"hello\nworld\n", "line 1 is not of an access log"),
        (b"\n\nhello\n", "line 3 is not of an access log"),
        (b"\x7fELF\0\0\0\n", "line 1 is not text"),
        (b"\0" * (3 << 20), "line 1 is longer than 1048576 bytes"),
        (b"\xff\xfe1\0\n\0", "line 1 is UTF-16"),
        (b'"unclosed\n', "line 1 is not of an access log"),
        (b"\x1f\x8b\x08\0broken", "damaged gzip file"),
        (gzip.compress(b"1\n2\n" * 99, mtime=0)[:-9], "damaged gzip file"),
        (b"a,b\n1,2\n", "line 1 is not of an access log"),
        (b"time,date\n1,2\n", "line 1 has 2 columns that could be the times"),
        (b"nan\n", "line 1 is not of"),
        (b"1\ninf\n", "line 2 has no time in column 1: write seconds since 1970, or ISO 8601"),
        (b"1\n-1\n", "line 2 has a time before 1970; times from 1970 to 2261 are allowed"),
        (b"-1\n", "line 1 has a time before 1970"),
        (b"1\n1960-01-01\n", "line 2 has a time before 1970"),
        (b"1\n2023-02-29T00:00:00Z\n", "line 2 has a time that does not exist"),
        (b"1\n2023-02-28T00:00:61Z\n", "more than 60 seconds"),
        (b"1700000000000\n", "if it counts ms, us or ns, write --unit"),
        (b"1\n99999999999999999999999999\n", "line 2 has a time after 2261"),
        (b"1\n1e999\n", "line 2 has a time after 2261"),
        (b"1\n9999999999,x\n", "line 2 has a time after 2261"),
        (b"1\n9214646400\n", "line 2 has a time after 2261"),
        (b"1\n1.2.3\n", "line 2 has no time in column 1"),
        (b"2024-01-01T00:00:00Z\n2024-01-01T00:00:61Z\n", "more than 60 seconds"),
        (b'1\n"2\n', "line 2 is not CSV"),
        (b"time,x\n1,a\n2\n3,a\n", None),
        (b"x,time\na,1\nb\n", "line 3 has no column 2"),
    ],
)
def test_a_file_that_is_not_a_log_is_named(content: bytes, hint: str | None, tmp_path: Path) -> None:
    """With the line, and with what is allowed."""
    path = tmp_path / "file"
    path.write_bytes(content)

    if hint is None:
        assert len(instants(str(path))) == 3
        return
    with pytest.raises(ArrivalsError) as error:
        read_arrivals(str(path))

    assert str(path) in str(error.value)
    assert hint in str(error.value)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """As the system says it."""
    for path, hint in ((str(tmp_path), "Is a directory|Permission denied"), (str(tmp_path / "none"), "No such file"), ("a\0b", "null")):
        with pytest.raises(ValueError, match=hint):
            read_arrivals(path)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"column": "when"}, "line 1 has no column 'when', which --column asks for: write a name in the header, or 1 to 3"),
        ({"column": "4"}, "or 1 to 3"),
        ({"column": "0"}, "or 1 to 3"),
        ({"column": "b", "key": "who"}, "which --key asks for"),
        ({"column": "c"}, "line 2 has no time in column 3"),
        ({"column": "2", "unit": "ms"}, "line 2 has no time in column 2: write milliseconds since 1970"),
    ],
)
def test_a_column_that_is_not_there_is_named(options: dict[str, str], hint: str, tmp_path: Path) -> None:
    """And those that are."""
    with pytest.raises(ArrivalsError) as error:
        read_arrivals(saved(tmp_path, "a,b,c", "1,y,x"), **options)  # type: ignore[arg-type]
    assert hint in str(error.value)


def test_options_of_the_other_format_are_refused(tmp_path: Path) -> None:
    """They would be ignored."""
    path = saved(tmp_path, logged("01/May/2024:12:00:00 +0000"))

    with pytest.raises(ArrivalsError, match="has one key, address"):
        read_arrivals(path, key="agent")
    with pytest.raises(ArrivalsError, match="--column is for CSV"):
        read_arrivals(path, form="log", column="1")


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("1.5", 1_500_000_000),
        (".5", 500_000_000),
        ("1714564800.123456789", NOON * NS + 123_456_789),
        ("1714564800.1234567899", NOON * NS + 123_456_789),
        ("1.7145648e9", NOON * NS),
        (" 12 ", 12 * NS),
        ("2024-05-01T12:00:00Z", NOON * NS),
        ("2024-05-01 12:00:00", NOON * NS),
        ("2024-05-01T14:00:00.25+02:00", NOON * NS + NS // 4),
        ("2024-05-01T14:00:00,25+0200", NOON * NS + NS // 4),
        ("2024-05-01t12:00:00.123456789z", NOON * NS + 123_456_789),
        ("2024-05-01", (NOON - 43_200) * NS),
        ("20240501T120000Z", NOON * NS),
    ],
)
@pytest.mark.parametrize("row", ["{}", '"{}"', "{},x", '"{}","a, b"'])
def test_a_csv_file_has_seconds_or_iso_times(text: str, ns: int, row: str, tmp_path: Path) -> None:
    """Kept to the nanosecond."""
    if '"' not in row:
        text = text.replace(",", ".")

    assert instants(saved(tmp_path, row.format(text))) == [ns]


@pytest.mark.parametrize(("unit", "ns"), [("s", NS), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)])
def test_numbers_of_a_csv_file_may_have_other_units(unit: str, ns: int, tmp_path: Path) -> None:
    """If that is said."""
    assert instants(saved(tmp_path, "5", "7"), unit=unit) == [5 * ns, 7 * ns]


def test_columns_have_names_or_numbers(tmp_path: Path) -> None:
    """Byte order mark, line ends and quotes do not belong to them."""
    path = tmp_path / "file"
    path.write_bytes('\ufeff"User",Time\r\nann,"3"\r\n\r\nbob,4\r\nann,5'.encode())

    for options in ({}, {"column": "time"}, {"column": "2"}, {"column": "TIME", "key": "user"}, {"key": "1"}):
        arrivals = read_arrivals(str(path), **options)  # type: ignore[arg-type]
        expected = ([3, 5, 4], [(0, 2), (2, 3)]) if "key" in options else ([3, 4, 5], [(0, 3)])
        assert ([(arrivals.start + instant) // NS for instant in arrivals.instants], [*arrivals.lines()]) == expected


def test_a_log_may_be_compressed(tmp_path: Path) -> None:
    """Rotated logs are. The name does not matter."""
    path = tmp_path / "old"
    path.write_bytes(gzip.compress(logged("01/May/2024:12:00:00 +0000").encode()))

    assert instants(str(path)) == [NOON * NS]


@pytest.mark.parametrize("first", ["nan,1", "inf,1", "-inf,1"])
def test_a_number_is_never_taken_for_a_header(first: str, tmp_path: Path) -> None:
    """A column that was given by its number may have no header."""
    with pytest.raises(ArrivalsError, match="line 1 has no time in column 1"):
        read_arrivals(saved(tmp_path, first, "1,2"), column="1")


def test_broken_lines_of_csv_can_be_left_out(tmp_path: Path) -> None:
    """And are counted."""
    arrivals = read_arrivals(saved(tmp_path, "1", "x", "", '"', "3"), skip_broken=True)

    assert (len(arrivals.instants), arrivals.skipped) == (2, 2)


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And forgetting it changes nothing."""
    monkeypatch.setattr("aiorate._simulate.access_log._MOST_KNOWN", 2)
    monkeypatch.setattr("aiorate._simulate.csv_times._MOST_KNOWN", 2)
    logs = [logged(f"01/May/2024:12:{minute:02}:00 +0000") for minute in range(9)]
    expected = [(NOON + 60 * minute) * NS for minute in range(9)]

    assert instants(saved(tmp_path, *logs)) == expected
    assert instants(saved(tmp_path, *[f"2024-05-01T12:{minute:02}:00Z" for minute in range(9)])) == expected
    assert read_arrivals(saved(tmp_path, logs[0], "", logs[1]), key="address").ends is not None


zones = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.datetimes(datetime(1971, 1, 1), datetime(2261, 1, 1), timezones=zones)


@given(st.lists(times, min_size=1, max_size=30))
def test_any_log_is_read_as_it_was_written(times: list[datetime]) -> None:
    """Whatever the zones and the order."""
    log = AccessLog(by_client=True)
    lines = [logged(time.strftime("%d/%b/%Y:%H:%M:%S %z").replace(time.strftime("/%Y:"), f"/{time.year:04}:")).encode() for time in times]

    log.read(lines[:7], 1)
    log.read(lines[7:], 8)

    expected = [(time.replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1) * NS for time in times]
    assert [*log.times] == expected
    assert list(log.keys or ()) == [0] * len(times)


@given(st.lists(st.tuples(times, st.text()), min_size=1, max_size=20))
def test_any_csv_file_is_read_as_it_was_written(rows: list[tuple[datetime, str]]) -> None:
    """Also beside any text, if that stays in its line."""
    reader = CsvTimes()
    for number, (time, text) in enumerate(rows, 1):
        text = text.replace("\n", "").replace("\r", "").replace("\0", "")
        written = io.StringIO()
        csv.writer(written).writerow([time.isoformat(), text])
        reader.read([written.getvalue().removesuffix("\r\n").encode("utf-8", "surrogatepass")], number)

    expected = [(time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000 for time, _ in rows]
    assert [*reader.times] == expected


pieces = st.sampled_from(b'1|9999999999|-|.|,|"|e9|[|]|[10/Oct/2000:13:55:36 +0200]| |T|2024-02-30|:00|Z|\xff|\r|time'.split(b"|"))


@settings(max_examples=300)
@given(st.lists(st.lists(pieces | st.binary(max_size=5), max_size=6).map(b"".join), max_size=6), st.booleans())
def test_any_bytes_are_read_or_named(lines: list[bytes], skip_broken: bool) -> None:
    """No other exception, and every line that is not blank was read or is the error."""
    lines = [line.replace(b"\n", b"") for line in lines]
    for reader in (AccessLog(skip_broken=skip_broken), CsvTimes(skip_broken=skip_broken), CsvTimes(column="2", key="1", unit="ms")):
        bad = error_of(reader, lines)
        if bad is not None:
            assert bad.line == lines[bad.number - 1]
            assert shown(bad.line).isprintable()
            assert str(bad)
        else:
            filled = sum(bool(line.strip()) for line in lines)
            assert filled - 1 <= len(reader.times) + reader.skipped <= filled  # one may be a header


def error_of(reader: AccessLog | CsvTimes, lines: list[bytes]) -> BadLine | None:
    try:
        reader.read(lines, 1)
    except BadLine as bad:
        return bad
    return None


@pytest.mark.parametrize("size", [3, 4, 5, 7, 1 << 18])
def test_a_file_is_cut_into_lines_wherever_a_portion_ends(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the two characters that end a line."""
    monkeypatch.setattr("aiorate._simulate.source._CHUNK", size)
    for count in (1, 2, 50):
        for end in ("\n", "\r\n"):
            path = saved(tmp_path, *map(str, range(count)), end=end)
            assert instants(path) == [second * NS for second in range(count)]
    (tmp_path / "arrivals").write_bytes(b"\xef\xbb\xbf5\n6")
    assert instants(str(tmp_path / "arrivals")) == [5 * NS, 6 * NS]
