"""What an error of a client means: an outage, which may pass, or a refusal, which lasts until somebody puts it right.

The name of the class decides, which redis-py and valkey-py share, or else the code, which is the first word of what the server said. No
other part of the text decides: a message may quote the name of a limiter.
"""

from __future__ import annotations

import re

_OUTAGES = {
    *("ConnectionError", "TimeoutError", "OSError", "ClusterError", "SlotNotCoveredError"),
    *("InvalidResponse", "ValueError", "TypeError", "LookupError"),  # what a parser raises for junk
    "AttributeError",  # what the client of a cluster raises where slots move: it has closed the connection
    *("BusyLoadingError", "ReadOnlyError", "ClusterDownError", "MasterDownError", "OutOfMemoryError", "TryAgainError"),
    *("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN", "UNBLOCKED", "UNKILLABLE"),
}
_REFUSALS = {"AuthenticationError", "AuthorizationError", "AuthenticationWrongNumberOfArgsError"}  # which are ConnectionErrors
_CLUSTERS = {"RedisClusterException", "ValkeyClusterException"}  # no node of a cluster would do: their cause says why
# Servers before 7.0 wrap the error of a command that a script called.
_CODE = re.compile(r"(?:(?:ERR )?Error running script .*@user_script: ?\d+: )?-?([A-Z]+)(?: |$)")


class Unreachable(Exception):
    """No answer, or none that makes sense: it may come back."""


class Refusal(Exception):
    """The store answers, and refuses: a wrong password, a missing permission, a key of another type or release. Waiting does not help."""


def kinds_of(error: object) -> list[str]:
    """The names of its classes."""
    return [kind.__name__ for kind in type(error).__mro__]


def failure_of(error: BaseException) -> Unreachable | Refusal:
    """What it means, in one line that begins with the name of the class or the code. The error is the ``__cause__``."""
    name, text = type(error).__name__, " ".join(str(error).split())
    if name != "ResponseError":
        text = f"{name}: {text}" if text else name
    failure = Unreachable(text) if _is_outage(error) else Refusal(text)
    failure.__cause__ = error
    return failure


def _is_outage(error: BaseException) -> bool:
    kinds = kinds_of(error)
    if not _CLUSTERS.isdisjoint(kinds) and error.__cause__ is not None:
        return _is_outage(error.__cause__)
    if _REFUSALS.isdisjoint(kinds) and "ResponseError" in kinds and (code := _CODE.match(str(error))):
        kinds.append(code[1])
    return _REFUSALS.isdisjoint(kinds) and not _OUTAGES.isdisjoint(kinds)
