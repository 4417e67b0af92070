"""One word for one thing: a burst is a number of permits, wherever it is an argument or an attribute."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

import aiorate
from aiorate import BurstRatio, CalendarWindow, SlidingWindow, SmoothBursty, TicksAccumulator, TokenBucket, TokenPool
from aiorate.redis import RedisLimiter

OTHER_NAMES = {
    "burst_ratio",  # how many times the rate: of TokenPool, RateSpec and apply()
    "max_burst",  # the time that fills the store of Guava's SmoothBursty; max_stored is the same in permits
}
MODULES = ("aiorate", "aiorate.redis", "aiorate.http", "aiorate.adaptive", "aiorate.asgi", "aiorate.testing", "aiorate.otel")


def test_every_argument_named_burst_is_a_number_of_permits() -> None:
    """A whole number, or one for each limit of a list. Ratios and durations have names that say so."""
    found, other = set(), set()
    for name in MODULES:
        module = importlib.import_module(name)
        for member in module.__all__:
            thing = getattr(module, member)
            for call in [thing, *(getattr(thing, each, None) for each in dir(thing) if not each.startswith("_"))]:
                try:
                    parameters = inspect.signature(call).parameters.values() if callable(call) else ()
                except (ValueError, TypeError):
                    continue
                for parameter in parameters:
                    if parameter.name == "burst":
                        found.add((member, str(parameter.annotation)))
                    elif "burst" in parameter.name:
                        other.add(parameter.name)

    assert found == {("TokenBucket", "int"), ("RedisLimiter", "int | Sequence[int] | None")}
    assert other == OTHER_NAMES


@pytest.mark.parametrize("wrong", [1.5, 0, -1, True, "5", None])
def test_a_burst_that_is_not_permits_is_refused(wrong: Any) -> None:
    """A ratio or a time would be cut to a whole number without a word."""
    with pytest.raises((TypeError, ValueError), match="permits"):
        TokenBucket("10/s", burst=wrong)
    if wrong is not None:
        with pytest.raises((TypeError, ValueError), match="permits"):
            RedisLimiter("redis://127.0.0.1:1", "a", "10/s", burst=wrong)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (TokenPool, r"TokenBucket\('10/s', burst=20\); burst_ratio is the fastest rate"),
        (BurstRatio, r"TokenBucket\('10/s', burst=\d+\)"),
        (SmoothBursty, r"TokenBucket\('10/s', burst=20\), or SmoothBursty\('10/s', max_stored=20\)"),
        (SlidingWindow, r"TokenBucket\('10/s', burst=20\)"),
        (TicksAccumulator, r"TokenBucket\('10/s', burst=20\)"),
    ],
)
def test_a_strategy_without_a_burst_names_the_one_with_it(make: Any, words: str) -> None:
    """And its own argument that is nearest to it."""
    with pytest.raises(TypeError, match=words):
        make("10/s", burst=20)


def test_guavas_store_is_the_same_in_permits_and_in_time() -> None:
    """A second's permits by default."""
    ten, second, default = SmoothBursty("10/s", max_stored=10), SmoothBursty("10/s", max_burst=1), SmoothBursty("10/s")

    assert ten.bound(10**9) == second.bound(10**9) == default.bound(10**9)
    assert aiorate.RateSpec.parse("12000,1.1").burst_ratio == 1.1
    assert CalendarWindow("10/day", "UTC").max_permits == 10
