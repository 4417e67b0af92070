"""Goals: what the waits or refusals of a run should be, as ``--suggest`` has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from aiorate._simulate.words import duration_to_ns

if TYPE_CHECKING:
    from array import array

__all__ = ["Goal", "parse_goals"]

_ABOUT = "Write 'p99=1s', 'p50=200ms', 'max=5s' or 'refused=1%', or several with commas."
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,6})?)")


@dataclass(frozen=True, slots=True)
class Goal:
    """At least `percent` % of all requests are granted within `wait` ns. A refused request is not."""

    text: str
    percent: Decimal
    wait: int | None
    """None: granted at all."""

    def allowed(self, requests: int) -> int:
        """How many requests may miss it: a percentile is that of the nearest rank."""
        return int(requests * (100 - self.percent) // 100)

    def missed(self, waits: array[int]) -> int:
        """How many of these missed it. A negative wait is a refusal."""
        wait = self.wait
        if wait is None:
            return sum([each < 0 for each in waits])
        return sum([not 0 <= each <= wait for each in waits])


def parse_goals(text: str) -> tuple[Goal, ...]:
    """Read ``"p99=1s"`` or several goals with commas between them. Raises ValueError."""
    return tuple(_goal(part.strip()) for part in text.split(","))


def _goal(text: str) -> Goal:
    name, equals, value = (part.strip() for part in text.lower().partition("="))
    try:
        if equals and name == "refused" and value.endswith("%"):
            refused = Decimal(value[:-1].strip())
            if not 0 <= refused < 100:
                raise ValueError
            return Goal(f"refused={value}", 100 - refused, None)
        match = _PERCENTILE.fullmatch(name)
        percent = Decimal(100) if name == "max" else Decimal(match[1]) if match else Decimal(0)
        if equals and percent:
            return Goal(f"{name}={value}", percent, duration_to_ns(value))
    except InvalidOperation:
        pass
    except ValueError as error:
        if str(error):
            raise ValueError(f"{text[:80]!r}: {error}") from None
    raise ValueError(f"{text[:80]!r} is not a goal. {_ABOUT}")
