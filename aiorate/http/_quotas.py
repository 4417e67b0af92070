"""The quotas that a response reports, read from its headers: by the table of vendors, or as structured fields (draft 11).

Knows nothing of statuses and pauses. RateLimit and RateLimit-Policy are those of draft 11,
https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11;
with other syntax in draft 07 (one dictionary) and draft 06 (three fields), under the same address.
"""

from __future__ import annotations

import logging
import re
from collections import UserString
from functools import cache
from typing import TYPE_CHECKING, cast

from aiorate._feedback import Quota
from aiorate.http._values import bounded, latest, numbers, whole, window
from aiorate.http._vendors import PROFILES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aiorate.http._values import Clock
    from aiorate.http._vendors import Fields, Profile

    _Item = tuple[str, Mapping[str, object]]


_logger = logging.getLogger("aiorate")

_LEVEL = re.compile(r"\s*([0-9]{1,15})\s*/\s*([0-9]{1,15})\s*")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_HEADERS = {
    profile.vendor: {
        name
        for form in profile.quotas
        for name in (profile.everywhere, form.limit, form.remaining, form.level, form.named_by, form.policies, *form.resets)
    }
    - {""}
    for profile in PROFILES
}
NAMES = {"ratelimit"}.union(*_HEADERS.values())
"""The headers that report quotas, in lower case."""


def split_dictionary(fields: dict[str, str]) -> None:
    """Add the three fields of draft 06 where RateLimit is a dictionary of draft 07: ``limit=100, remaining=50, reset=5``."""
    for piece in _QUOTED.sub("", fields.get("ratelimit", "")).split(","):
        key, equals, value = piece.partition("=")
        if equals and key.strip() in ("limit", "remaining", "reset"):
            fields[f"ratelimit-{key.strip()}"] = value.partition(";")[0]


def matching_profiles(fields: dict[str, str]) -> list[Profile]:
    """The profiles of the vendors whose headers the response has."""
    return [profile for profile in PROFILES if _matches(profile, fields)]


def _matches(profile: Profile, fields: dict[str, str]) -> bool:
    if profile.signs:
        return any(name in fields and text in fields[name].lower() for name, text in profile.signs)
    return not _HEADERS[profile.vendor].isdisjoint(fields)


def read_quotas(fields: dict[str, str], profiles: list[Profile], clock: Clock) -> Iterator[tuple[Quota, str]]:
    """Yield each quota with its vendor. A header that one profile has read is not read by those after it."""
    fields = dict(fields)
    for quota in _read_structured(fields):
        yield quota, "RateLimit"
    for profile in profiles:
        for form in profile.quotas:
            for quota in _read_form(form, profile.full_at_reset, fields, clock):
                yield quota, profile.vendor


def _read_form(form: Fields, full_at_reset: bool, fields: dict[str, str], clock: Clock) -> Iterator[Quota]:
    policies = _policies(fields.pop(form.limit, ""))
    limit = policies[0][0] if policies else None
    remaining = min((whole(number) for number in numbers(fields.pop(form.remaining, ""))), default=None)
    resets = [latest(fields.pop(name, ""), clock) for name in form.resets]
    reset, error = next((time for time in resets if time is not None), (None, 0.0))
    level = _LEVEL.fullmatch(fields.pop(form.level, ""))
    if level:
        limit = int(level[2])
        remaining = max(0, limit - int(level[1]))

    windows = [policy for policy in policies + _policies(fields.pop(form.policies, "")) if policy[1] is not None]
    own = next((policy for policy in windows if policy[0] == limit), (None, None))
    if limit is not None or remaining is not None or reset:
        yield Quota(fields.get(form.named_by, form.name), limit, remaining, reset, own[1], full_at_reset, form.unit, error)
    for allowed, seconds in windows:
        if (allowed, seconds) != own:
            yield Quota(limit=allowed, window=seconds, unit=form.unit)


def _policies(text: str) -> list[tuple[int, float | None]]:
    # ``20, 20;w=60``: limits, and windows in seconds where they are given. A comment in quotes may hold anything.
    policies = []
    for piece in _QUOTED.sub("", text).split(","):
        head, *parameters = piece.split(";")
        limits = numbers(head)
        if limits:
            named = [value for key, _, value in (parameter.partition("=") for parameter in parameters) if key.strip() == "w"]
            windows = numbers(named[0]) if named else []
            policies.append((whole(limits[0]), window(windows[0]) if windows else None))
    return policies


# --- Structured fields, draft 11 --------------------------------------------------------------------------------------------


def _read_structured(fields: dict[str, str]) -> Iterator[Quota]:
    policies = [(name, given) for name, given in _items(fields.get("ratelimit-policy", "")) if _integer(given, "q") is not None]
    used = []
    for name, given in _items(fields.get("ratelimit", "")):
        remaining, reset = _integer(given, "r"), _integer(given, "t")
        if remaining is None:
            continue  # r is required
        policy = _policy_of(name, given.get("pk"), policies)
        used.append(policy)
        yield _quota_of(name, policy[1] if policy else {}, remaining, None if reset is None else bounded(float(reset)))
    for policy in policies:
        if policy not in used:
            yield _quota_of(policy[0], policy[1], None, None)


def _policy_of(name: str, pk: object, policies: list[_Item]) -> _Item | None:
    # A partition key may be given in one of the two fields only: express-rate-limit 8 has it in the policy alone.
    named = [policy for policy in policies if policy[0] == name]
    same = [policy for policy in named if policy[1].get("pk") == pk] or [policy for policy in named if policy[1].get("pk") is None]
    if not same and pk is None and len(named) == 1:
        return named[0]
    return same[0] if same else None


def _quota_of(name: str, policy: Mapping[str, object], remaining: int | None, reset: float | None) -> Quota:
    unit, seconds = policy.get("qu"), _integer(policy, "w")
    return Quota(
        name,
        _integer(policy, "q"),
        remaining,
        reset,
        None if seconds is None else window(seconds),
        unit=unit if isinstance(unit, str) else "requests",
    )


def _items(text: str) -> list[_Item]:
    # The items of a structured list, each a name and its parameters. A list with one error has no items, as RFC 9651 demands.
    parse = _structured_list() if ";" in text and not text.lstrip()[:1].isdigit() else None  # a number: a policy of older drafts
    if parse is None:
        return []
    try:
        members = parse(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return []
    pairs = [member for member in cast("list[object]", members) if isinstance(member, tuple) and len(member) == 2]
    # A name is a string. A token, a UserString here, is accepted too, for servers that forget the quotes.
    return [(str(name), given) for name, given in pairs if isinstance(name, (str, UserString)) and isinstance(given, dict)]


@cache
def _structured_list() -> Callable[[bytes], object] | None:
    try:
        from http_sf import parse
    except ImportError:
        _logger.warning(
            "a server sent RateLimit or RateLimit-Policy of draft 11, which cannot be read without http-sf."
            ' Install it: pip install "aiorate-limiter[http]"'
        )
        return None
    return lambda text: parse(text, tltype="list")


def _integer(given: Mapping[str, object], key: str) -> int | None:
    value = given.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
