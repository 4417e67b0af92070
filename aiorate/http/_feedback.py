"""What a server says of its limits: whether one response asks for a pause, for how long, and which quotas it reports.

Knows no client, no limiter and no loop, and never waits. Which vendor sends which header is in `aiorate.http._vendors`.

The sources, named at each rule; the vendors' pages are in the table:

* Retry-After: RFC 9110, https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3
* 429: RFC 6585, https://www.rfc-editor.org/rfc/rfc6585#section-4; 529: https://docs.claude.com/en/api/errors
* draft 11: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from aiorate._errors import kind_of
from aiorate._feedback import Feedback, Quota
from aiorate.http._quotas import NAMES, matching_profiles, read_quotas, split_dictionary
from aiorate.http._values import Clock, bounded, latest, numbers
from aiorate.http._vendors import PROFILES, RETRY_AFTER, RETRY_AFTER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiorate.http._vendors import Profile

    Headers = Mapping[str, str | float] | Mapping[bytes, bytes] | Iterable[tuple[str, str]] | Iterable[tuple[bytes, bytes]]


_THROTTLING = (429, 503, 529)
_UNNAMED_PAUSE = 1.0  # seconds
_BY_STATUS = "status "  # the source of a pause whose length the server did not name
_LONGEST_TEXT = 1024  # characters of a field: a longer one is not a quota, and takes long to parse
_TELLING = {RETRY_AFTER, *RETRY_AFTER_MS} | NAMES
_READ = _TELLING | {"date", "age"} | {name for profile in PROFILES for name, _ in profile.signs}


def read_feedback(status: int, headers: Headers, *, now: float | None = None) -> Feedback | None:
    """Read what a response says about the server's limits. None if it says nothing.

    Args:
        status: The status of the response.
        headers: Its headers: a mapping, with names in any case, or pairs of name and value. Headers that cannot be read are ignored.
        now: The Unix time in seconds, for responses without a ``Date``. By default the wall clock.

    The pause is found in this order:

    1. Retry-After wins, in seconds or as a date (RFC 9110, section 10.2.3), on statuses that throttle, and wherever rule 2 pauses.
       These are 429 (RFC 6585), 503, 529 (Anthropic: overloaded), and a 403 that has Retry-After or nothing remaining (GitHub). If there
       is ``retry-after-ms`` too, the first of the two counts, as in OpenAI's client.
    2. A quota of requests with nothing remaining pauses until its reset, on any status: ``r=0;t=30`` (draft 11, section 7). If the
       reset says when the quota is full (OpenAI, Anthropic), one request is back after ``reset / limit``. Quotas of tokens, bytes or
       concurrent requests do not pause.
    3. A status that throttles and names no time pauses for 1 s; GitHub's 429 and 403 for 60 s.

    The RateLimit fields of draft 11 need http-sf, which the extras install. Quotas of a cached response, one with a positive Age, are
    ignored (draft 11, section 7.3).
    """
    if not isinstance(status, int):
        raise TypeError(f"read_feedback(status, headers): the status must be an int such as 429, not {kind_of(status)}.")
    fields = _gather(headers)
    split_dictionary(fields)
    if status not in _THROTTLING and _TELLING.isdisjoint(fields):
        return None
    age = max(numbers(fields.get("age", "")), default=0.0)
    clock = Clock(fields.get("date", ""), age, now)
    retry_after, retry_source = _read_retry_after(fields, clock)
    profiles = matching_profiles(fields)
    found = [] if age > 0 else list(read_quotas(fields, profiles, clock))

    refused = _is_throttling(status, retry_after, (quota for quota, _ in found))
    if refused and retry_after is not None:
        found += [
            (Quota("global", remaining=0, reset=retry_after), profile.vendor)
            for profile in profiles
            if fields.get(profile.everywhere, "").strip().lower() == "true"
        ]
    pause, source = max(_waits(found, refused), default=(None, ""))
    if retry_after is not None and (refused or pause is not None):
        pause, source = retry_after, retry_source
    elif refused and pause is None:
        pause, source = _unnamed_pause(status, profiles)
    if pause is None and retry_after is None and not found:
        return None
    quotas = tuple(dict.fromkeys(quota for quota, _ in found))
    return Feedback(status, pause, quotas, source or (found[0][1] if found else retry_source), retry_after)


def _waits(found: list[tuple[Quota, str]], throttles: bool) -> Iterator[tuple[float, str]]:
    # How long each used up quota of requests pauses everybody, and who says so. A quota that does not report what remains counts as
    # used up if the server throttles. A reset of 0 does not pause: whole seconds are rounded down.
    for quota, source in found:
        used_up = quota.remaining == 0 or (quota.remaining is None and throttles)
        if used_up and quota.reset and quota.unit == "requests":
            yield (quota.reset / quota.limit if quota.full_at_reset and quota.limit else quota.reset), source


def _unnamed_pause(status: int, profiles: list[Profile]) -> tuple[float, str]:
    if status in (403, 429):  # 503 and 529 say that the server has trouble, not that the client asks for too much
        for profile in profiles:
            if profile.unnamed_pause is not None:
                return profile.unnamed_pause, profile.vendor
    return _UNNAMED_PAUSE, f"{_BY_STATUS}{status}"


def throttles(status: int, feedback: Feedback | None) -> bool:
    """Whether the response refused the request because of its rate: the statuses of rule 1 of `read_feedback`."""
    return _is_throttling(status, None, ()) if feedback is None else _is_throttling(status, feedback.retry_after, feedback.quotas)


def _is_throttling(status: int, retry_after: float | None, quotas: Iterable[Quota]) -> bool:
    if status in _THROTTLING:
        return True
    return status == 403 and (retry_after is not None or any(quota.remaining == 0 and quota.unit == "requests" for quota in quotas))


def named_by_server(feedback: Feedback | None) -> Feedback | None:
    """The feedback without a pause whose length the server did not name."""
    if feedback is None or not feedback.source.startswith(_BY_STATUS):
        return feedback
    return replace(feedback, pause=None)


def _read_retry_after(fields: dict[str, str], clock: Clock) -> tuple[float | None, str]:
    for name in RETRY_AFTER_MS:
        milliseconds = numbers(fields.get(name, ""))
        if milliseconds:
            return bounded(max(milliseconds) / 1000), name
    time = latest(fields.get(RETRY_AFTER, ""), clock)
    return time and time[0], "Retry-After"


@runtime_checkable
class _HasItems(Protocol):
    # A mapping, or another object with pairs: multi-dicts give each field of a name; email.message.Message is not a Mapping.
    def items(self) -> Iterable[tuple[object, object]]: ...


def _gather(headers: Headers) -> dict[str, str]:
    # The headers that are read here, by their names in lower case.
    fields: dict[str, list[str]] = {}
    has_items = isinstance(headers, Mapping) or isinstance(headers, _HasItems)  # noqa: SIM101  # the first is ten times faster
    try:
        pairs = cast("_HasItems", headers).items() if has_items else cast("Iterable[tuple[object, object]]", headers)
        for name, value in pairs:
            known = name.lower() if isinstance(name, str) else _text(name).lower()
            if known in _READ:
                fields.setdefault(known, []).append(_text(value))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"read_feedback(status, headers) takes response.headers, a mapping or pairs of name and value, not {kind_of(headers)}."
        ) from error
    joined = {name: ", ".join(texts) for name, texts in fields.items()}
    return {name: text for name, text in joined.items() if len(text) <= _LONGEST_TEXT}


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else str(value) if type(value) in (int, float) else ""
