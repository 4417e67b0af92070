"""Which header of a server says what: a table, without code. `aiorate.http._quotas` reads it from top to bottom.

A header belongs to the first profile that claims it. All names are in lower case. The form of a reset is not in the table:
seconds, a time since the epoch, a duration of Go and a date can be told apart, and gateways change one into another.

Each profile names the page that it was taken from.
"""

from __future__ import annotations

from typing import NamedTuple


class Fields(NamedTuple):
    """The headers of one quota. An empty name means that the vendor has no such header."""

    limit: str = ""
    """How much the quota allows. Its window may follow, and those of further quotas: ``20, 20;w=60, 500;w=3600``."""
    remaining: str = ""
    """How much is left."""
    resets: tuple[str, ...] = ()
    """When more is available. The first readable one counts."""
    level: str = ""
    """Used and limit in one: ``32/40``."""
    name: str = ""
    """The name of the quota."""
    named_by: str = ""
    """A header that holds the name of the quota."""
    policies: str = ""
    """A header that holds windows alone, in the form of the limit's."""
    unit: str = "requests"
    """What the quota counts: ``requests`` or ``tokens``."""


class Profile(NamedTuple):
    """What a vendor sends."""

    vendor: str
    """Who, for logs."""
    quotas: tuple[Fields, ...]
    """The quotas that it reports."""
    signs: tuple[tuple[str, str], ...] = ()
    """Headers that only this vendor sends, each with a text in its value. One is enough. Empty: any header of its quotas is a sign."""
    full_at_reset: bool = False
    """True if a reset says when the quota is full again, not when the next request may go."""
    unnamed_pause: float | None = None
    """Seconds to pause after a 429, or a 403 that throttles, if the response names no time. None: the same as with any server."""
    everywhere: str = ""
    """A header that is ``true`` if the throttling holds for everything that the client does, not only for this key."""


RETRY_AFTER = "retry-after"  # RFC 9110, section 10.2.3: https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3

# Milliseconds. The clients of OpenAI and Azure take these before Retry-After, which is the same time in whole seconds.
# https://github.com/openai/openai-python/blob/main/src/openai/_base_client.py
RETRY_AFTER_MS = ("retry-after-ms", "x-ms-retry-after-ms")

PROFILES = (
    # https://platform.openai.com/docs/guides/rate-limits
    # A reset is a duration of Go (6m0s, 12ms), of Azure a number of seconds.
    Profile(
        "OpenAI",
        quotas=(
            Fields("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", ("x-ratelimit-reset-requests",), name="requests"),
            Fields("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", ("x-ratelimit-reset-tokens",), name="tokens", unit="tokens"),
        ),
        full_at_reset=True,
    ),
    # https://docs.claude.com/en/api/rate-limits
    # A reset is a date of RFC 3339 (2026-11-20T12:00:05Z).
    Profile(
        "Anthropic",
        quotas=(
            Fields(
                "anthropic-ratelimit-requests-limit",
                "anthropic-ratelimit-requests-remaining",
                ("anthropic-ratelimit-requests-reset",),
                name="requests",
            ),
            Fields(
                "anthropic-ratelimit-tokens-limit",
                "anthropic-ratelimit-tokens-remaining",
                ("anthropic-ratelimit-tokens-reset",),
                name="tokens",
                unit="tokens",
            ),
            Fields(
                "anthropic-ratelimit-input-tokens-limit",
                "anthropic-ratelimit-input-tokens-remaining",
                ("anthropic-ratelimit-input-tokens-reset",),
                name="input_tokens",
                unit="tokens",
            ),
            Fields(
                "anthropic-ratelimit-output-tokens-limit",
                "anthropic-ratelimit-output-tokens-remaining",
                ("anthropic-ratelimit-output-tokens-reset",),
                name="output_tokens",
                unit="tokens",
            ),
        ),
        full_at_reset=True,
    ),
    # https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
    # A reset is in seconds since the epoch. A secondary limit has no header: "wait for at least one minute".
    Profile(
        "GitHub",
        quotas=(Fields("x-ratelimit-limit", "x-ratelimit-remaining", ("x-ratelimit-reset",), named_by="x-ratelimit-resource"),),
        signs=(("x-github-request-id", ""), ("x-ratelimit-resource", ""), ("server", "github.com")),
        unnamed_pause=60.0,
    ),
    # https://discord.com/developers/docs/topics/rate-limits
    # Seconds have a fraction. A quota belongs to a route; its bucket is known only from the response.
    Profile(
        "Discord",
        quotas=(
            Fields(
                "x-ratelimit-limit",
                "x-ratelimit-remaining",
                ("x-ratelimit-reset-after", "x-ratelimit-reset"),
                named_by="x-ratelimit-bucket",
            ),
        ),
        signs=(("x-ratelimit-bucket", ""), ("x-ratelimit-scope", ""), ("x-ratelimit-global", "")),
        everywhere="x-ratelimit-global",
    ),
    # https://github.com/reddit-archive/reddit/wiki/API
    # All three numbers are approximate, and may have a fraction. The limit is not reported.
    Profile(
        "Reddit",
        quotas=(Fields("", "x-ratelimit-remaining", ("x-ratelimit-reset",)),),
        signs=(("server", "snooserv"),),
    ),
    # https://shopify.dev/docs/api/usage/rate-limits
    # The level of a leaky bucket. How fast it drains depends on the plan and is not reported.
    Profile("Shopify", quotas=(Fields(level="x-shopify-shop-api-call-limit"),)),
    # https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-06
    # The RateLimit of draft 07 is read as these three. The RateLimit of later drafts needs a parser, and has no row.
    Profile(
        "RateLimit",
        quotas=(Fields("ratelimit-limit", "ratelimit-remaining", ("ratelimit-reset",), policies="ratelimit-policy"),),
    ),
    # Not documented: a convention, whose reset is in seconds, or in seconds or milliseconds since the epoch.
    Profile(
        "X-RateLimit",
        quotas=(Fields("x-ratelimit-limit", "x-ratelimit-remaining", ("x-ratelimit-reset-after", "x-ratelimit-reset")),),
    ),
    # https://docs.x.com/x-api/fundamentals/rate-limits
    Profile("X-Rate-Limit", quotas=(Fields("x-rate-limit-limit", "x-rate-limit-remaining", ("x-rate-limit-reset",)),)),
)
