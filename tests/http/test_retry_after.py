"""What read_feedback() makes of Retry-After: its forms, its clock, and caches."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

import httpx
import httpx2
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from aiorate.http import Feedback, read_feedback
from aiorate.http.values import LONGEST

DATE = "Tue, 26 Mar 2024 19:59:59 GMT"
EPOCH = 1711483199  # the same instant


def pause_of(status: int, **headers: str) -> float | None:
    """Return only the pause. Underscores in the names stand for hyphens."""
    feedback = read_feedback(status, {name.replace("_", "-"): value for name, value in headers.items()}, now=EPOCH)
    return None if feedback is None else feedback.pause


FORMS = [
    ("0", 0.0),
    ("120", 120.0),
    (" 7 ", 7.0),
    ("1.5", 1.5),
    (".5", 0.5),
    ("1e1", 10.0),
    ("Tue, 26 Mar 2024 20:01:59 GMT", 120.0),
    ("tue, 26 mar 2024 20:01:59 GMT", 120.0),
    ("Tuesday, 26-Mar-24 20:01:59 GMT", 120.0),  # RFC 850
    ("Tue Mar 26 20:01:59 2024", 120.0),  # asctime
    ("Tue, 26 Mar 2024 20:01:59 -0000", 120.0),
    ("Tue, 26 Mar 2024 21:01:59 +0100", 120.0),
    ("2024-03-26T20:01:59Z", 120.0),
    ("2024-03-26t20:01:59.25z", 120.25),
    (str(EPOCH + 120), 120.0),  # a time, not a wait of 54 years
    ("30s", 30.0),
    ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),  # over for years
    ("Tue, 26 Mar 2124 20:01:59 GMT", LONGEST),
    ("100000", LONGEST),
    ("9" * 400, LONGEST),
    ("1e999", LONGEST),
    ("9999999h", LONGEST),
]
UNREADABLE = [
    "",
    "soon",
    "-5",
    "+5",
    "nan",
    "inf",
    "-inf",
    "1_000",
    "٣",
    "5 seconds",
    "0x10",
    "1.2.3",
    "Tue, 99 Mar 2024 20:01:59 GMT",
    "\x00",
    "5\r\n5",
    "Tue, 26 Mar 99999 20:01:59 GMT",
    "Tue, 26 Mar 2024 20:01:59 +9999",
    "2024-13-26T20:01:59Z",
    "2024-03-26T20:01:60Z",
    "5m5",
    "s",
    "m5",
]
SEVERAL: list[tuple[list[str], float]] = [
    (["5", "10"], 10.0),
    (["10", "5"], 10.0),
    (["5", "soon"], 5.0),
    (["Tue, 26 Mar 2024 20:00:09 GMT", "5"], 10.0),
    (["5", "Tue, 26 Mar 2024 20:00:09 GMT"], 10.0),
    (["Tue, 26 Mar 2024 20:00:00 GMT", "Tue, 26 Mar 2024 20:00:09 GMT"], 10.0),
]
COLLECTED: list[Any] = [
    list,
    iter,
    httpx.Headers,
    httpx2.Headers,
    CIMultiDict,
    lambda pairs: CIMultiDictProxy(CIMultiDict(pairs)),
    lambda pairs: [(name.encode(), value.encode()) for name, value in pairs],
    lambda pairs: {"retry-after": ", ".join(value for name, value in pairs if name != "Date"), "DATE": DATE},
]


def test_retry_after_in_all_its_forms() -> None:
    """RFC 9110 defines seconds and three forms of a date; servers send more. A day is the longest."""
    for value, pause in FORMS:
        assert pause == pause_of(429, Retry_After=value), value


def test_unreadable_retry_after_is_ignored() -> None:
    """Then only the status counts: one second."""
    for value in UNREADABLE:
        assert Feedback(429, 1.0, (), "status 429", None) == read_feedback(429, {"Retry-After": value}), value
        assert read_feedback(200, {"Retry-After": value}) is None, value


def test_of_several_retry_after_the_later_end_counts() -> None:
    """A gateway adds one to the server's. Clients join the fields with a comma, which a date contains as well."""
    for values, pause in SEVERAL:
        for collect in COLLECTED:
            feedback = read_feedback(429, collect([("Date", DATE), *(("Retry-After", value) for value in values)]))
            assert feedback is not None
            assert pause == feedback.pause, (values, collect)


def test_retry_after_pauses_where_the_status_throttles() -> None:
    """429 and 503 by their definition, 529 of Anthropic, 403 of GitHub. A 202 says when to ask again for that one job."""
    for status in (429, 503, 529, 403, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        assert pause_of(status, Retry_After="30") == 30.0, status
    for status in (200, 202, 204, 301, 304, 307, 400, 401, 404, 413, 500, 502, 504):
        assert Feedback(status, None, (), "Retry-After", 30.0) == read_feedback(status, {"Retry-After": "30"}), status


def test_a_throttling_status_alone_pauses_for_a_second() -> None:
    """Long enough not to hammer, short enough to do no harm. A plain 403 only means no."""
    for status, pause in ((429, 1.0), (503, 1.0), (529, 1.0), (403, None), (200, None), (500, None)):
        feedback = read_feedback(status, {"Content-Type": "text/html"})
        assert pause == (feedback and feedback.pause), status


def test_zero_from_the_server_itself_is_zero() -> None:
    """It says that the client may come back at once; only a reset of 0 is a rounded value."""
    assert pause_of(429, Retry_After="0", X_RateLimit_Remaining="0", X_RateLimit_Reset="60") == 0.0
    assert pause_of(429, X_RateLimit_Remaining="0", X_RateLimit_Reset="0") == 1.0
    assert pause_of(200, X_RateLimit_Remaining="0", X_RateLimit_Reset="0") is None


def test_a_date_counts_from_the_date_of_the_response() -> None:
    """A local clock that is an hour off must not make a pause of an hour, or of 0."""
    headers = {"Date": DATE, "Retry-After": "Tue, 26 Mar 2024 20:00:29 GMT"}

    for now in (None, 0.0, EPOCH - 3600, EPOCH + 3600):
        feedback = read_feedback(429, headers, now=now)
        assert feedback is not None
        assert feedback.pause == 30.0


def test_without_a_date_the_local_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other clock is left, and it is read for nothing else."""
    headers = {"Date": "yesterday", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(EPOCH + 30)}
    monkeypatch.setattr(time, "time", lambda: EPOCH + 10.0)

    read = read_feedback(200, headers)
    given = read_feedback(200, headers, now=EPOCH + 20.0)

    assert read is not None
    assert read.pause == 20.0
    assert given is not None
    assert given.pause == 10.0


def test_the_wall_clock_is_not_read_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is paced by the wall clock, which may be set back."""

    def time_() -> float:
        raise AssertionError

    monkeypatch.setattr(time, "time", time_)

    assert read_feedback(429, {"Retry-After": "5", "RateLimit": '"a";r=0;t=30', "X-RateLimit-Reset": "30"}) is not None
    assert read_feedback(429, {"Retry-After": DATE, "Date": DATE}) is not None


def test_quotas_from_a_cache_are_ignored() -> None:
    """They belong to the stored response: draft 11, section 7.3."""
    quotas = {"RateLimit": '"a";r=0;t=30', "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}

    assert read_feedback(200, {**quotas, "Age": "7"}) is None
    assert read_feedback(403, {**quotas, "Age": "7"}) is None
    assert read_feedback(429, {**quotas, "Age": "7"}) == Feedback(429, 1.0, (), "status 429")
    assert pause_of(200, **{"Age": "0", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}) == 30.0
    assert pause_of(200, **{"Age": "old", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}) == 30.0


def test_date_from_a_cache_counts_with_its_age() -> None:
    """The Date is that of the stored response, its Age ago: RFC 9111, section 4.2.3."""
    assert pause_of(503, Date=DATE, Age="20", Retry_After="Tue, 26 Mar 2024 20:00:29 GMT") == 10.0
