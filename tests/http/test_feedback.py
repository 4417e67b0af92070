"""What read_feedback() makes of quotas, of headers of any kind, and of Retry-After: its forms, its clock, and caches."""

from __future__ import annotations

import email.message
import time
from http import HTTPStatus
from typing import Any

import httpx
import httpx2
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from aiorate.http import Feedback, Quota, read_feedback
from aiorate.http._feedback import LONGEST

DATE = "Tue, 26 Mar 2024 19:59:59 GMT"
EPOCH = 1711483199  # the same instant


def pause_of(status: int, **headers: str) -> float | None:
    """Return only the pause. Underscores in the names stand for hyphens."""
    feedback = read_feedback(status, {name.replace("_", "-"): value for name, value in headers.items()}, now=EPOCH)
    return None if feedback is None else feedback.pause


def test_the_rate_that_a_quota_allows() -> None:
    """The trap of draft 11, section 8.5: the rest of a long window looks like a thousand a second."""
    table = [
        (Quota(limit=10000, window=1000.0, remaining=10000, reset=10.0), 10.0),
        (Quota(limit=100, window=10.0, remaining=5, reset=5.0), 1.0),
        (Quota(limit=100, window=10.0), 10.0),
        (Quota(remaining=30, reset=10.0), 3.0),
        (Quota(remaining=0, reset=10.0), 0.0),
        (Quota(limit=60, remaining=0, reset=10.0, full_at_reset=True), None),
        (Quota(limit=60, window=60.0, remaining=0, reset=60.0, full_at_reset=True), 1.0),
        (Quota(limit=100, remaining=30, reset=0.0), None),
        (Quota(limit=100), None),
        (Quota(), None),
    ]
    for quota, rate in table:
        assert rate == quota.rate, quota
    sent = read_feedback(200, {"RateLimit-Policy": '"somepolicy";q=10000;w=1000', "RateLimit": '"somepolicy";r=10000;t=10'})
    assert sent is not None
    assert [10.0] == [quota.rate for quota in sent.quotas]


def test_a_quota_for_a_month_has_no_window_here() -> None:
    """Cut to a day, it would allow thirty times as much."""
    assert read_feedback(200, {"RateLimit-Policy": '"m";q=100;w=2592000'}) == Feedback(200, None, (Quota("m", 100),), "RateLimit")
    assert pause_of(429, RateLimit='"m";r=0;t=2592000') == LONGEST


def test_amounts_that_make_no_sense() -> None:
    """Negative, infinite and absurd amounts are ignored or cut; of two remainders the smaller counts."""
    table = [
        ("X-RateLimit-Remaining", "-1", None),
        ("X-RateLimit-Remaining", "nan", None),
        ("X-RateLimit-Remaining", "many", None),
        ("X-RateLimit-Remaining", "1e300", 999_999_999_999_999),
        ("X-RateLimit-Remaining", "5, 3", 3),
        ("X-RateLimit-Limit", "unlimited", None),
        ("X-Shopify-Shop-Api-Call-Limit", "32", None),
        ("X-Shopify-Shop-Api-Call-Limit", "-1/40", None),
        ("X-Shopify-Shop-Api-Call-Limit", "1/" + "9" * 5000, None),
    ]
    for name, value, expected in table:
        feedback = read_feedback(200, {name: value})
        assert expected == (feedback and feedback.quotas[0].remaining), (name, value)


def message(pairs: list[tuple[str, str]]) -> email.message.Message:
    made = email.message.Message()
    for name, value in pairs:
        made[name] = value
    return made


def joined(pairs: list[tuple[str, str]]) -> dict[str, str]:
    return {"retry-after": ", ".join(value for name, value in pairs if name != "Date"), "DATE": DATE}


# Ways to hold fields, some of which may come twice.
PAIRED: list[Any] = [
    list,
    iter,
    httpx.Headers,
    httpx2.Headers,
    CIMultiDict,
    lambda pairs: CIMultiDictProxy(CIMultiDict(pairs)),
    lambda pairs: [(name.encode(), value.encode()) for name, value in pairs],
    message,
]


def test_any_mapping_will_do() -> None:
    """One reader serves all clients: names in any case, text or bytes, mapping or pairs."""
    pairs = [("Date", DATE), ("X-RateLimit-Limit", "60"), ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", str(EPOCH + 30))]
    plain: list[Any] = [
        dict,
        lambda pairs: {name.upper(): value for name, value in pairs},
        lambda pairs: {name.encode(): value.encode() for name, value in pairs},
    ]
    for kind in (*plain, *PAIRED):
        assert Feedback(429, 30.0, (Quota("", 60, 0, 30.0),), "X-RateLimit") == read_feedback(429, kind(pairs)), kind
    for seconds in (5, 5.0):  # as in a dict that a program fills; ignored, it would be a pause of 1 s
        assert read_feedback(429, {"Retry-After": seconds}) == Feedback(429, 5.0, (), "Retry-After", 5.0)


def test_nothing_said_is_none() -> None:
    """Most servers send nothing, most of the time."""
    nothing: list[Any] = [{}, [], {"Content-Type": "application/json", "Date": DATE, "Age": "5", "Server": "github.com"}]
    for headers in nothing:
        assert read_feedback(200, headers) is None, headers


def test_header_that_is_not_text_is_ignored() -> None:
    """A header is text or a number. No other value from a server or a mock raises."""
    table: list[Any] = [
        {"Retry-After": True},
        {"Retry-After": float("nan")},
        {b"retry-after": None},
        {5: "5"},
        {"Retry-After": ["5"]},
        {"retry-after": "\udcff"},
    ]
    for headers in table:
        assert read_feedback(429, headers) == Feedback(429, 1.0, (), "status 429"), headers


def test_a_field_of_a_hundred_kilobytes_is_ignored() -> None:
    """No quota is that long, and reading it would hold up the loop."""
    table = [
        ("Retry-After", "1" * 100_000 + "x"),
        ("Retry-After", "5," * 50_000),
        ("X-RateLimit-Reset-Requests", "1" * 100_000),
        ("X-RateLimit-Limit", '"' * 100_000),
        ("RateLimit", '"a";r=1,' * 20_000),
    ]
    for name, value in table:
        assert read_feedback(200, {name: value}) is None, name


def test_feedback_is_a_value() -> None:
    feedback = Feedback(429, 1.0, (Quota("requests", 5, 0),))

    assert {feedback} == {Feedback(429, 1.0, (Quota("requests", 5, 0),))}
    with pytest.raises(AttributeError):
        feedback.pause = 0.0  # type: ignore[misc]


# Retry-After.


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
    ("2024-03-26T21:01:59+0100", 120.0),
    (str(EPOCH + 120), 120.0),  # a time, not a wait of 54 years
    ("30s", 30.0),
    ("00:00:30", 30.0),  # Azure
    ("01:02:03.5", 3723.5),
    ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),  # over for years
    ("Tue, 26 Mar 2124 20:01:59 GMT", LONGEST),
    ("100000", LONGEST),
    ("9" * 400, LONGEST),
    ("1e999", LONGEST),
    ("9999999h", LONGEST),
]
UNREADABLE = ["", "soon", "-5", "+5", "nan", "inf", "-inf", "1_000", "٣", "5 seconds", "0x10", "1.2.3", "\x00", "5\r\n5", "5m5", "s", "m5"]
UNREADABLE += ["Tue, 99 Mar 2024 20:01:59 GMT", "Tue, 26 Mar 99999 20:01:59 GMT", "Tue, 26 Mar 2024 20:01:59 +9999"]
UNREADABLE += ["2024-13-26T20:01:59Z", "2024-03-26T20:01:60Z", "00:30", "0:0:5"]
SEVERAL: list[tuple[list[str], float]] = [
    (["5", "10"], 10.0),
    (["10", "5"], 10.0),
    (["5", "soon"], 5.0),
    (["Tue, 26 Mar 2024 20:00:09 GMT", "5"], 10.0),
    (["5", "Tue, 26 Mar 2024 20:00:09 GMT"], 10.0),
    (["Tue, 26 Mar 2024 20:00:00 GMT", "Tue, 26 Mar 2024 20:00:09 GMT"], 10.0),
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
        for collect in (*PAIRED, joined):
            feedback = read_feedback(429, collect([("Date", DATE), *(("Retry-After", value) for value in values)]))
            assert feedback is not None
            assert pause == feedback.pause, (values, collect)


def test_retry_after_pauses_where_the_status_throttles() -> None:
    """429 and 503 by their definition, 529 of Anthropic, 403 of GitHub, bans of others. A 202 says when to ask again for that one job."""
    for status in (429, 503, 529, 403, 418, 420, 430, 509, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        assert pause_of(status, Retry_After="30") == 30.0, status
    for status in (200, 202, 204, 301, 304, 307, 400, 401, 404, 413, 500, 502, 504):
        assert Feedback(status, None, (), "Retry-After", 30.0) == read_feedback(status, {"Retry-After": "30"}), status


def test_a_throttling_status_alone_pauses_for_a_second() -> None:
    """Long enough not to hammer, short enough to do no harm. A plain 403 only means no."""
    for status, pause in ((429, 1.0), (503, 1.0), (529, 1.0), (403, None), (418, None), (509, None), (200, None)):
        feedback = read_feedback(status, {"Content-Type": "text/html"})
        assert pause == (feedback and feedback.pause), status


def test_zero_from_the_server_itself_is_zero() -> None:
    """It says that the client may come back at once. Where nothing is left it is a rounded value, and so is a reset of 0."""
    assert pause_of(429, Retry_After="0", X_RateLimit_Remaining="1", X_RateLimit_Reset="60") == 0.0
    assert pause_of(429, Retry_After="0", X_RateLimit_Remaining="0", X_RateLimit_Reset="60") == 1.0
    assert pause_of(429, Retry_After="0", X_RateLimit_Remaining="0", X_RateLimit_Reset="0.25") == 0.25
    assert pause_of(429, Retry_After="0", X_RateLimit_Remaining="0") == 1.0
    assert pause_of(429, X_RateLimit_Remaining="0", X_RateLimit_Reset="0") == 1.0
    assert pause_of(200, X_RateLimit_Remaining="0", X_RateLimit_Reset="0") is None
    assert pause_of(429, retry_after_ms="0", Retry_After="5") == 5.0
    assert pause_of(429, retry_after_ms="0") == 0.0


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


def test_the_wall_clock_says_nothing_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is paced by the wall clock, which may be set back."""
    for headers in ({"Retry-After": "5", "RateLimit": '"a";r=0;t=30', "X-RateLimit-Reset": "30"}, {"Retry-After": DATE, "Date": DATE}):
        said = read_feedback(429, headers)
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: 0.0)
            assert said == read_feedback(429, headers)


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
