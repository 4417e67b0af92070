"""RateLimit, RateLimit-Policy and the body of a 429, as bytes. Knows no limiter and no clock.

* RateLimit and RateLimit-Policy: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11, sections 3 to 5
* structured fields: RFC 9651, https://www.rfc-editor.org/rfc/rfc9651#section-4.1
* problem details: RFC 9457, https://www.rfc-editor.org/rfc/rfc9457
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND, ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MOST", "names_of", "quoted", "refused", "seconds_of"]

MOST = 999_999_999_999_999
"""The largest integer of a structured field: RFC 9651, section 3.3.1."""

_LONGEST_NAME = 64  # characters: aiorate reads fields of up to 1024
_QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def seconds_of(ns: int) -> int:
    """Whole seconds, rounded up, at least 1: a client that comes back after them is not early."""
    return min(max(ceil_div(ns, NS_PER_SECOND), 1), MOST)


def quoted(name: str) -> str:
    """The name, of printable ASCII, as a String of a structured field."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def names_of(wanted: Iterable[str]) -> list[str]:
    """Names for policies, all different, of characters that a structured field may hold. Others are percent-encoded as UTF-8."""
    names: list[str] = []
    for name in wanted:
        plain = "".join(map(_encoded, name))[:_LONGEST_NAME] or "default"
        each, count = plain, 1
        while each in names:
            count += 1
            each = f"{plain}-{count}"
        names.append(each)
    return names


def _encoded(character: str) -> str:
    if " " <= character <= "~":
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


@lru_cache(256)
def refused(seconds: int, violated: tuple[str, ...]) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of the answer to a request that was refused for that many seconds, by the policies of these names."""
    when = "1 second" if seconds == 1 else f"{seconds} seconds"
    problem = {
        "type": _QUOTA_EXCEEDED,
        "title": "Too many requests: a quota is exceeded",
        "status": 429,
        "detail": f"Send the request again in {when}.",
        "violated-policies": violated,
    }
    body = json.dumps(problem).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"%d" % seconds),
    ]
    return headers, body
