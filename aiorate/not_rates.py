"""What a rate was meant to be, from text that is not one. Imported only when a text could not be read. Knows no limiter."""

from __future__ import annotations

import re

__all__ = ["meant"]

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_COUNTED = r"\b(?:requests?|reqs?|calls?|permits?|tokens?|times|hits?|messages?|msgs?|quer(?:y|ies)|events?|items?|jobs?)\b"
_SHORT = {"s": "s", "m": "min", "h": "h", "d": "day"}
_UNITS = {
    **dict.fromkeys(("secs", "sec", "seconds", "second", "s"), "s"),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "usec", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "min"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days", "daily"), "day"),
    **dict.fromkeys(("w", "wk", "week", "weeks"), "week"),
}


def meant(text: str) -> str:
    """What to write in place of the text, after "Write "; "" if that cannot be guessed."""
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.strip().lower())
    parts = [part.strip() for part in re.split(r"[,;&|]| and ", plain) if part.strip()]
    if len(parts) > 1:
        rates = [_rate(part) for part in parts]
        return f"a list of rates, all of which hold: [{', '.join(map(repr, rates))}]" if all(rates) else ""
    burst = re.fullmatch(r"(.+?)\s*[,(]?\s*burst\D*(\d+)\D*", plain)
    if burst is not None and _rate(burst[1]):
        return f"the burst as part of a strategy: TokenBucket({_rate(burst[1])!r}, burst={burst[2]})"
    return repr(_rate(plain)) if _rate(plain) else ""


def _rate(text: str) -> str:
    plain = " ".join(re.sub(_COUNTED, " ", text.replace("\\", "/")).split())
    plain = re.sub(rf"^({_NUMBER})\s*k\b", lambda found: f"{float(found[1]) * 1000:g}", plain)
    short = re.fullmatch(rf"({_NUMBER})\s*(?:[rqtc]p([smhd])|hz)", plain)
    if short is not None:
        return f"{short[1]}/{_SHORT[short[2] or 's']}"
    found = re.fullmatch(rf"({_NUMBER})\s*(?:/|per|every|each|an?|in|:|@)?\s*({_NUMBER})?\s*([a-z]+)\.?", plain)
    if found is None or found[3] not in _UNITS or float(found[1]) == 0 or (not re.search(r"[/:@ ]", plain)):
        return ""
    return f"{found[1]}/{found[2] or ''}{_UNITS[found[3]]}"
