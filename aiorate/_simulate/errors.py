"""The error of arrivals that cannot be read, and how a broken line is shown."""

from __future__ import annotations

__all__ = ["ArrivalsError", "BadLine", "printable", "shown"]

_MOST_SHOWN = 60


class ArrivalsError(ValueError):
    """The arrivals cannot be used. The text names their source."""


class BadLine(Exception):  # it never leaves the package
    """A line that is not what its file should hold. ``number`` counts from 1; ``why`` is what is wrong with it."""

    def __init__(self, number: int, line: bytes, why: str) -> None:
        super().__init__(why)
        self.number = number
        self.line = line
        self.why = why


def printable(text: str) -> str:
    """The text with escapes in place of characters that a terminal cannot show."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def shown(line: bytes) -> str:
    """The line in quotes: its first 60 bytes, in printable ASCII."""
    text = ascii(line[:_MOST_SHOWN].decode("utf-8", "backslashreplace")).replace("\\\\x", "\\x")
    return f"{text} ..." if len(line) > _MOST_SHOWN else text
