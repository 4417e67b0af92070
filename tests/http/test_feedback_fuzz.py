"""Whatever a server sends, read_feedback() raises nothing and says nothing absurd."""

from __future__ import annotations

from math import isfinite
from typing import Any

from http_sf import ser
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from aiorate.http import Feedback, Quota, read_feedback
from aiorate.http._feedback import LONGEST
from aiorate.http._vendors import PROFILES, RETRY_AFTER_MS

NAMES = sorted(
    {"retry-after", *RETRY_AFTER_MS, "date", "age", "server", "ratelimit", "ratelimit-policy"}
    | {name for profile in PROFILES for name, _ in profile.signs}
    | {
        name
        for profile in PROFILES
        for form in profile.quotas
        for name in (profile.everywhere, form.limit, form.remaining, form.level, form.named_by, form.policies, *form.resets)
        if name
    }
)
STATUSES = (200, 202, 301, 304, 403, 404, 429, 500, 503, 529)
WORDS = ["0", "1", "30", "1e9", "1e400", "-1", "1700000000", "1700000000000", "6m0s", "12ms", "inf", "true", "github.com"]
WORDS += ["Tue, 26 Mar 2024 19:59:59 GMT", "Tue Mar 26 19:59:59 2024", "2024-03-26T19:59:59Z", "32/40", "limit=", "remaining=", "reset="]
WORDS += ['"a"', ";r=0", ";t=30", ";q=100", ";w=60", ';qu="content-bytes"', ";pk=:YQ==:", ",", ", ", ";", "=", '"', " ", "@9", "?1", "("]

fuzz = settings(max_examples=30)

statuses = st.one_of(st.sampled_from(STATUSES), st.integers())
values = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=8).map("".join),
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
    st.text(max_size=40),
    st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), max_size=8).map("".join),
)
fields = st.tuples(st.sampled_from(NAMES), values)
headers_of_any_kind = st.lists(fields, max_size=12)
times = st.one_of(st.none(), st.just(1_711_483_199.0), st.floats())


def is_time(seconds: float | None) -> bool:
    return seconds is None or (isinstance(seconds, float) and isfinite(seconds) and 0 <= seconds <= LONGEST)


def is_amount(amount: int | None) -> bool:
    return amount is None or (type(amount) is int and 0 <= amount < 10**15)


def check(status: int, headers: Any, now: float | None) -> Feedback | None:
    """Read the headers, and fail if a limiter could not take the result as it is."""
    feedback = read_feedback(status, headers, now=now)
    if feedback is None:
        assert status not in (429, 503, 529)
        return None
    assert feedback.status == status
    assert feedback.source
    assert is_time(feedback.pause)
    assert is_time(feedback.retry_after)
    assert feedback.pause is not None or feedback.retry_after is not None or feedback.quotas
    for quota in feedback.quotas:
        assert is_amount(quota.limit)
        assert is_amount(quota.remaining)
        assert is_time(quota.reset)
        assert is_time(quota.window)
        assert quota.window is None or quota.window >= 1
        assert quota.rate is None or (isfinite(quota.rate) and quota.rate >= 0)
        assert quota != Quota()
        assert isinstance(quota.name, str)
        assert isinstance(quota.unit, str)
    if status in (429, 503, 529):
        assert feedback.pause is not None
    elif feedback.pause is not None and status != 403:
        assert any(quota.remaining == 0 and quota.reset and quota.unit == "requests" for quota in feedback.quotas)
    return feedback


@fuzz
@given(statuses, headers_of_any_kind, times)
@example(429, [("retry-after", "Sat, 00 Jan 0000 00:00:00 GMT")], None)
@example(429, [("retry-after", "0001-01-01T00:00:00+23:59")], 0.0)
@example(200, [("ratelimit", '"a";r=0;t=999999999999999'), ("ratelimit-policy", '"a";q=0;w=1')], None)
@example(200, [("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-limit-requests", "0"), ("x-ratelimit-reset-requests", "1h")], None)
@example(200, [("ratelimit", "a;r=1;t=@99999999999999")], None)
@example(200, [("x-ratelimit-remaining", "1e14"), ("x-ratelimit-reset", "1e-300")], None)
@example(429, [("age", "1e999"), ("date", "Tue, 26 Mar 2024 19:59:59 GMT"), ("retry-after", "Tue, 26 Mar 2024 19:59:59 GMT")], None)
def test_no_headers_raise_or_say_absurd_things(status: int, headers: list[tuple[str, str]], now: float | None) -> None:
    """A parser that raises on a header has crashed several clients; one that believes it would stop them for years."""
    check(status, headers, now)


@fuzz
@given(statuses, headers_of_any_kind, times, st.randoms(use_true_random=False))
def test_case_and_unknown_headers_change_nothing(status: int, headers: list[tuple[str, str]], now: float | None, random: Any) -> None:
    """HTTP/2 sends names in lower case, HTTP/1 in any case, and every server adds other headers."""
    now = 0.0 if now is None else now  # two readings of the clock would differ
    assume(isfinite(now))
    mixed = [("".join(random.choice((str.lower, str.upper))(letter) for letter in name), value) for name, value in headers]
    position = random.randint(0, len(mixed))
    mixed[position:position] = [("Content-Type", "application/json"), ("X-Request-Id", "429"), ("", "5")]

    assert read_feedback(status, headers, now=now) == read_feedback(status, mixed, now=now)


@fuzz
@given(statuses, headers_of_any_kind, values)
def test_one_more_retry_after_never_makes_it_earlier(status: int, headers: list[tuple[str, str]], value: str) -> None:
    """The latest end counts, so no server can shorten a pause that another asked for."""
    assume(not any(quote in text for _, text in headers for quote in '",') and len(value) < 1000)
    before = read_feedback(status, headers, now=0.0)
    after = read_feedback(status, [*headers, ("Retry-After", value)], now=0.0)

    if before is not None and before.retry_after is not None:
        assert after is not None
        assert after.retry_after is not None
        assert before.retry_after <= after.retry_after


printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=10)
policies = st.lists(
    st.tuples(printable, st.integers(0, 10**15 - 1), st.integers(1, 86_400), st.sampled_from(["requests", "content-bytes"])),
    min_size=1,
    max_size=4,
    unique_by=lambda policy: policy[0],
)


@fuzz
@given(policies, st.integers(0, 10**15 - 1), st.integers(0, 86_400))
def test_draft_11_headers_are_read_as_servers_write_them(policies: list[tuple[str, int, int, str]], left: int, time: int) -> None:
    """Written with the library that servers use; names may hold quotes, commas and semicolons."""
    name, allowed, window, unit = policies[0]
    policy = ser([(name, {"q": q, "w": w, "qu": qu}) for name, q, w, qu in policies])

    feedback = read_feedback(200, {"RateLimit-Policy": policy, "RateLimit": ser([(name, {"r": left, "t": time})])})

    assert feedback is not None
    assert Quota(name, allowed, left, float(time), float(window), unit=unit) == feedback.quotas[0]
    assert {Quota(name, q, None, None, float(w), unit=qu) for name, q, w, qu in policies[1:]} == set(feedback.quotas[1:])
