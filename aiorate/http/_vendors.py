"""Which header of a server says what: a table, which `aiorate.http._feedback` reads from top to bottom.

A header belongs to the first profile that claims it. The form of a reset is not in the table: seconds, times since the epoch, durations
of Go and dates can be told apart, and gateways change one into another.
"""

from __future__ import annotations

from typing import NamedTuple


class Fields(NamedTuple):
    """The headers of one quota. An empty name means that the vendor has no such header."""

    limit: str = ""  # its window may follow, and further quotas: ``20, 20;w=60, 500;w=3600``
    remaining: str = ""
    resets: tuple[str, ...] = ()  # the first readable one counts
    level: str = ""  # used and limit in one: ``32/40``
    used: str = ""  # what was used in this ``window``, in seconds of the server's time
    named_by: str = ""  # a header that holds the name of the quota
    policies: str = ""  # a header with windows alone, in the form of the limit's
    name: str = ""  # of the quota
    unit: str = "requests"
    window: float = 0.0


class Profile(NamedTuple):
    """What a vendor sends."""

    vendor: str  # who, for logs
    quotas: tuple[Fields, ...]
    signs: tuple[tuple[str, str], ...] = ()  # headers of this vendor alone, each with a text in its value; empty: those of the quotas
    full_at_reset: bool = False  # whether a reset says when the quota is full, not when the next request may go
    unnamed_pause: float | None = None  # seconds, after a 429 or a 403 that throttles and names no time; None: as with others
    everywhere: str = ""  # a header that is ``true`` if all keys of the client are throttled


# Milliseconds. The clients of OpenAI and Azure take these before Retry-After, which is the same time in whole seconds.
# https://github.com/openai/openai-python/blob/main/src/openai/_base_client.py
RETRY_AFTER_MS = ("retry-after-ms", "x-ms-retry-after-ms")

# Not documented: a convention, whose reset is in seconds, or in seconds or milliseconds since the epoch.
_X = Fields("x-ratelimit-limit", "x-ratelimit-remaining", ("x-ratelimit-reset-after", "x-ratelimit-reset"))


def _named(form: str, name: str, unit: str = "tokens") -> Fields:
    limit, remaining, reset = (form.format(name, what) for what in ("limit", "remaining", "reset"))
    return Fields(limit, remaining, (reset,), name=name.replace("-", "_"), unit=unit)


_OPENAI, _ANTHROPIC = "x-ratelimit-{1}-{0}", "anthropic-ratelimit-{0}-{1}"

PROFILES = (
    # https://platform.openai.com/docs/guides/rate-limits
    # A reset is a duration of Go (6m0s, 12ms), of Azure a number of seconds.
    Profile("OpenAI", (_named(_OPENAI, "requests", "requests"), _named(_OPENAI, "tokens")), full_at_reset=True),
    # https://docs.claude.com/en/api/rate-limits
    # A reset is a date of RFC 3339 (2026-11-20T12:00:05Z).
    Profile(
        "Anthropic",
        (
            _named(_ANTHROPIC, "requests", "requests"),
            *(_named(_ANTHROPIC, name) for name in ("tokens", "input-tokens", "output-tokens")),
        ),
        full_at_reset=True,
    ),
    # https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
    # A reset is in seconds since the epoch. A secondary limit has no header: "wait for at least one minute".
    Profile(
        "GitHub",
        (_X._replace(named_by="x-ratelimit-resource"),),
        signs=(("x-github-request-id", ""), ("x-ratelimit-resource", ""), ("server", "github.com")),
        unnamed_pause=60.0,
    ),
    # https://discord.com/developers/docs/topics/rate-limits
    # Seconds have a fraction. A quota belongs to a route; its bucket is known only from the response.
    Profile(
        "Discord",
        (_X._replace(named_by="x-ratelimit-bucket"),),
        signs=(("x-ratelimit-bucket", ""), ("x-ratelimit-scope", ""), ("x-ratelimit-global", "")),
        everywhere="x-ratelimit-global",
    ),
    # https://shopify.dev/docs/api/usage/rate-limits
    # The level of a leaky bucket. How fast it drains depends on the plan and is not reported.
    Profile("Shopify", (Fields(level="x-shopify-shop-api-call-limit"),)),
    # https://developers.binance.com/docs/binance-spot-api-docs/rest-api/limits
    Profile("Binance", (Fields(used="x-mbx-used-weight-1m", name="weight", window=60.0),)),
    # https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-06
    # The RateLimit of draft 07 is read as these three. Those of later drafts need a parser, and have no row.
    Profile("RateLimit", (Fields("ratelimit-limit", "ratelimit-remaining", ("ratelimit-reset",), policies="ratelimit-policy"),)),
    Profile("X-RateLimit", (_X,)),  # Reddit's numbers may have a fraction: https://github.com/reddit-archive/reddit/wiki/API
)
