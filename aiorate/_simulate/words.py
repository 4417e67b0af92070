"""Durations and numbers as text: how they are read from the command line, and how they are shown."""

from __future__ import annotations

import re
from decimal import Decimal

from aiorate.rate import NS_PER_SECOND

__all__ = ["duration_to_ns", "show_count", "show_duration"]

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": NS_PER_SECOND,
    "min": 60 * NS_PER_SECOND,
    "h": 3_600 * NS_PER_SECOND,
    "day": 86_400 * NS_PER_SECOND,
}
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII)
_MOST = 366 * _UNITS["day"]


def duration_to_ns(text: str) -> int:
    """Read ``"1s"``, ``"250ms"``, ``"1.5min"``, ``"2h"`` or ``"3"`` (seconds), to the nearest ns. Raises ValueError for any other text."""
    match = _DURATION.fullmatch(text.strip().lower())
    unit = (match[2] or "s") if match else ""
    if match is None or unit not in _UNITS:
        raise ValueError(f"{text[:80]!r} is not a duration. Write '1s', '250ms', '1.5min', '2h' or '3' (seconds).")
    ns = round(Decimal(match[1]) * _UNITS[unit])
    if ns > _MOST:
        raise ValueError(f"{text[:80]!r} is too long: at most 366day.")
    return ns


def show_duration(ns: int) -> str:
    """Three digits in the unit that fits: ``0 s``, ``12.3 ms``, ``1.5 s``, ``2.5 min``."""
    if ns == 0:
        return "0 s"
    name, unit = next((name, unit) for name, unit in reversed(_UNITS.items()) if ns >= unit)
    if name == "s" and ns >= 100 * unit:
        name, unit = "min", _UNITS["min"]
    number = ns / unit
    digits = 2 if number < 10 else 1 if number < 100 else 0
    text = f"{number:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} {name}"


def show_count(number: int) -> str:
    """With a space between thousands."""
    return f"{number:,}".replace(",", " ")
