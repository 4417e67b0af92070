"""What a server says of its limits: whether one response asks for a pause, for how long, and which quotas it reports.

Knows no client, no limiter and no loop, and never waits. The sources:

* Retry-After: RFC 9110, https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3
* 429: RFC 6585, https://www.rfc-editor.org/rfc/rfc6585#section-4; 529: https://docs.claude.com/en/api/errors
* draft 11: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from aiorate._errors import kind_of
from aiorate._feedback import Feedback, Quota
from aiorate.http._quotas import Clock, bounded, latest, numbers, read_quotas
from aiorate.http._vendors import PROFILES, RETRY_AFTER, RETRY_AFTER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aiorate.adaptive import AdaptiveRate

    Headers = Mapping[str, str | float] | Mapping[bytes, bytes] | Iterable[tuple[str, str]] | Iterable[tuple[bytes, bytes]]

_THROTTLING = 429, 503, 529
_BANS = 418, 420, 430  # of Binance, Twitter and Shopify
_IF_TIMED = 403, *_BANS, 509  # these throttle if they have Retry-After
_UNNAMED_PAUSE = 1.0  # seconds
_LONGEST_TEXT = 1024  # characters of a field: a longer one is not a quota, and takes long to parse
_ASIDE = {"age", "date", "server", "x-github-request-id"}  # these say nothing alone
_READ = re.compile("limit|retry-after|used")  # part of the name of all others that are read


def read_feedback(status: int, headers: Headers, *, now: float | None = None) -> Feedback | None:
    """Read what a response says about the server's limits. None if it says nothing.

    Args:
        status: The status of the response.
        headers: Its headers: a mapping, with names in any case, or pairs of name and value. Headers that cannot be read are ignored.
        now: The Unix time in seconds, for responses without a ``Date``. By default the wall clock.

    The pause is found in this order:

    1. Retry-After wins, in seconds or as a date (RFC 9110, section 10.2.3), on statuses that throttle, and wherever rule 2 pauses.
       These are 429 (RFC 6585), 503, 529 (Anthropic: overloaded), and with Retry-After 403, 418, 420, 430 and 509 too. So does a 403
       with nothing remaining (GitHub). If there is ``retry-after-ms`` too, the first of the two counts, as in OpenAI's client. 0 is taken
       at its word, but with nothing remaining as less than a second: until the reset, or for 1 s if that is sooner.
    2. A quota of requests with nothing remaining pauses until its reset, on any status: ``r=0;t=30`` (draft 11, section 7). If the
       reset says when the quota is full (OpenAI, Anthropic), one request is back after ``reset / limit``. Quotas of tokens, bytes or
       concurrent requests do not pause.
    3. A status that throttles and names no time pauses for 1 s; GitHub's 429 and 403 for 60 s.

    Quotas of a cached response, one with a positive Age, are ignored (draft 11, section 7.3).
    """
    if not isinstance(status, int):
        raise TypeError(f"read_feedback(status, headers): the status must be an int such as 429, not {kind_of(status)}.")
    fields = _gather(headers)
    if status not in _THROTTLING and fields.keys() <= _ASIDE:
        return None
    age = max(numbers(fields.get("age", "")), default=0.0)
    clock = Clock(fields.get("date", ""), age, now)
    retry_after, retry_source = _read_retry_after(fields, clock)
    profiles = [
        profile
        for profile in PROFILES
        if not profile.signs or any(name in fields and text in fields[name].lower() for name, text in profile.signs)
    ]
    found = [] if age > 0 else list(read_quotas(fields, profiles, clock))

    refused = _throttles(status, retry_after, [quota for quota, _ in found])
    if refused and retry_after is not None:
        everywhere = [profile for profile in profiles if fields.get(profile.everywhere, "").strip().lower() == "true"]
        found += [(Quota("global", remaining=0, reset=retry_after), profile.vendor) for profile in everywhere]
    pause, source = max(_waits(found, refused), default=(None, ""))
    if retry_after is not None and (refused or pause is not None):
        rounded = min(pause or _UNNAMED_PAUSE, _UNNAMED_PAUSE) if _used_up(quota for quota, _ in found) else 0.0
        pause, source = retry_after or rounded, retry_source
    elif refused and pause is None:  # a 503 or 529 says that the server has trouble, not that the client asks for too much
        unnamed = [(profile.unnamed_pause, profile.vendor) for profile in profiles if profile.unnamed_pause and status in (403, 429)]
        pause, source = next(iter(unnamed), (_UNNAMED_PAUSE, f"status {status}"))
    if pause is None and retry_after is None and not found:
        return None
    quotas = tuple(dict.fromkeys(quota for quota, _ in found))
    return Feedback(status, pause, quotas, source or (found[0][1] if found else retry_source), retry_after)


def _waits(found: list[tuple[Quota, str]], refused: bool) -> Iterator[tuple[float, str]]:
    # How long each used up quota of requests pauses everybody, and who says so. A quota that does not report what remains counts as
    # used up if the server throttles. A reset of 0 does not pause: whole seconds are rounded down.
    for quota, source in found:
        used_up = quota.remaining == 0 or (quota.remaining is None and quota.used is None and refused)
        if used_up and quota.reset and quota.unit == "requests":
            yield (quota.reset / quota.limit if quota.full_at_reset and quota.limit else quota.reset), source


def _throttles(status: int, retry_after: float | None, quotas: Iterable[Quota]) -> bool:
    # Whether the response refused the request because of its rate.
    if status in _THROTTLING or (status in _IF_TIMED and retry_after is not None):
        return True
    return status == 403 and _used_up(quotas)


def _used_up(quotas: Iterable[Quota]) -> bool:
    return any(quota.remaining == 0 and quota.unit == "requests" for quota in quotas)


def _read_retry_after(fields: dict[str, str], clock: Clock) -> tuple[float | None, str]:
    named = [(bounded(max(ms) / 1000), name) for name in RETRY_AFTER_MS if (ms := numbers(fields.get(name, "")))]
    named += [(time[0], "Retry-After")] if (time := latest(fields.get(RETRY_AFTER, ""), clock)) is not None else []
    return next((each for each in named if each[0]), named[0] if named else (None, "Retry-After"))  # some send 0 ms beside the seconds


def teach(adaptive: AdaptiveRate, feedback: Feedback | None, status: int, granted: int) -> Feedback | None:
    """Tell the AdaptiveRate what the server did, unless it failed for another reason than the rate, and return what to heed.

    A pause whose length the server did not name is left out: the rate is lowered instead. ``granted`` is the reading at the grant.
    """
    if feedback is None or not _throttles(status, feedback.retry_after, feedback.quotas):
        if status < 500 and status not in _BANS:
            adaptive._heed(False, feedback, granted)
        return feedback
    unnamed = feedback.source == f"status {status}"
    if unnamed and status == 503:
        return feedback
    feedback = replace(feedback, pause=None) if unnamed else feedback
    adaptive._heed(True, feedback, granted)
    return feedback


def _gather(headers: Headers) -> dict[str, str]:
    # The headers that are read here, by their names in lower case. Multi-dicts give each field of a name.
    fields: dict[str, list[str]] = {}
    items = getattr(headers, "items", None)
    for name, value in cast("Iterable[tuple[object, object]]", headers if items is None else items()):
        known = _text(name).lower()
        if known in _ASIDE or _READ.search(known):
            fields.setdefault(known, []).append(_text(value))
    joined = {name: ", ".join(texts) for name, texts in fields.items()}
    return {name: text for name, text in joined.items() if len(text) <= _LONGEST_TEXT}


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else str(value) if type(value) in (int, float) else ""
