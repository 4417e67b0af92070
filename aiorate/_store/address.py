"""The URL of a store: whether it can be used, and what of it may be shown. Nothing of a password ever is.

A password with a ``/``, ``#``, ``?`` or ``[`` that was not percent-encoded ends up in the path, the fragment, the query or the host, and
its beginning in the place of the port. So no error quotes any part of a URL that does not parse.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_options", "check_url", "shown"]

_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
_MAY_HAVE_AT = ("username=", "password=", "client_name=")
_HOST = re.compile(r"(https?://)?[\w.-]+(:\d+)?")
_EXAMPLE = "RedisLimiter() takes an asyncio client, or a URL such as 'redis://127.0.0.1:6379/0'"
_ENCODE = "In a password, write '/', '#', '?', '@' and '[' as urllib.parse.quote(password, safe='') does."
_NOT_SHOWN = "It is not shown here, since it may hold a password."


def check_url(url: str) -> None:
    """Raise ValueError, which quotes nothing of it, unless it is the URL of a store."""
    scheme, mark, _ = url.partition("://")
    if not mark or scheme not in _SCHEMES:
        raise ValueError(f"{_EXAMPLE}: it begins with one of {', '.join(f'{each}://' for each in _SCHEMES)}. {_NOT_SHOWN}")
    parts = _split(url)
    if parts is None:
        raise ValueError(f"{_EXAMPLE}, and this one cannot be read: the port must be a number in 0-65535. {_ENCODE} {_NOT_SHOWN}")
    if "@" not in parts.netloc and _is_cut(parts):
        raise ValueError(f"{_EXAMPLE}, and this one has an '@' after its host: a character in the password ends it. {_ENCODE} {_NOT_SHOWN}")


def check_options(make: Callable[[], object]) -> None:
    """Raise ValueError if a client for it cannot be made, since it has an unknown option or a value that is none."""
    try:
        make()
    except (TypeError, ValueError):
        problem = f"{_EXAMPLE}, and this one has an option, after its '?', that the client does not know or cannot read. {_NOT_SHOWN}"
    else:
        return
    raise ValueError(problem)


def shown(url: str) -> str:
    """The URL with ``***`` for its credentials and without its query; ``***`` alone if it may be anything."""
    try:
        check_url(url)
    except ValueError:
        return url if _HOST.fullmatch(url) else "***"
    parts = urlsplit(url)
    _, mark, host = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{':***' if mark else ''}{mark}{host}{parts.path}"


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def _is_cut(parts: SplitResult) -> bool:
    """Whether the credentials go on behind what looks like the host."""
    path = parts.path if parts.scheme != "unix" or ":" in parts.netloc else ""  # a socket's name may have an @
    return "@" in path + parts.fragment or any("@" in word and not word.startswith(_MAY_HAVE_AT) for word in parts.query.split("&"))
