"""RateSpec: a notation of rates with a burst ratio and a verb."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorate._rate import MOST_DIGITS, NS_PER_SECOND, Rate, as_float, ratio_of, written

if TYPE_CHECKING:
    from aiorate._rate import Number


_VERBS = ("configure", "start", "stop", "restart")
_SUFFIXES = {"u": 0, "k": 3, "m": 6, "g": 9, "b": 9, "t": 12, "p": 15, "e": 18}
_NAMES = ("unit", "kilo", "mega", "giga", "billion", "tera", "peta", "exa")
# The exponent has a capital E only, because a small e is the suffix for exa.
_RATE = rf"(?:(\d{{1,400}}(?:\.\d{{1,400}})?)\^(\d{{1,4}})|(\d+(?:\.\d+)?(?:E\d{{1,4}})?))\s*((?i:{'|'.join((*_NAMES, *_SUFFIXES))}))?"
_RATIO = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?"
_SPEC = rf"\s*{_RATE}\s*(?:[,:;]\s*({_RATIO})\s*)?((?:[,:;](?i:activity|{'|'.join(_VERBS)}))*)"


@dataclass(frozen=True, init=False)
class RateSpec:
    """A rate, a burst ratio and a verb, in the notation of the EngineBlock and nosqlbench limiters.

    Args:
        rate: The rate.
        burst_ratio: How many times the rate to run at while behind schedule, 1 or more.
        verb: What else `Limiter.apply` does: ``configure``, ``start``, ``stop`` or ``restart``.
    """

    rate: Rate
    burst_ratio: float
    verb: str

    def __init__(self, rate: Rate | str | Number, burst_ratio: Number = 1.1, verb: str = "start") -> None:
        ratio = as_float(*ratio_of(burst_ratio, "RateSpec(burst_ratio"))
        if verb not in _VERBS:
            raise ValueError(f"RateSpec(verb={verb!r}): the verb must be one of {', '.join(_VERBS)}.")
        object.__setattr__(self, "rate", Rate.of(rate))
        object.__setattr__(self, "burst_ratio", ratio)
        object.__setattr__(self, "verb", verb)

    @classmethod
    def parse(cls, text: str) -> RateSpec:
        """Read ``rate[,burst_ratio][,verb]``, such as ``"12000,1.1,start"`` or ``"1.5K:restart"``.

        Commas, colons and semicolons separate the parts. The rate is per second: digits with an optional fraction, an optional
        exponent with a capital E and an optional suffix U, K, M, G or B, T, P, E (or unit, kilo, mega ...); or a power such as
        ``2^10``. The default ratio is 1.1 and the default verb ``start``.

        Raises ValueError for any other text. ``"1,000"`` is such a text, because its ratio would be 0.
        """
        if not isinstance(text, str):
            raise TypeError(f"RateSpec.parse() takes text such as '12000,1.1,start', not {type(text).__name__}.")
        match = re.fullmatch(_SPEC, text, re.ASCII)
        base, power, number, suffix, ratio, words = match.groups("") if match else ("", "", "0", "", "", "")
        verbs = [word for word in re.split("[,:;]", words.lower())[1:] if word != "activity"]  # the only scope here: one limiter for all
        if not base:
            permits, permits_den = written(number, "RateSpec.parse()")
        elif len(base) * int(power) <= MOST_DIGITS:
            permits, permits_den = (part ** int(power) for part in written(base, "RateSpec.parse()"))
        else:
            raise ValueError(f"RateSpec.parse({text[:80]!r}): the rate must be at most 1e{MOST_DIGITS}.")
        if not permits or float(ratio or 1.1) < 1 or len(verbs) > 1 or words.lower().count("activity") > 1:
            raise ValueError(
                f"RateSpec.parse({text[:80]!r}) is no rate[,ratio][,verb]. Write '12000', '1.5K,1.2' or '12000,1.1,restart': a rate greater"
                f" than 0, a ratio of 1 or more (no comma separates thousands), and one of {', '.join(_VERBS)}. '10/s' is for set_rate()."
            )
        rate = Rate._exactly(permits * 10 ** _SUFFIXES[(suffix or "u")[0].lower()], NS_PER_SECOND, permits_den)
        return cls(rate, float(ratio or 1.1), verbs[0] if verbs else "start")
