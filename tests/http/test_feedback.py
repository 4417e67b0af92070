"""What read_feedback() makes of Retry-After, quotas and odd headers."""

from __future__ import annotations

import email.message
import subprocess
import sys
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import httpx
import httpx2
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from aiorate.http import Feedback, read_feedback
from aiorate.http.quotas import Quota
from aiorate.http.values import LONGEST

DATE = "Tue, 26 Mar 2024 19:59:59 GMT"


EPOCH = 1711483199  # the same instant


def pause_of(status: int, **headers: str) -> float | None:
    """The pause alone. Underscores in the names stand for hyphens."""
    feedback = read_feedback(status, {name.replace("_", "-"): value for name, value in headers.items()}, now=EPOCH)
    return None if feedback is None else feedback.pause


# --- Retry-After ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "pause"),
    [
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
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),  # over long ago
        ("Tue, 26 Mar 2124 20:01:59 GMT", LONGEST),
        ("100000", LONGEST),
        ("9" * 400, LONGEST),
        ("1e999", LONGEST),
        ("9999999h", LONGEST),
    ],
)
def test_retry_after_in_all_its_forms(value: str, pause: float) -> None:
    """RFC 9110 knows seconds and three forms of a date; servers know more. A day is the longest."""
    assert pause == pause_of(429, Retry_After=value)


@pytest.mark.parametrize(
    "value",
    [
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
    ],
)
def test_a_retry_after_that_cannot_be_read_is_none(value: str) -> None:
    """Then the status alone counts: one second."""
    assert Feedback(429, 1.0, (), "status 429", None) == read_feedback(429, {"Retry-After": value})
    assert read_feedback(200, {"Retry-After": value}) is None


@pytest.mark.parametrize(
    ("values", "pause"),
    [
        (["5", "10"], 10.0),
        (["10", "5"], 10.0),
        (["5", "soon"], 5.0),
        (["Tue, 26 Mar 2024 20:00:09 GMT", "5"], 10.0),
        (["5", "Tue, 26 Mar 2024 20:00:09 GMT"], 10.0),
        (["Tue, 26 Mar 2024 20:00:00 GMT", "Tue, 26 Mar 2024 20:00:09 GMT"], 10.0),
    ],
)
@pytest.mark.parametrize(
    "collect",
    [
        list,
        iter,
        httpx.Headers,
        httpx2.Headers,
        CIMultiDict,
        lambda pairs: CIMultiDictProxy(CIMultiDict(pairs)),
        lambda pairs: [(name.encode(), value.encode()) for name, value in pairs],
        lambda pairs: {"retry-after": ", ".join(value for name, value in pairs if name != "Date"), "DATE": DATE},
    ],
    ids=["list", "iterator", "httpx", "httpx2", "multidict", "proxy", "bytes", "joined"],
)
def test_of_several_retry_after_the_later_end_counts(values: list[str], pause: float, collect: Any) -> None:
    """A gateway adds its own to the server's. Clients join the fields with a comma, which a date holds as well."""
    pairs = [("Date", DATE), *(("Retry-After", value) for value in values)]

    feedback = read_feedback(429, collect(pairs))

    assert feedback is not None
    assert pause == feedback.pause


@pytest.mark.parametrize("status", [200, 202, 204, 301, 304, 307, 400, 401, 404, 413, 500, 502, 504])
def test_retry_after_alone_pauses_nobody_unless_the_status_throttles(status: int) -> None:
    """A 202 says when to ask again for that one job, a redirect when to follow it: the others may go on."""
    assert Feedback(status, None, (), "Retry-After", 30.0) == read_feedback(status, {"Retry-After": "30"})


@pytest.mark.parametrize("status", [429, 503, 529, 403, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE])
def test_retry_after_pauses_where_the_status_throttles(status: int) -> None:
    """429 and 503 by their definition, 529 is Anthropic's, 403 GitHub's."""
    assert pause_of(status, Retry_After="30") == 30.0


@pytest.mark.parametrize(("status", "pause"), [(429, 1.0), (503, 1.0), (529, 1.0), (403, None), (200, None), (500, None)])
def test_a_second_if_no_time_is_told(status: int, pause: float | None) -> None:
    """Long enough not to hammer, short enough to do no harm. A plain 403 only means no."""
    feedback = read_feedback(status, {"Content-Type": "text/html"})

    assert pause == (feedback and feedback.pause)


def test_zero_from_the_server_itself_is_zero() -> None:
    """It says that the client may come back at once; only a reset of 0 is a rounded one."""
    assert pause_of(429, Retry_After="0", X_RateLimit_Remaining="0", X_RateLimit_Reset="60") == 0.0
    assert pause_of(429, X_RateLimit_Remaining="0", X_RateLimit_Reset="0") == 1.0
    assert pause_of(200, X_RateLimit_Remaining="0", X_RateLimit_Reset="0") is None


# --- Whose clock ------------------------------------------------------------------------------------------------------------


def test_a_date_counts_from_the_date_of_the_response() -> None:
    """A local clock that is an hour off must not make a pause of an hour, or none."""
    headers = {"Date": DATE, "Retry-After": "Tue, 26 Mar 2024 20:00:29 GMT"}

    for now in (None, 0.0, EPOCH - 3600, EPOCH + 3600):
        feedback = read_feedback(429, headers, now=now)
        assert feedback is not None
        assert feedback.pause == 30.0


def test_without_a_date_the_local_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the only other one, and it is read for nothing else."""
    headers = {"Date": "yesterday", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(EPOCH + 30)}
    monkeypatch.setattr(time, "time", lambda: EPOCH + 10.0)

    read = read_feedback(200, headers)
    given = read_feedback(200, headers, now=EPOCH + 20.0)

    assert read is not None
    assert read.pause == 20.0
    assert given is not None
    assert given.pause == 10.0


def test_the_wall_clock_is_not_read_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is paced by the wall clock, which people turn back."""

    def time_() -> float:
        raise AssertionError

    monkeypatch.setattr(time, "time", time_)

    assert read_feedback(429, {"Retry-After": "5", "RateLimit": '"a";r=0;t=30', "X-RateLimit-Reset": "30"}) is not None
    assert read_feedback(429, {"Retry-After": DATE, "Date": DATE}) is not None


# --- Caches -----------------------------------------------------------------------------------------------------------------


def test_quotas_from_a_cache_are_ignored() -> None:
    """They are of the response that was stored: draft 11, section 7.3."""
    quotas = {"RateLimit": '"a";r=0;t=30', "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}

    assert read_feedback(200, {**quotas, "Age": "7"}) is None
    assert read_feedback(403, {**quotas, "Age": "7"}) is None
    assert read_feedback(429, {**quotas, "Age": "7"}) == Feedback(429, 1.0, (), "status 429")
    assert pause_of(200, **{"Age": "0", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}) == 30.0
    assert pause_of(200, **{"Age": "old", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}) == 30.0


def test_a_date_from_a_cache_has_grown_old() -> None:
    """The Date is that of the stored response, its Age ago: RFC 9111, section 4.2.3."""
    assert pause_of(503, Date=DATE, Age="20", Retry_After="Tue, 26 Mar 2024 20:00:29 GMT") == 10.0


# --- Quotas -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "rate"),
    [
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
    ],
)
def test_the_rate_that_a_quota_allows(quota: Quota, rate: float | None) -> None:
    """The trap of draft 11, section 8.5: what is left of a long window looks like a thousand a second."""
    assert rate == quota.rate


def test_the_trap_as_it_is_sent() -> None:
    """The policy's quota and window count, not the ratio of what is left to the time."""
    feedback = read_feedback(200, {"RateLimit-Policy": '"somepolicy";q=10000;w=1000', "RateLimit": '"somepolicy";r=10000;t=10'})

    assert feedback is not None
    assert [10.0] == [quota.rate for quota in feedback.quotas]


def test_a_quota_for_a_month_has_no_window_here() -> None:
    """Cut to a day it would allow thirty times as much."""
    assert read_feedback(200, {"RateLimit-Policy": '"m";q=100;w=2592000'}) == Feedback(200, None, (Quota("m", 100),), "RateLimit")
    assert pause_of(429, RateLimit='"m";r=0;t=2592000') == LONGEST


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("X-RateLimit-Remaining", "-1", None),
        ("X-RateLimit-Remaining", "nan", None),
        ("X-RateLimit-Remaining", "many", None),
        ("X-RateLimit-Remaining", "1e300", 999_999_999_999_999),
        ("X-RateLimit-Remaining", "5, 3", 3),
        ("X-RateLimit-Limit", "unlimited", None),
        ("X-Shopify-Shop-Api-Call-Limit", "32", None),
        ("X-Shopify-Shop-Api-Call-Limit", "-1/40", None),
        ("X-Shopify-Shop-Api-Call-Limit", "1/" + "9" * 5000, None),
    ],
)
def test_amounts_that_make_no_sense(name: str, value: str, expected: int | None) -> None:
    """Negative, infinite and absurd amounts are ignored or cut; of two remainders the smaller counts."""
    feedback = read_feedback(200, {name: value})

    assert expected == (feedback and feedback.quotas[0].remaining)


def test_without_the_extra_only_draft_11_is_lost() -> None:
    """The extra is one small package; nobody needs it for Retry-After, older drafts or vendors."""
    code = """
import sys
sys.modules["http_sf"] = None
from aiorate.http import read_feedback

assert read_feedback(200, {"RateLimit": '"a";r=0;t=30', "RateLimit-Policy": '"a";q=5;w=60'}) is None
assert read_feedback(429, {"RateLimit": '"a";r=0;t=30'}).pause == 1
assert read_feedback(200, {"RateLimit": "limit=100, remaining=0, reset=5"}).pause == 5
assert read_feedback(200, {"RateLimit-Policy": "5;w=60"}).quotas[0].rate == 5 / 60
assert read_feedback(429, {"Retry-After": "7"}).pause == 7
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_http_sf_is_imported_by_those_who_need_it() -> None:
    """A program whose servers never send RateLimit does not pay for its parser."""
    code = """
import sys
from aiorate.http import read_feedback

assert read_feedback(429, {"Retry-After": "7", "RateLimit": "limit=100, remaining=0, reset=5"})
assert "http_sf" not in sys.modules
assert read_feedback(200, {"RateLimit": '"a";r=0;t=30'})
assert "http_sf" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- What may be passed -----------------------------------------------------------------------------------------------------


def message(pairs: list[tuple[str, str]]) -> email.message.Message:
    made = email.message.Message()
    for name, value in pairs:
        made[name] = value
    return made


class Pairs:
    """Pairs, and no mapping."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)


@pytest.mark.parametrize(
    "collect",
    [
        dict,
        lambda pairs: {name.upper(): value for name, value in pairs},
        lambda pairs: {name.encode(): value.encode() for name, value in pairs},
        httpx.Headers,
        httpx2.Headers,
        CIMultiDict,
        lambda pairs: CIMultiDictProxy(CIMultiDict(pairs)),
        message,
        Pairs,
    ],
    ids=["dict", "upper", "bytes", "httpx", "httpx2", "multidict", "proxy", "message", "pairs"],
)
def test_any_mapping_will_do(collect: Any) -> None:
    """One reader for all clients: names in any case, text or bytes, mapping or pairs."""
    pairs = [("Date", DATE), ("X-RateLimit-Limit", "60"), ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", str(EPOCH + 30))]

    assert Feedback(429, 30.0, (Quota("", 60, 0, 30.0),), "X-RateLimit") == read_feedback(429, collect(pairs))


@pytest.mark.parametrize("seconds", [5, 5.0])
def test_a_number_is_read_as_its_text(seconds: float) -> None:
    """As in a dict that a program fills by itself; ignored, it would be a pause of 1 s."""
    assert read_feedback(429, {"Retry-After": seconds}) == Feedback(429, 5.0, (), "Retry-After", 5.0)


@pytest.mark.parametrize("headers", [{}, [], {"Content-Type": "application/json", "Date": DATE, "Age": "5", "Server": "github.com"}])
def test_nothing_said_is_none(headers: Any) -> None:
    """So is the answer of most servers, most of the time."""
    assert read_feedback(200, headers) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": True},
        {"Retry-After": float("nan")},
        {b"retry-after": None},
        {5: "5"},
        {"Retry-After": ["5"]},
        {"retry-after": "\udcff"},
    ],
)
def test_what_is_no_text_is_ignored(headers: Any) -> None:
    """A header is text, or a number. Nothing that a server or a mock puts there raises."""
    assert read_feedback(429, headers) == Feedback(429, 1.0, (), "status 429")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Retry-After", "1" * 100_000 + "x"),
        ("Retry-After", "5," * 50_000),
        ("X-RateLimit-Reset-Requests", "1" * 100_000),
        ("X-RateLimit-Limit", '"' * 100_000),
        ("RateLimit", '"a";r=1,' * 20_000),
    ],
)
def test_a_field_of_a_hundred_kilobytes_is_ignored(name: str, value: str) -> None:
    """No quota is that long, and reading it would hold up everybody in the loop."""
    assert read_feedback(200, {name: value}) is None


def test_feedback_and_quota_are_values() -> None:
    """They may be compared, put into a set, and logged; nobody changes what another has seen."""
    feedback = Feedback(429, 1.0, (Quota("requests", 5, 0),))

    assert feedback == Feedback(429, 1.0, (Quota("requests", 5, 0),))
    assert len({feedback, feedback}) == 1
    assert not hasattr(feedback, "__dict__")
    with pytest.raises(AttributeError):
        feedback.pause = 0.0  # type: ignore[misc]
