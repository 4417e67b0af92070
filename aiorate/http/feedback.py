"""What a server says of its limits, read from the status and the headers of one response. Text in, numbers out.

Knows no client, no limiter and no loop, and never waits. Which vendor sends which header is in `aiorate.http.vendors`.

The sources, named at each rule; the vendors' pages are in the table:

* Retry-After and dates: RFC 9110, https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3, and 5.6.7
* 429: RFC 6585, https://www.rfc-editor.org/rfc/rfc6585#section-4; 529: https://docs.claude.com/en/api/errors
* RateLimit and RateLimit-Policy: draft 11, https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11;
  with other syntax in draft 07 (one dictionary) and draft 06 (three fields), under the same address
"""

from __future__ import annotations

import logging
import re
import time
from collections import UserString
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from aiorate.errors import kind_of
from aiorate.http.vendors import PROFILES, RETRY_AFTER, RETRY_AFTER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aiorate.http.vendors import Fields, Profile

    _Item = tuple[str, Mapping[str, object]]
    Headers = Mapping[str, str | float] | Mapping[bytes, bytes] | Iterable[tuple[str, str]] | Iterable[tuple[bytes, bytes]]

__all__ = ["LONGEST", "Feedback", "Quota", "read_feedback"]

_logger = logging.getLogger("aiorate")

LONGEST = 86_400.0
"""Seconds, one day: no pause and no reset is longer, whatever a server says."""


@dataclass(frozen=True, slots=True)
class Quota:
    """One limit of a server, as far as the response tells. None: not told, or not readable."""

    name: str = ""
    """``requests``, ``tokens``, ``input_tokens`` or ``output_tokens``, the name of a policy, or empty if it has none.

    GitHub's is the resource (``core``), Discord's the bucket, or ``global`` for its limit over all routes.
    """
    limit: int | None = None
    """How much the server allows in a window, 0 or more."""
    remaining: int | None = None
    """How much is left, 0 or more. May be larger than ``limit``, and is no promise."""
    reset: float | None = None
    """Seconds from now in which no more than ``remaining`` may be used, 0 to `LONGEST`; see ``full_at_reset``."""
    window: float | None = None
    """Seconds of the policy, 1 to `LONGEST`: ``limit`` in each. A longer window is left out, since a shorter one would promise more."""
    full_at_reset: bool = False
    """True if all of ``limit`` is back at ``reset``, and a part of it before. So it is with OpenAI and Anthropic."""
    unit: str = "requests"
    """What is counted: ``requests``, ``tokens``, or the unit of a policy, such as ``content-bytes``."""

    @property
    def rate(self) -> float | None:
        """The most per second that both the policy and what is left allow; None if neither is told.

        A policy of 10000 in 1000 s with 10000 left for 10 s is a rate of 10, not of 1000: draft 11, section 8.5.
        What is left says nothing of the rate if ``full_at_reset``.
        """
        rates = []
        if self.limit is not None and self.window:
            rates.append(self.limit / self.window)
        if self.remaining is not None and self.reset and not self.full_at_reset:
            rates.append(self.remaining / self.reset)
        return min(rates, default=None)


@dataclass(frozen=True, slots=True)
class Feedback:
    """What one response says of the server's limits. `read_feedback` makes it; you may make your own for a server with other headers."""

    status: int
    """The status of the response."""
    pause: float | None = None
    """Seconds from now during which nothing may be sent, 0 to `LONGEST`; None: no pause. 0: at once, said by the server itself."""
    quotas: tuple[Quota, ...] = ()
    """The limits that the response tells of, those of tokens too. A ``pause`` already accounts for those in requests that are used up.

    Without a pause, a limit with nothing left and a reset grants nothing until then.
    """
    source: str = ""
    """Who said so, for logs: a header (``Retry-After``), a vendor (``GitHub``), or the status (``status 429``)."""
    retry_after: float | None = None
    """Seconds of Retry-After, 0 to `LONGEST`. With a 202 or a redirect it concerns that one resource, and is no pause."""


def read_feedback(status: int, headers: Headers, *, now: float | None = None) -> Feedback | None:
    """What the response says of the server's limits, or None if it says nothing.

    ``headers`` is a mapping of any client, with names in any case, or pairs of name and value; text, bytes or numbers. A field that comes
    several times counts with the later end and the smaller remainder. What cannot be read is ignored: no header raises. Raises
    TypeError for a status that is no int, and for what holds no headers, such as the response itself.

    ``now`` is the Unix time in seconds of the local wall clock, `time.time` by default. It is used only where a header holds a
    date or a time since the epoch and the response has no Date of its own; nothing is paced by it.

    The pause, in this order:

    1. Retry-After wins, in seconds or as a date (RFC 9110, section 10.2.3), on statuses that throttle, and wherever rule 2 pauses.
       Those statuses are 429 (RFC 6585), 503, 529 (Anthropic: overloaded), and a 403 that has Retry-After or nothing remaining
       (GitHub). Of ``retry-after-ms`` and Retry-After the first counts, as in OpenAI's client.
    2. A quota of requests with nothing remaining pauses until its reset, on any status: ``r=0;t=30`` (draft 11, section 7).
       If the reset says when the quota is full (OpenAI, Anthropic), one request is back after ``reset / limit``.
       A quota of tokens, bytes or concurrent requests does not pause.
    3. A status that throttles and names no time pauses for 1 s; GitHub's 429 and 403 for 60 s.

    RateLimit and RateLimit-Policy of draft 11 are read with http-sf, which the extras ``httpx``, ``aiohttp`` and ``http`` of aiorate
    install. Without it they are ignored, and the first of them is logged. All other forms need nothing. Quotas of a response from a
    cache, one with a positive Age, are ignored (draft 11, section 7.3).
    """
    if not isinstance(status, int):
        raise TypeError(f"read_feedback(status, headers): the status must be an int such as 429, not {kind_of(status)}.")
    fields = _with_dictionary_split(_gather(headers))
    if status not in _THROTTLING and _TELLING.isdisjoint(fields):
        return None
    age = max(_numbers(fields.get("age", "")), default=0.0)
    clock = _Clock(fields.get("date", ""), age, now)
    retry_after, retry_source = _read_retry_after(fields, clock)
    profiles = [profile for profile in PROFILES if _matches(profile, fields)]
    found = [] if age > 0 else list(_read_quotas(fields, profiles, clock))

    throttles = status in _THROTTLING or (
        status == 403 and (retry_after is not None or any(quota.remaining == 0 and quota.unit == "requests" for quota, _ in found))
    )
    if throttles and retry_after is not None:
        found += [
            (Quota("global", remaining=0, reset=retry_after), profile.vendor)
            for profile in profiles
            if fields.get(profile.everywhere, "").strip().lower() == "true"
        ]
    pause, source = max(_waits(found, throttles), default=(None, ""))
    if retry_after is not None and (throttles or pause is not None):
        pause, source = retry_after, retry_source
    elif throttles and pause is None:
        pause, source = _unnamed_pause(status, profiles)
    if pause is None and retry_after is None and not found:
        return None
    quotas = tuple(dict.fromkeys(quota for quota, _ in found))
    return Feedback(status, pause, quotas, source or (found[0][1] if found else retry_source), retry_after)


# --- The pause --------------------------------------------------------------------------------------------------------------

_THROTTLING = (429, 503, 529)
_UNNAMED_PAUSE = 1.0  # seconds


def _waits(found: list[tuple[Quota, str]], throttles: bool) -> Iterator[tuple[float, str]]:
    # How long each used up quota of requests keeps everybody waiting, and who says so. A quota that does not tell what remains is
    # taken to be used up if the server throttles. A reset of 0 is none: whole seconds are rounded down.
    for quota, source in found:
        used_up = quota.remaining == 0 or (quota.remaining is None and throttles)
        if used_up and quota.reset and quota.unit == "requests":
            yield (quota.reset / quota.limit if quota.full_at_reset and quota.limit else quota.reset), source


def _unnamed_pause(status: int, profiles: list[Profile]) -> tuple[float, str]:
    if status in (403, 429):  # 503 and 529 say that the server has trouble, not that the client asks for too much
        for profile in profiles:
            if profile.unnamed_pause is not None:
                return profile.unnamed_pause, profile.vendor
    return _UNNAMED_PAUSE, f"status {status}"


def _read_retry_after(fields: dict[str, str], clock: _Clock) -> tuple[float | None, str]:
    for name in RETRY_AFTER_MS:
        milliseconds = _numbers(fields.get(name, ""))
        if milliseconds:
            return _bounded(max(milliseconds) / 1000), name
    return _latest(fields.get(RETRY_AFTER, ""), clock), "Retry-After"


# --- The quotas -------------------------------------------------------------------------------------------------------------


def _matches(profile: Profile, fields: dict[str, str]) -> bool:
    if profile.signs:
        return any(name in fields and text in fields[name].lower() for name, text in profile.signs)
    return not _HEADERS[profile.vendor].isdisjoint(fields)


def _read_quotas(fields: dict[str, str], profiles: list[Profile], clock: _Clock) -> Iterator[tuple[Quota, str]]:
    # Quota and vendor. What one profile has read is gone for those after it.
    fields = dict(fields)
    for quota in _read_structured(fields):
        yield quota, "RateLimit"
    for profile in profiles:
        for form in profile.quotas:
            for quota in _read_form(form, profile.full_at_reset, fields, clock):
                yield quota, profile.vendor


def _read_form(form: Fields, full_at_reset: bool, fields: dict[str, str], clock: _Clock) -> Iterator[Quota]:
    policies = _policies(fields.pop(form.limit, ""))
    limit = policies[0][0] if policies else None
    remaining = min((_whole(number) for number in _numbers(fields.pop(form.remaining, ""))), default=None)
    resets = [_latest(fields.pop(name, ""), clock) for name in form.resets]
    reset = next((seconds for seconds in resets if seconds is not None), None)
    level = _LEVEL.fullmatch(fields.pop(form.level, ""))
    if level:
        limit = int(level[2])
        remaining = max(0, limit - int(level[1]))

    windows = [policy for policy in policies + _policies(fields.pop(form.policies, "")) if policy[1] is not None]
    own = next((policy for policy in windows if policy[0] == limit), (None, None))
    if limit is not None or remaining is not None or reset:
        yield Quota(fields.get(form.named_by, form.name), limit, remaining, reset, own[1], full_at_reset, form.unit)
    for allowed, window in windows:
        if (allowed, window) != own:
            yield Quota(limit=allowed, window=window, unit=form.unit)


def _policies(text: str) -> list[tuple[int, float | None]]:
    # ``20, 20;w=60``: limits, and windows in seconds where they are told. A comment in quotes may hold anything.
    policies = []
    for piece in _QUOTED.sub("", text).split(","):
        head, *parameters = piece.split(";")
        numbers = _numbers(head)
        if numbers:
            named = [value for key, _, value in (parameter.partition("=") for parameter in parameters) if key.strip() == "w"]
            windows = _numbers(named[0]) if named else []
            policies.append((_whole(numbers[0]), _window(windows[0]) if windows else None))
    return policies


def _with_dictionary_split(fields: dict[str, str]) -> dict[str, str]:
    # Draft 07: ``limit=100, remaining=50, reset=5`` in one field is what draft 06 had in three.
    for piece in _QUOTED.sub("", fields.get("ratelimit", "")).split(","):
        key, equals, value = piece.partition("=")
        if equals and key.strip() in ("limit", "remaining", "reset"):
            fields[f"ratelimit-{key.strip()}"] = value.partition(";")[0]
    return fields


# --- Structured fields, draft 11 --------------------------------------------------------------------------------------------


def _read_structured(fields: dict[str, str]) -> Iterator[Quota]:
    policies = [(name, given) for name, given in _items(fields.get("ratelimit-policy", "")) if _integer(given, "q") is not None]
    told = []
    for name, given in _items(fields.get("ratelimit", "")):
        remaining, reset = _integer(given, "r"), _integer(given, "t")
        if remaining is None:
            continue  # r is required
        policy = _policy_of(name, given.get("pk"), policies)
        told.append(policy)
        yield _quota_of(name, policy[1] if policy else {}, remaining, None if reset is None else _bounded(float(reset)))
    for policy in policies:
        if policy not in told:
            yield _quota_of(policy[0], policy[1], None, None)


def _policy_of(name: str, pk: object, policies: list[_Item]) -> _Item | None:
    # A partition key may be told in one of the two fields only: express-rate-limit 8 has it in the policy alone.
    named = [policy for policy in policies if policy[0] == name]
    same = [policy for policy in named if policy[1].get("pk") == pk] or [policy for policy in named if policy[1].get("pk") is None]
    if not same and pk is None and len(named) == 1:
        return named[0]
    return same[0] if same else None


def _quota_of(name: str, policy: Mapping[str, object], remaining: int | None, reset: float | None) -> Quota:
    unit, window = policy.get("qu"), _integer(policy, "w")
    return Quota(
        name,
        _integer(policy, "q"),
        remaining,
        reset,
        None if window is None else _window(window),
        unit=unit if isinstance(unit, str) else "requests",
    )


def _items(text: str) -> list[_Item]:
    # The items of a structured list, each a name and its parameters. A list with one error has no item, as RFC 9651 demands.
    parse = _structured_list() if ";" in text and not text.lstrip()[:1].isdigit() else None  # a number: a policy of older drafts
    if parse is None:
        return []
    try:
        members = parse(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return []
    pairs = [member for member in cast("list[object]", members) if isinstance(member, tuple) and len(member) == 2]
    # A name is a string. A token is one too, for those who forget the quotes; it is a UserString.
    return [(str(name), given) for name, given in pairs if isinstance(name, (str, UserString)) and isinstance(given, dict)]


@cache
def _structured_list() -> Callable[[bytes], object] | None:
    try:
        from http_sf import parse
    except ImportError:
        _logger.warning(
            "a server sent RateLimit or RateLimit-Policy of draft 11, which cannot be read without http-sf."
            ' Install it: pip install "aiorate[http]"'
        )
        return None
    return lambda text: parse(text, tltype="list")


def _integer(given: Mapping[str, object], key: str) -> int | None:
    value = given.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


# --- Headers, numbers and times ---------------------------------------------------------------------------------------------

_HEADERS = {
    profile.vendor: {
        name
        for form in profile.quotas
        for name in (profile.everywhere, form.limit, form.remaining, form.level, form.named_by, form.policies, *form.resets)
    }
    - {""}
    for profile in PROFILES
}
_TELLING = {RETRY_AFTER, *RETRY_AFTER_MS, "ratelimit"}.union(*_HEADERS.values())
_NAMES = _TELLING | {"date", "age"} | {name for profile in PROFILES for name, _ in profile.signs}

_LONGEST_TEXT = 1024  # characters of a field: a longer one is no quota, and takes its time to parse
_LARGEST = 999_999_999_999_999  # as in structured fields: RFC 9651, section 3.3.1

_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_LEVEL = re.compile(r"\s*([0-9]{1,15})\s*/\s*([0-9]{1,15})\s*")
_QUOTED = re.compile(r'"[^"]*"')
_GO_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")  # https://pkg.go.dev/time#ParseDuration
_GO_DURATION = re.compile(f"(?:{_GO_PART.pattern})+")
_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
# The three forms of RFC 9110, section 5.6.7, and those of mail, which say their zone as a number. A date of JavaScript is none.
_HTTP_DATE = re.compile(r"[A-Za-z]{3,9},? .+[0-9]{2}:[0-9]{2}:[0-9]{2}(?: GMT| UTC| [+-][0-9]{4}| [0-9]{4})")
_RFC_3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})?")
# Fields of one name are joined with commas by clients and by us, and a date holds a comma itself.
_PIECE = re.compile(r"\s*(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,[^,]*|[^,]+", re.IGNORECASE)


@runtime_checkable
class _HasItems(Protocol):
    # A mapping, and what else has pairs: multi-dicts give each field of a name, an email.message.Message is no mapping.
    def items(self) -> Iterable[tuple[object, object]]: ...


def _gather(headers: Headers) -> dict[str, str]:
    # The headers that are of interest, by their names in lower case.
    fields: dict[str, list[str]] = {}
    has_items = isinstance(headers, Mapping) or isinstance(headers, _HasItems)  # noqa: SIM101  # the first is ten times faster
    try:
        pairs = cast("_HasItems", headers).items() if has_items else cast("Iterable[tuple[object, object]]", headers)
        for name, value in pairs:
            known = name.lower() if isinstance(name, str) else _text(name).lower()
            if known in _NAMES:
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


class _Clock:
    """The server's Unix time in seconds: its Date plus the time that the response spent in caches, or the local clock."""

    __slots__ = ("_age", "_date", "_now")

    def __init__(self, date: str, age: float, now: float | None) -> None:
        self._date = date
        self._age = age
        self._now = now

    def now(self) -> float:
        if self._date:
            sent = next((moment for piece in _PIECE.findall(self._date) if (moment := _moment(piece)) is not None), None)
            self._date = ""
            if sent is not None:
                self._now = sent + self._age
        if self._now is None:
            self._now = time.time()
        return self._now


def _latest(text: str, clock: _Clock) -> float | None:
    return max((seconds for piece in _PIECE.findall(text) if (seconds := _seconds(piece, clock)) is not None), default=None)


def _seconds(text: str, clock: _Clock) -> float | None:
    # Seconds from now, told in any of the known forms. What lies in the past is now.
    text = text.strip()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        if seconds > 1e21:
            return LONGEST  # after the year 33658 in nanoseconds
        while seconds > 1e12:  # 1e12 s is no time of ours, 1e12 ms was in 2001
            seconds /= 1000
        return _bounded(seconds - clock.now() if seconds > 1e9 else seconds)
    if _GO_DURATION.fullmatch(text):
        return _bounded(sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(text)))
    moment = _moment(text)
    return None if moment is None else _bounded(moment - clock.now())


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


def _bounded(seconds: float) -> float | None:
    # None if it is no number. Below a nanosecond, the unit of limiters, it is 0.
    if not isfinite(seconds):
        return LONGEST if seconds > 0 else None
    return min(seconds, LONGEST) if seconds >= 1e-9 else 0.0


def _window(seconds: float) -> float | None:
    return float(seconds) if 1 <= seconds <= LONGEST else None


def _numbers(text: str) -> list[float]:
    return [float(piece) for piece in map(str.strip, text.split(",")) if _NUMBER.fullmatch(piece)]


def _whole(number: float) -> int:
    # Rounded down: half a request cannot be sent.
    return int(min(number, _LARGEST))
