"""What an error of a client means: an outage, which may pass, or a refusal, which lasts until somebody puts it right.

The name of the class decides, else the code, which is the first word of what the server said. redis-py and valkey-py have classes of the
same names, and remove the code from the text of an error that has a class: `ReadOnlyError` says "You can't write against a read only
replica." No other part of the text decides: a message may quote the name of a limiter.
"""

from __future__ import annotations

import re

_CODES = {
    "AskError": "ASK",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "NoScriptError": "NOSCRIPT",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}
"""The code of each class that has one."""
_OUTAGE_CODES = {
    *("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN", "UNBLOCKED", "UNKILLABLE")
}
_OUTAGE_CLASSES = {
    *("ConnectionError", "TimeoutError", "OSError", "ClusterError", "SlotNotCoveredError"),
    *("InvalidResponse", "ValueError", "TypeError", "LookupError"),  # what a parser raises for junk
    "AttributeError",  # what the client of a cluster raises where slots move: it has closed the connection
}
_AUTHENTICATION_CLASSES = {"AuthenticationError", "AuthorizationError", "AuthenticationWrongNumberOfArgsError"}
_CLUSTER_CLASSES = {"RedisClusterException", "ValkeyClusterException"}  # no node of a cluster would do: their cause says why
_AUTHENTICATION = {"Authentication required": "NOAUTH", "HELLO must be called": "NOAUTH", "invalid username-password pair": "WRONGPASS"}
# Servers before 7.0 wrap the error of a command that a script called.
_INSIDE = re.compile(r"(?:ERR )?Error running script .*?: ?@user_script: ?\d+: (?:@user_script: ?\d+: )?-?([A-Z]+) ")
_CODE = re.compile(r"-?([A-Z]+)(?: |$)")
_OF_CLUSTER = {"MOVED", "ASK", "CROSSSLOT"}


class Unreachable(Exception):
    """No answer, or none that makes sense: it may come back."""


class Refusal(Exception):
    """The store answers, and refuses: a wrong password, a missing permission, a key of another type or release. Waiting does not help."""


def _kinds(error: object) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def said_by_server(error: object) -> bool:
    """Whether it is the answer to a command, and not a failure to get one."""
    return "ResponseError" in _kinds(error)


def _read(error: BaseException) -> tuple[str, str]:
    """The code that the server gave, or nothing, and the text with the code in front, in one line."""
    text, kinds = " ".join(str(error).split()) or type(error).__name__, _kinds(error)
    if inside := _INSIDE.match(text):
        return inside[1], text[inside.start(1) :]
    code = next((_CODES[kind] for kind in kinds if kind in _CODES), "")
    if not code and not _AUTHENTICATION_CLASSES.isdisjoint(kinds):
        code = next((code for words, code in _AUTHENTICATION.items() if words in text), "")
    elif not code and (found := _CODE.match(text)):
        code = found[1]
    return code, text if text.removeprefix("-").startswith(code) else f"{code} {text}"


def code_of(error: BaseException) -> str:
    """The code that the server gave, such as ``READONLY``; empty if there is none."""
    return _read(error)[0]


def said(error: BaseException) -> str:
    """Its text with the code in front, in one line."""
    code, text = _read(error)
    if code in _OF_CLUSTER:
        return f"{text} (this is one node of a cluster: give RedisLimiter() a client for the cluster, such as RedisCluster)"
    return text


def failure_of(error: BaseException) -> Unreachable | Refusal:
    """What it means. The error is the ``__cause__``."""
    failure = Unreachable(said(error)) if _is_outage(error) else Refusal(said(error))
    failure.__cause__ = error
    return failure


def _is_outage(error: BaseException) -> bool:
    if code_of(error) in _OUTAGE_CODES:
        return True
    kinds = _kinds(error)
    if not _CLUSTER_CLASSES.isdisjoint(kinds) and error.__cause__ is not None:
        return _is_outage(error.__cause__)
    return _AUTHENTICATION_CLASSES.isdisjoint(kinds) and not _OUTAGE_CLASSES.isdisjoint(kinds)
