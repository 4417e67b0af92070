"""The quotas that a response reports, read from its headers, and the numbers, durations and dates in them.

Knows nothing of statuses and pauses. Unreadable text says nothing. The sources, besides those of the table of vendors:

* RateLimit: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11; with other syntax in draft 07 (a dictionary)
  and draft 06 (three fields), under the same address
* dates: RFC 9110, https://www.rfc-editor.org/rfc/rfc9110#section-5.6.7, and RFC 3339
* durations such as ``6m0s``: https://pkg.go.dev/time#ParseDuration; such as ``00:00:30``: TimeSpan of .NET
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple

from aiorate._feedback import Quota

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiorate.http._vendors import Fields, Profile

    Item = tuple[str, dict[str, str]]

LONGEST = 86_400.0
"""Seconds, one day: pauses and resets are cut to it, whatever a server says."""

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
# The three forms of RFC 9110, section 5.6.7, and those of mail, which give their zone as a number. Dates of JavaScript do not match.
_HTTP_DATE = re.compile(r"[A-Za-z]{3,9},? .+[0-9]{2}:[0-9]{2}:[0-9]{2}(?: GMT| UTC| [+-][0-9]{4}| [0-9]{4})")
_RFC_3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}.*")  # without seconds too, as Atlassian sends it
# Clients, and aiorate, join fields of one name with commas, and a date contains a comma itself.
_PIECE = re.compile(r"\s*(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,[^,]*|[^,]+", re.IGNORECASE)


def read_quotas(fields: dict[str, str], profiles: Iterable[Profile], clock: Clock) -> Iterator[tuple[Quota, str]]:
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
    resets = [latest(fields.pop(name, ""), clock) for name in form.resets]
    reset, error = next((time for time in resets if time is not None), (None, 0.0))
    if level := _LEVEL.fullmatch(fields.pop(form.level, "")):
        limit = int(level[2])
        remaining = max(0, limit - int(level[1]))
    if used := _policies(fields.pop(form.used, "")):
        now, error = clock.now()
        yield Quota(form.name, reset=bounded(form.window - now % form.window), window=form.window, reset_error=error, used=used[0][0])

    windows = [policy for policy in policies + _policies(fields.pop(form.policies, "")) if policy[1] is not None]
    own = next((policy for policy in windows if policy[0] == limit), (None, None))
    if limit is not None or remaining is not None or reset:
        yield Quota(fields.get(form.named_by, form.name), limit, remaining, reset, own[1], full_at_reset, form.unit, error)
    for allowed, seconds in windows:
        if (allowed, seconds) != own:
            yield Quota(limit=allowed, window=seconds, unit=form.unit)


def _policies(text: str) -> list[tuple[int, float | None]]:
    # ``20, 20;w=60``: amounts, and their windows where they are given.
    return [(int(min(amount, _MOST)), _window(given)) for head, given in _items(text) for amount in numbers(head)]


def _read_draft_11(fields: dict[str, str]) -> Iterator[Quota]:
    policies = [policy for policy in _items(fields.get("ratelimit-policy", "")) if _integer(policy, "q") is not None]
    unused = list(policies)
    for item in _items(fields.get("ratelimit", "")):
        if (remaining := _integer(item, "r")) is None:
            continue  # it is required; items of draft 07 have none
        # A partition key may be given in one of the two fields only: express-rate-limit 8 has it in the policy alone.
        pk, reset = item[1].get("pk"), _integer(item, "t")
        same = [policy for policy in policies if policy[0] == item[0] and (pk is None or policy[1].get("pk", pk) == pk)]
        same = [policy for policy in same if policy[1].get("pk") == pk] or same
        own = same[0] if len(same) == 1 else (item[0], {})
        unused = [policy for policy in unused if policy is not own]
        yield _quota_of(own, remaining, None if reset is None else bounded(reset))
    for policy in unused:
        yield _quota_of(policy)


def _quota_of(policy: Item, remaining: int | None = None, reset: float | None = None) -> Quota:
    unit = _unquoted(policy[1].get("qu", '"requests"'))
    return Quota(_unquoted(policy[0]), _integer(policy, "q"), remaining, reset, _window(policy[1]), unit=unit)


def _window(given: dict[str, str]) -> float | None:
    # A longer window is none: cut to a day, it would promise more.
    return next((seconds for seconds in numbers(given.get("w", "")) if 1 <= seconds <= LONGEST), None)


def _integer(item: Item, key: str) -> int | None:
    value = item[1].get(key, "")
    return int(value) if re.fullmatch("[0-9]{1,15}", value) else None


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def _items(text: str) -> list[Item]:
    # The items of a list, each a head and its parameters: ``"permin";q=50;w=60, 20;w=60, limit=100``. A list with an open quote or a
    # parameter without a name has no items; RFC 9651 demands that of every error, which no reader of old drafts can.
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


def numbers(text: str) -> list[float]:
    """The plain numbers among the values, which commas separate."""
    return [float(piece) for piece in map(str.strip, text.split(",")) if _NUMBER.fullmatch(piece)]


def bounded(seconds: float) -> float:
    """The seconds, 0 to `LONGEST`. Less than a nanosecond, the unit of limiters, is 0."""
    return min(float(seconds), LONGEST) if seconds >= 1e-9 else 0.0


class Clock(NamedTuple):
    """The server's Unix time in seconds: its Date plus the time that the response spent in caches, or the local clock."""

    date: str
    age: float
    local: float | None

    def now(self) -> tuple[float, float]:
        """The time, and by how many seconds it may be wrong: a Date has whole seconds."""
        if (sent := _moment(self.date)) is not None:
            return sent + self.age, 1.0
        return time.time() if self.local is None else self.local, 0.0

    def until(self, moment: float) -> tuple[float, float]:
        """Seconds until then, and by how many that may be wrong."""
        now, error = self.now()
        return moment - now, error + moment.is_integer()


def latest(text: str, clock: Clock) -> tuple[float, float] | None:
    """The latest of the times in the text, in seconds from now, 0 to `LONGEST`, and the error; None if no time can be read."""
    times = [time for piece in _PIECE.findall(text) if (time := _time(piece.strip(), clock)) is not None]
    return max([(bounded(seconds), error) for seconds, error in times], default=None)


def _time(text: str, clock: Clock) -> tuple[float, float] | None:
    # Seconds from now, in any of the known forms, and the error.
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        if not 1e9 < seconds <= 1e21:  # after it: the year 33658 in nanoseconds
            return seconds, 0.0
        while seconds > 1e12:  # not seconds: 1e12 ms was in 2001
            seconds /= 1000
        return clock.until(seconds)
    if _GO_DURATION.fullmatch(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _GO_PART.findall(text)), 0.0
    if span := _TIMESPAN.fullmatch(text):
        return int(span[1]) * 3600 + int(span[2]) * 60 + float(span[3]), 0.0
    moment = _moment(text)
    return None if moment is None else clock.until(moment)


def _moment(text: str) -> float | None:
    # The Unix time of a date of RFC 3339 or HTTP. Without a zone it is in UTC.
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
