"""What read_feedback() makes of the headers of real servers.

The headers are those that the vendors document or that users have posted, cut to what matters.
"""

from __future__ import annotations

from aiorate.http import Feedback, Quota, read_feedback
from aiorate.http._vendors import PROFILES

DATE = "Tue, 26 Mar 2024 19:59:59 GMT"
EPOCH = 1711483199  # the same instant

VENDORS: dict[str, tuple[str, Feedback | None]] = {
    "OpenAI: a success": (
        (
            "date: Mon, 26 May 2025 05:00:04 GMT | openai-processing-ms: 512 | x-ratelimit-limit-requests: 5000 | "
            "x-ratelimit-limit-tokens: 160000 | x-ratelimit-remaining-requests: 4999 | x-ratelimit-remaining-tokens: 159976 | "
            "x-ratelimit-reset-requests: 12ms | x-ratelimit-reset-tokens: 6m0s"
        ),
        Feedback(
            200,
            None,
            (Quota("requests", 5000, 4999, 0.012, None, True), Quota("tokens", 160000, 159976, 360.0, None, True, "tokens")),
            "OpenAI",
        ),
    ),
    "OpenAI: no request left, and all back in a minute: the next one in a 500th of it": (
        "x-ratelimit-limit-requests: 500 | x-ratelimit-remaining-requests: 0 | x-ratelimit-reset-requests: 1m0s | x-should-retry: true",
        Feedback(429, 0.12, (Quota("requests", 500, 0, 60.0, None, True),), "OpenAI"),
    ),
    "OpenAI: the same before it is too late": (
        "x-ratelimit-limit-requests: 500 | x-ratelimit-remaining-requests: 0 | x-ratelimit-reset-requests: 1m0s",
        Feedback(200, 0.12, (Quota("requests", 500, 0, 60.0, None, True),), "OpenAI"),
    ),
    "OpenAI: no limit told": (
        "x-ratelimit-remaining-requests: 0 | x-ratelimit-reset-requests: 8.64s",
        Feedback(200, 8.64, (Quota("requests", None, 0, 8.64, None, True),), "OpenAI"),
    ),
    "OpenAI: no token left, but requests": (
        "x-ratelimit-remaining-requests: 499 | x-ratelimit-remaining-tokens: 0 | x-ratelimit-reset-tokens: 41.724s",
        Feedback(
            200, None, (Quota("requests", None, 499, None, None, True), Quota("tokens", None, 0, 41.724, None, True, "tokens")), "OpenAI"
        ),
    ),
    "OpenAI: tokens refused without a time": (
        "x-ratelimit-limit-tokens: 10000 | x-ratelimit-remaining-tokens: 0 | x-ratelimit-reset-tokens: 41.724s",
        Feedback(429, 1.0, (Quota("tokens", 10000, 0, 41.724, None, True, "tokens"),), "status 429"),
    ),
    "OpenAI: milliseconds are more exact than seconds": (
        "retry-after: 1 | retry-after-ms: 512",
        Feedback(429, 0.512, (), "retry-after-ms", 0.512),
    ),
    "Azure OpenAI: seconds, and a limit that is not told": (
        (
            "retry-after: 24 | x-ms-retry-after-ms: 23750 | x-ratelimit-limit-tokens: -1 | x-ratelimit-remaining-tokens: -1 | "
            "x-ratelimit-reset-tokens: 0 | x-ratelimit-reset-requests: 24"
        ),
        Feedback(429, 23.75, (Quota("requests", None, None, 24.0, None, True),), "x-ms-retry-after-ms", 23.75),
    ),
    "Groq, in the form of OpenAI": (
        "x-ratelimit-limit-requests: 14400 | x-ratelimit-remaining-requests: 14370 | x-ratelimit-reset-requests: 2m59.56s",
        Feedback(200, None, (Quota("requests", 14400, 14370, 179.56, None, True),), "OpenAI"),
    ),
    "Anthropic: a success": (
        (
            "date: Thu, 21 Aug 2025 12:41:00 GMT | anthropic-ratelimit-input-tokens-limit: 80000 | "
            "anthropic-ratelimit-input-tokens-remaining: 80000 | anthropic-ratelimit-input-tokens-reset: 2025-08-21T12:40:59Z | "
            "anthropic-ratelimit-output-tokens-limit: 16000 | anthropic-ratelimit-output-tokens-remaining: 15000 | "
            "anthropic-ratelimit-output-tokens-reset: 2025-08-21T12:41:04Z | anthropic-ratelimit-requests-limit: 1000 | "
            "anthropic-ratelimit-requests-remaining: 999 | anthropic-ratelimit-requests-reset: 2025-08-21T12:41:01Z | "
            "anthropic-ratelimit-tokens-limit: 96000 | anthropic-ratelimit-tokens-remaining: 95000 | "
            "anthropic-ratelimit-tokens-reset: 2025-08-21T14:41:04.5+02:00 | request-id: req_011CSLsW7mFqvHHnzrKdKjAE"
        ),
        Feedback(
            200,
            None,
            (
                Quota("requests", 1000, 999, 1.0, None, True),
                Quota("tokens", 96000, 95000, 4.5, None, True, "tokens"),
                Quota("input_tokens", 80000, 80000, 0.0, None, True, "tokens"),
                Quota("output_tokens", 16000, 15000, 4.0, None, True, "tokens"),
            ),
            "Anthropic",
        ),
    ),
    "Anthropic: refused, with the time": (
        (
            "retry-after: 5 | anthropic-ratelimit-requests-limit: 50 | anthropic-ratelimit-requests-remaining: 0 | "
            "anthropic-ratelimit-requests-reset: 2024-03-26T20:00:59Z | date: Tue, 26 Mar 2024 19:59:59 GMT"
        ),
        Feedback(429, 5.0, (Quota("requests", 50, 0, 60.0, None, True),), "Retry-After", 5.0),
    ),
    "Anthropic: refused, without": (
        (
            "anthropic-ratelimit-requests-limit: 5 | anthropic-ratelimit-requests-remaining: 0 | "
            "anthropic-ratelimit-requests-reset: 2024-03-26T20:00:00Z | anthropic-ratelimit-tokens-limit: 25000 | "
            "anthropic-ratelimit-tokens-remaining: 16000 | anthropic-ratelimit-tokens-reset: 2024-03-26T20:00:00Z | "
            "date: Tue, 26 Mar 2024 19:59:59 GMT"
        ),
        Feedback(
            429, 0.2, (Quota("requests", 5, 0, 1.0, None, True), Quota("tokens", 25000, 16000, 1.0, None, True, "tokens")), "Anthropic"
        ),
    ),
    "Anthropic: overloaded": ("request-id: req_1 | x-should-retry: true", Feedback(529, 1.0, (), "status 529")),
    "GitHub: a success": (
        (
            f"date: {DATE} | server: github.com | x-ratelimit-limit: 5000 | x-ratelimit-remaining: 4987 | "
            f"x-ratelimit-reset: {EPOCH + 3590} | x-ratelimit-used: 13 | x-ratelimit-resource: core | x-github-request-id: C1A2:3B"
        ),
        Feedback(200, None, (Quota("core", 5000, 4987, 3590.0),), "GitHub"),
    ),
    "GitHub: the primary limit answers 403": (
        (
            f"Date: {DATE} | X-RateLimit-Limit: 60 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: {EPOCH + 1200} | "
            "X-GitHub-Request-Id: C1A2:3B"
        ),
        Feedback(403, 1200.0, (Quota("", 60, 0, 1200.0),), "GitHub"),
    ),
    "GitHub: the secondary limit with a time": (
        (
            f"Date: {DATE} | Retry-After: 90 | X-RateLimit-Limit: 5000 | X-RateLimit-Remaining: 4000 | "
            f"X-RateLimit-Reset: {EPOCH + 1200} | X-RateLimit-Resource: core"
        ),
        Feedback(403, 90.0, (Quota("core", 5000, 4000, 1200.0),), "Retry-After", 90.0),
    ),
    "GitHub: the secondary limit without": (
        (
            f"Date: {DATE} | X-RateLimit-Limit: 5000 | X-RateLimit-Remaining: 4000 | X-RateLimit-Reset: {EPOCH + 1200} | "
            "X-RateLimit-Resource: core"
        ),
        Feedback(429, 60.0, (Quota("core", 5000, 4000, 1200.0),), "GitHub"),
    ),
    "GitHub: only the request's id": ("X-GitHub-Request-Id: C1A2:3B", Feedback(429, 60.0, (), "GitHub")),
    "GitHub: has trouble itself": ("X-GitHub-Request-Id: C1A2:3B", Feedback(503, 1.0, (), "status 503")),
    "GitHub: you may not see this": (
        (
            f"Date: {DATE} | X-RateLimit-Limit: 5000 | X-RateLimit-Remaining: 4000 | X-RateLimit-Reset: {EPOCH + 1200} | "
            "X-RateLimit-Resource: core"
        ),
        Feedback(403, None, (Quota("core", 5000, 4000, 1200.0),), "GitHub"),
    ),
    "Discord: a success": (
        (
            f"date: {DATE} | x-ratelimit-limit: 5 | x-ratelimit-remaining: 4 | x-ratelimit-reset: {EPOCH + 1}.477 | "
            "x-ratelimit-reset-after: 1.000 | x-ratelimit-bucket: abcd1234"
        ),
        Feedback(200, None, (Quota("abcd1234", 5, 4, 1.0),), "Discord"),
    ),
    "Discord: the route's last": (
        (
            "X-RateLimit-Limit: 5 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 1470173023.123 | X-RateLimit-Reset-After: 0.75 | "
            "X-RateLimit-Bucket: abcd1234"
        ),
        Feedback(200, 0.75, (Quota("abcd1234", 5, 0, 0.75),), "Discord"),
    ),
    "Discord: the route is used up": (
        (
            "Retry-After: 65 | X-RateLimit-Limit: 10 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 1470173023.123 | "
            "X-RateLimit-Reset-After: 64.57 | X-RateLimit-Bucket: abcd1234 | X-RateLimit-Scope: user"
        ),
        Feedback(429, 65.0, (Quota("abcd1234", 10, 0, 64.57),), "Retry-After", 65.0),
    ),
    "Discord: everything is": (
        "Retry-After: 65 | X-RateLimit-Global: true | X-RateLimit-Scope: global",
        Feedback(429, 65.0, (Quota("global", None, 0, 65.0),), "Retry-After", 65.0),
    ),
    "Reddit": (
        "server: snooserv | x-ratelimit-remaining: 598.0 | x-ratelimit-reset: 412 | x-ratelimit-used: 2",
        Feedback(200, None, (Quota("", None, 598, 412.0),), "X-RateLimit"),
    ),
    "Reddit: half a request is none": (
        "server: snooserv | x-ratelimit-remaining: 0.5 | x-ratelimit-reset: 37.25",
        Feedback(200, 37.25, (Quota("", None, 0, 37.25),), "X-RateLimit"),
    ),
    "Shopify": ("X-Shopify-Shop-Api-Call-Limit: 32/40", Feedback(200, None, (Quota("", 40, 8),), "Shopify")),
    "Shopify: full": (
        "X-Shopify-Shop-Api-Call-Limit: 40/40 | Retry-After: 2.0",
        Feedback(429, 2.0, (Quota("", 40, 0),), "Retry-After", 2.0),
    ),
    "Shopify: fuller than full": ("X-Shopify-Shop-Api-Call-Limit: 41/40", Feedback(200, None, (Quota("", 40, 0),), "Shopify")),
    "Binance: used, of a limit that it does not tell": (
        f"Date: {DATE} | X-MBX-USED-WEIGHT-1M: 1150",
        Feedback(200, None, (Quota("weight", reset=1.0, window=60.0, used=1150),), "Binance"),
    ),
    "Docker Hub: amounts with their window": (
        "ratelimit-limit: 100;w=21600 | ratelimit-remaining: 0;w=21600",
        Feedback(429, 1.0, (Quota("", 100, 0, None, 21600.0),), "status 429"),
    ),
    "Atlassian: a time to the minute": (
        f"Date: {DATE} | X-RateLimit-Limit: 100 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 2024-03-26T20:01Z",
        Feedback(429, 61.0, (Quota("", 100, 0, 61.0),), "X-RateLimit"),
    ),
    "custom: seconds": (
        "X-RateLimit-Limit: 60 | X-RateLimit-Remaining: 59 | X-RateLimit-Reset: 30",
        Feedback(200, None, (Quota("", 60, 59, 30.0),), "X-RateLimit"),
    ),
    "custom: seconds since the epoch": (
        f"Date: {DATE} | X-RateLimit-Limit: 60 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: {EPOCH + 30}",
        Feedback(429, 30.0, (Quota("", 60, 0, 30.0),), "X-RateLimit"),
    ),
    "custom: milliseconds since the epoch": (
        f"Date: {DATE} | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: {EPOCH + 30}500",
        Feedback(429, 30.5, (Quota("", None, 0, 30.5),), "X-RateLimit"),
    ),
    "custom: a date": (
        f"Date: {DATE} | X-RateLimit-Reset: Tue, 26 Mar 2024 20:00:29 GMT",
        Feedback(429, 30.0, (Quota("", None, None, 30.0),), "X-RateLimit"),
    ),
    "custom: a date for people, which lemlist sends": (
        (
            "Retry-After: 2 | X-RateLimit-Limit: 20 | X-RateLimit-Remaining: 7 | "
            "X-RateLimit-Reset: Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)"
        ),
        Feedback(429, 2.0, (Quota("", 20, 7),), "Retry-After", 2.0),
    ),
    "custom: with windows": (
        'X-RateLimit-Limit: 20, 20;w=60, 500;w=3600;comment="a, 7;w=1" | X-RateLimit-Remaining: 19 | X-RateLimit-Reset: 44',
        Feedback(200, None, (Quota("", 20, 19, 44.0, 60.0), Quota("", 500, None, None, 3600.0)), "X-RateLimit"),
    ),
    "custom: with more hyphens, which X sends": (
        f"date: {DATE} | x-rate-limit-limit: 300 | x-rate-limit-remaining: 0 | x-rate-limit-reset: {EPOCH + 900}",
        Feedback(429, 900.0, (Quota("", 300, 0, 900.0),), "X-RateLimit"),
    ),
    "draft 11": (
        'RateLimit-Policy: "permin";q=50;w=60,"perhr";q=1000;w=3600 | RateLimit: "permin";r=49;t=37',
        Feedback(200, None, (Quota("permin", 50, 49, 37.0, 60.0), Quota("perhr", 1000, None, None, 3600.0)), "RateLimit"),
    ),
    "draft 11: used up": ('RateLimit: "default";r=0;t=30', Feedback(200, 30.0, (Quota("default", None, 0, 30.0),), "RateLimit")),
    "draft 11: used up, on a redirect": (
        'Location: /foo/123 | RateLimit: "problemPolicy";r=0;t=10',
        Feedback(301, 10.0, (Quota("problemPolicy", None, 0, 10.0),), "RateLimit"),
    ),
    "draft 11: Retry-After takes precedence": (
        'Retry-After: 20 | RateLimit-Policy: "dynamic";q=100;w=60 | RateLimit: "dynamic";r=0;t=40',
        Feedback(429, 20.0, (Quota("dynamic", 100, 0, 40.0, 60.0),), "Retry-After", 20.0),
    ),
    "draft 11: the server's own clock": (
        'Date: Mon, 05 Aug 2019 09:27:00 GMT | Retry-After: Mon, 05 Aug 2019 09:27:05 GMT | RateLimit: "default";r=0;t=5',
        Feedback(429, 5.0, (Quota("default", None, 0, 5.0),), "Retry-After", 5.0),
    ),
    "draft 11: other units do not hold requests": (
        (
            'RateLimit-Policy: "volume";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUHx=:, "many";q=5;qu="concurrent-requests" | '
            'RateLimit: "volume";r=0;t=9;pk=:sdfjLJUOUHx=:, "many";r=0;t=3'
        ),
        Feedback(
            200,
            None,
            (Quota("volume", 65535, 0, 9.0, 10.0, unit="content-bytes"), Quota("many", 5, 0, 3.0, unit="concurrent-requests")),
            "RateLimit",
        ),
    ),
    "draft 11: several policies used up": (
        'RateLimit: "a";r=0;t=5, "b";r=0;t=50, "c";r=3;t=500',
        Feedback(429, 50.0, (Quota("a", None, 0, 5.0), Quota("b", None, 0, 50.0), Quota("c", None, 3, 500.0)), "RateLimit"),
    ),
    "draft 11: a policy for each partition": (
        'RateLimit-Policy: "u";q=10;w=60;pk=:YQ==:, "u";q=20;w=60;pk=:Yg==: | RateLimit: "u";r=19;pk=:Yg==:',
        Feedback(200, None, (Quota("u", 20, 19, None, 60.0), Quota("u", 10, None, None, 60.0)), "RateLimit"),
    ),
    "draft 11: a token for a name": ("RateLimit: default;r=0;t=30", Feedback(200, 30.0, (Quota("default", None, 0, 30.0),), "RateLimit")),
    "draft 11: half of a policy": (
        ('RateLimit-Policy: "no quota";w=60, "no window";q=5, "no time";q=5;w=0 | RateLimit: "no remainder";t=5, "negative";r=-1;t=5'),
        Feedback(200, None, (Quota("no window", 5), Quota("no time", 5)), "RateLimit"),
    ),
    "draft 11: an error in the list spoils the list": ('RateLimit: "a";r=0;t=30, "b', None),
    "Hugging Face: a policy that is not well-formed": (
        'ratelimit: "api";r=0;t=55 | ratelimit-policy: "fixed window";"api";q=500;w=300',
        Feedback(429, 55.0, (Quota("api", None, 0, 55.0),), "RateLimit"),
    ),
    "draft 07": (
        'RateLimit-Policy: 100;w=60;comment="fixed, window" | RateLimit: limit=100, remaining=50, reset=5',
        Feedback(200, None, (Quota("", 100, 50, 5.0, 60.0),), "RateLimit"),
    ),
    "draft 07: used up": ("RateLimit: limit=100, remaining=0, reset=5", Feedback(200, 5.0, (Quota("", 100, 0, 5.0),), "RateLimit")),
    "draft 06": (
        "RateLimit-Limit: 10 | RateLimit-Policy: 10;w=1, 50;w=60, 1000;w=3600 | RateLimit-Remaining: 9 | RateLimit-Reset: 1",
        Feedback(
            200, None, (Quota("", 10, 9, 1.0, 1.0), Quota("", 50, None, None, 60.0), Quota("", 1000, None, None, 3600.0)), "RateLimit"
        ),
    ),
    "old and new names at once, the same quota": (
        (
            "RateLimit-Limit: 10 | RateLimit-Remaining: 9 | RateLimit-Reset: 1 | X-RateLimit-Limit: 10 | X-RateLimit-Remaining: 9 | "
            "X-RateLimit-Reset: 1"
        ),
        Feedback(200, None, (Quota("", 10, 9, 1.0),), "RateLimit"),
    ),
    "a policy alone": ("RateLimit-Policy: 100;w=60", Feedback(200, None, (Quota("", 100, None, None, 60.0),), "RateLimit")),
}


def lines(text: str) -> list[tuple[str, str]]:
    """Split the text into names and values."""
    pairs = [field.split(": ", 1) for field in text.split(" | ")]
    return [(name, value) for name, value in pairs]


def test_what_each_vendor_says() -> None:
    """Each vendor has a different language, and each word of it was misread by some client."""
    for name, (headers, expected) in VENDORS.items():
        assert expected == read_feedback(expected.status if expected else 200, lines(headers), now=EPOCH), name


def test_every_profile_of_the_table_is_tried() -> None:
    """A row of the library's table that no test reads may be wrong."""
    spoken = {name for headers, _ in VENDORS.values() for name, _ in lines(headers.lower())}

    for profile in PROFILES:
        for form in profile.quotas:
            for name in (form.limit, form.remaining, form.level, form.used, form.policies, form.named_by, profile.everywhere, *form.resets):
                assert not name or name in spoken, name
