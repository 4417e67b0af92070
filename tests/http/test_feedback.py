"""What read_feedback() makes of quotas, and of headers of any kind."""

from __future__ import annotations

import email.message
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from aiorate.http import Feedback, Quota, read_feedback
from aiorate.http.values import LONGEST

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


def test_without_the_extra_only_draft_11_is_lost() -> None:
    """The extra is one small package; Retry-After, older drafts and vendors do not need it."""
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


def test_http_sf_is_imported_when_needed() -> None:
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


def message(pairs: list[tuple[str, str]]) -> email.message.Message:
    made = email.message.Message()
    for name, value in pairs:
        made[name] = value
    return made


class Pairs:
    """An iterable of pairs that is not a mapping."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)


def test_any_mapping_will_do() -> None:
    """One reader serves all clients: names in any case, text or bytes, mapping or pairs."""
    pairs = [("Date", DATE), ("X-RateLimit-Limit", "60"), ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", str(EPOCH + 30))]
    kinds: list[Any] = [
        dict,
        lambda pairs: {name.upper(): value for name, value in pairs},
        lambda pairs: {name.encode(): value.encode() for name, value in pairs},
        httpx.Headers,
        httpx2.Headers,
        CIMultiDict,
        lambda pairs: CIMultiDictProxy(CIMultiDict(pairs)),
        message,
        Pairs,
    ]
    for kind in kinds:
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


def test_feedback_and_quota_are_values() -> None:
    """They can be compared, put into a set and logged, and nobody can change them."""
    feedback = Feedback(429, 1.0, (Quota("requests", 5, 0),))

    assert feedback == Feedback(429, 1.0, (Quota("requests", 5, 0),))
    assert len({feedback, feedback}) == 1
    assert not hasattr(feedback, "__dict__")
    with pytest.raises(AttributeError):
        feedback.pause = 0.0  # type: ignore[misc]
