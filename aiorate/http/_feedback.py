"""What a server says of its limits: whether a response asks for a pause, for how long, and which quotas it reports.

Knows no client, limiter or loop. Unreadable text says nothing. The sources, apart from those of vendors:

* Retry-After: RFC 9110, https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3; dates: section 5.6.7 there, and RFC 3339
* 429: RFC 6585, https://www.rfc-editor.org/rfc/rfc6585#section-4; 529: https://docs.claude.com/en/api/errors
* RateLimit: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11; with other syntax in draft 07 (a dictionary)
  and draft 06 (three fields), under the same address
* durations such as ``6m0s``: https://pkg.go.dev/time#ParseDuration; such as ``00:00:30``: TimeSpan of .NET
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from aiorate._errors import kind_of
from aiorate._feedback import Feedback, Quota
from aiorate.http._vendors import PROFILES, RETRY_AFTER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aiorate._limiters.adaptive import AdaptiveRate
    from aiorate.http._vendors import Fields, Profile

    Headers = Mapping[str, str | float] | Mapping[bytes, bytes] | Iterable[tuple[str, str]] | Iterable[tuple[bytes, bytes]]
    Item = tuple[str, dict[str, str]]
    Clock = tuple[float, float]  # the server's Unix time, including time in caches, and its error, in seconds

_THROTTLING = 429, 503, 529
_BANS = 418, 420, 430  # of Binance, Twitter and Shopify
_IF_TIMED = 403, *_BANS, 509  # these throttle if they have Retry-After
_UNNAMED_PAUSE = 1.0  # seconds
_LONGEST_TEXT = 1024  # characters of a field: a longer one would take long to parse
_ASIDE = {"age", "date", "server", "x-github-request-id"}  # these say nothing alone
_READ = re.compile("limit|retry-after|used")  # part of the name of all others that are read
LONGEST = 86_400.0  # seconds, one day: pauses and resets are cut to it, whatever a server says
_MOST = 999_999_999_999_999  # as in structured fields: RFC 9651, section 3.3.1
_STRING = r'"(?:[^"\\]|\\.)*"'
_ITEM, _PART = re.compile(rf'(?:{_STRING}|[^",])+'), re.compile(rf'(?:{_STRING}|[^";])+')
_PARAMETER = re.compile(r"([A-Za-z*][A-Za-z0-9_.*-]*)(?:=(.*))?", re.DOTALL)
_LEVEL = re.compile(r"\s*([0-9]{1,15})\s*/\s*([0-9]{1,15})\s*")
_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_GO_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_GO_DURATION = re.compile(f"(?:{_GO_PART.pattern})+")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIMESPAN = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2}(?:\.[0-9]{1,9})?)")
# The three forms of RFC 9110, and those of mail, with the zone as a number. Dates of JavaScript do not match.
_HTTP_DATE = re.compile(r"[A-Za-z]{3,9},? .+[0-9]{2}:[0-9]{2}:[0-9]{2}(?: GMT| UTC| [+-][0-9]{4}| [0-9]{4})")
_RFC_3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}.*")  # without seconds too, as Atlassian sends it
# Clients, and aiorate, join fields of one name with commas, and a date contains a comma itself.
_PIECE = re.compile(r"\s*(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,[^,]*|[^,]+", re.IGNORECASE)


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
    age = max(_numbers(fields.get("age", "")), default=0.0)
    sent = _moment(fields.get("date", ""))
    clock = (time.time() if now is None else now, 0.0) if sent is None else (sent + age, 1.0)  # a Date has whole seconds
    retry_after, retry_source = _read_retry_after(fields, clock)
    profiles = [
        profile
        for profile in PROFILES
        if not profile.signs or any(name in fields and text in fields[name].lower() for name, text in profile.signs)
    ]
    found = [] if age > 0 else list(_read_quotas(fields, profiles, clock))
    quotas, source = dict(found), found[0][1] if found else retry_source

    refused = _throttles(status, retry_after, quotas)
    if refused and retry_after is not None and any(fields.get(each.everywhere, "").strip().lower() == "true" for each in profiles):
        quotas[Quota("global", remaining=0, reset=retry_after)] = ""
    pause = max([wait for quota in quotas if (wait := _wait(quota, refused))], default=None)
    if retry_after is not None and (refused or pause is not None):
        rounded = min(pause or _UNNAMED_PAUSE, _UNNAMED_PAUSE) if _used_up(quotas) else 0.0
        pause, source = retry_after or rounded, retry_source
    elif refused and pause is None:  # a 503 or 529 says that the server has trouble, not that the client asks for too much
        unnamed = [(profile.unnamed_pause, profile.vendor) for profile in profiles if profile.unnamed_pause and status in (403, 429)]
        pause, source = next(iter(unnamed), (_UNNAMED_PAUSE, f"status {status}"))
    if pause is None and retry_after is None and not quotas:
        return None
    return Feedback(status, pause, tuple(quotas), source, retry_after)


def _wait(quota: Quota, refused: bool) -> float | None:
    # How long a quota pauses everybody. One that does not report what remains counts as used up if the server throttles. A reset of 0
    # does not pause: whole seconds are rounded down.
    used_up = quota.remaining == 0 or (quota.remaining is None and quota.used is None and refused)
    if not used_up or not quota.reset or quota.unit != "requests":
        return None
    return quota.reset / quota.limit if quota.full_at_reset and quota.limit else quota.reset


def _throttles(status: int, retry_after: float | None, quotas: Iterable[Quota]) -> bool:
    timed = status in _IF_TIMED and retry_after is not None
    return status in _THROTTLING or timed or (status == 403 and _used_up(quotas))


def _used_up(quotas: Iterable[Quota]) -> bool:
    return any(quota.remaining == 0 and quota.unit == "requests" for quota in quotas)


def _read_retry_after(fields: dict[str, str], clock: Clock) -> tuple[float | None, str]:
    named = [(_bounded(max(ms) / 1000), name) for name in RETRY_AFTER_MS if (ms := _numbers(fields.get(name, "")))]
    named += [(at[0], "Retry-After")] if (at := _latest(fields.get("retry-after", ""), clock)) is not None else []
    return next((each for each in named if each[0]), named[0] if named else (None, "Retry-After"))  # some send 0 ms beside the seconds


def teach(adaptive: AdaptiveRate, feedback: Feedback | None, status: int, granted: int) -> Feedback | None:
    """Tell the AdaptiveRate what the server did, unless it failed for another reason, and return what to observe.

    Instead of a pause whose length the server did not name, the rate is lowered. ``granted`` is the reading at the grant.
    """
    if feedback is None or not _throttles(status, feedback.retry_after, feedback.quotas):
        if status < 500 and status not in _BANS:
            adaptive._heed(None, granted)
    elif feedback.source != f"status {status}":
        adaptive._heed(feedback.pause or 0, granted)
    elif status != 503:
        adaptive._heed(0, granted)
        return replace(feedback, pause=None)
    return feedback


def _gather(headers: Headers) -> dict[str, str]:
    # By names in lower case. Multi-dicts give each field of a name.
    fields: dict[str, list[str]] = {}
    items = getattr(headers, "items", None)
    for name, value in cast("Iterable[tuple[object, object]]", headers if items is None else items()):
        known = _text(name).lower().replace("rate-limit", "ratelimit")  # as X writes it: https://docs.x.com/x-api/fundamentals/rate-limits
        if known in _ASIDE or _READ.search(known):
            fields.setdefault(known, []).append(_text(value))  # joined once: there may be thousands
    return {name: text for name, texts in fields.items() if len(text := ", ".join(texts)) <= _LONGEST_TEXT}


def _text(value: object) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _read_quotas(fields: dict[str, str], profiles: Iterable[Profile], clock: Clock) -> Iterator[tuple[Quota, str]]:
    """Yield each quota with its vendor. A header that one profile has read is not read by those after it."""
    for quota in _read_draft_11(fields):
        yield quota, "RateLimit"
    fields = dict(fields)
    for head, _ in _items(fields.get("ratelimit", "")):  # of draft 07: limit=100, remaining=50, reset=5
        name, equals, value = head.partition("=")
        if equals:
            fields[f"ratelimit-{name}"] = value
    for profile in profiles:
        for form in profile.quotas:
            if not fields.keys().isdisjoint((*form, *form.resets)):
                for quota in _read_form(form, profile.full_at_reset, fields, clock):
                    yield quota, profile.vendor


def _read_form(form: Fields, full_at_reset: bool, fields: dict[str, str], clock: Clock) -> Iterator[Quota]:
    policies = _policies(fields.pop(form.limit, ""))
    limit = policies[0][0] if policies else None
    remaining = min([amount for amount, _ in _policies(fields.pop(form.remaining, ""))], default=None)
    resets = [_latest(fields.pop(name, ""), clock) for name in form.resets]
    reset, error = next((time for time in resets if time is not None), (None, 0.0))
    if level := _LEVEL.fullmatch(fields.pop(form.level, "")):
        limit = int(level[2])
        remaining = max(0, limit - int(level[1]))
    if used := _policies(fields.pop(form.used, "")):
        left = _bounded(form.window - clock[0] % form.window)
        yield Quota(form.name, reset=left, window=form.window, reset_error=clock[1], used=used[0][0])

    windows = [policy for policy in policies + _policies(fields.pop(form.policies, "")) if policy[1] is not None]
    own = next((policy for policy in windows if policy[0] == limit), (None, None))
    if limit is not None or remaining is not None or reset:
        yield Quota(fields.get(form.named_by, form.name), limit, remaining, reset, own[1], full_at_reset, form.unit, error)
    for allowed, seconds in windows:
        if (allowed, seconds) != own:
            yield Quota(limit=allowed, window=seconds, unit=form.unit)


def _policies(text: str) -> list[tuple[int, float | None]]:
    # ``20, 20;w=60``: amounts, and their windows if given.
    return [(int(min(amount, _MOST)), _window(given)) for head, given in _items(text) for amount in _numbers(head)]


def _read_draft_11(fields: dict[str, str]) -> Iterator[Quota]:
    policies = [policy for policy in _items(fields.get("ratelimit-policy", "")) if _integer(policy, "q") is not None]
    unused = list(policies)
    for item in _items(fields.get("ratelimit", "")):
        if (remaining := _integer(item, "r")) is None:
            continue  # it is required; items of draft 07 have none
        # express-rate-limit 8 gives a partition key in the policy alone.
        pk, reset = item[1].get("pk"), _integer(item, "t")
        same = [policy for policy in policies if policy[0] == item[0] and (pk is None or policy[1].get("pk", pk) == pk)]
        same = [policy for policy in same if policy[1].get("pk") == pk] or same
        own = same[0] if len(same) == 1 else (item[0], {})
        unused = [policy for policy in unused if policy is not own]
        yield _quota_of(own, remaining, None if reset is None else _bounded(reset))
    for policy in unused:
        yield _quota_of(policy)


def _quota_of(policy: Item, remaining: int | None = None, reset: float | None = None) -> Quota:
    unit = _unquoted(policy[1].get("qu", '"requests"'))
    return Quota(_unquoted(policy[0]), _integer(policy, "q"), remaining, reset, _window(policy[1]), unit=unit)


def _window(given: dict[str, str]) -> float | None:
    # None for a longer one: cut to a day, it would promise more.
    return next((seconds for seconds in _numbers(given.get("w", "")) if 1 <= seconds <= LONGEST), None)


def _integer(item: Item, key: str) -> int | None:
    value = item[1].get(key, "")
    return int(value) if re.fullmatch("[0-9]{1,15}", value) else None


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def _items(text: str) -> list[Item]:
    # Heads and their parameters: ``"permin";q=50;w=60, 20;w=60, limit=100``. A list with an open quote or a parameter without a name has
    # no items. RFC 9651 demands that of every error, but fields of old drafts break its rules.
    if '"' in re.sub(_STRING, "", text):
        return []
    items = []
    for item in _ITEM.findall(text):
        head, *parameters = [part.strip() for part in _PART.findall(item)] or [""]
        given = [_PARAMETER.fullmatch(parameter) for parameter in parameters]
        if None in given:
            return []
        items.append((head, {match[1]: match[2] or "" for match in given if match}))
    return items


def _numbers(text: str) -> list[float]:
    return [float(piece) for piece in map(str.strip, text.split(",")) if _NUMBER.fullmatch(piece)]


def _bounded(seconds: float) -> float:
    """0 to `LONGEST`. Less than a nanosecond, the unit of limiters, is 0."""
    return min(float(seconds), LONGEST) if seconds >= 1e-9 else 0.0


def _latest(text: str, clock: Clock) -> tuple[float, float] | None:
    """The latest of the times in the text, in seconds from now, and its error; None if there is none."""
    times = [time for piece in _PIECE.findall(text) if (time := _time(piece.strip(), clock)) is not None]
    return max([(_bounded(seconds), error) for seconds, error in times], default=None)


def _time(text: str, clock: Clock) -> tuple[float, float] | None:
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        if not 1e9 < seconds <= 1e21:  # after it: the year 33658 in nanoseconds
            return seconds, 0.0
        while seconds > 1e12:  # not seconds: 1e12 ms was in 2001
            seconds /= 1000
        moment: float | None = seconds
    elif _GO_DURATION.fullmatch(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _GO_PART.findall(text)), 0.0
    elif span := _TIMESPAN.fullmatch(text):
        return int(span[1]) * 3600 + int(span[2]) * 60 + float(span[3]), 0.0
    else:
        moment = _moment(text)
    return None if moment is None else (moment - clock[0], clock[1] + moment.is_integer())


@lru_cache(256)  # a Date is the same for a second
def _moment(text: str) -> float | None:
    # Without a zone, a date is in UTC.
    text = text.strip()
    try:
        if _RFC_3339.fullmatch(text):
            moment = datetime.fromisoformat(text.upper())
        elif _HTTP_DATE.fullmatch(text):
            moment = parsedate_to_datetime(text)
        else:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
