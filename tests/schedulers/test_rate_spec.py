"""RateSpec: rate, burst ratio and verb in the notation of EngineBlock and nosqlbench."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from aiorate import Rate, RateSpec


@pytest.mark.parametrize(
    ("text", "rate", "ratio", "verb"),
    [
        ("12000", 12000, 1.1, "start"),
        ("12000,1.1,start", 12000, 1.1, "start"),
        ("12000:1.3:restart", 12000, 1.3, "restart"),
        ("12000;1.3;stop", 12000, 1.3, "stop"),
        ("1000,1.05:RESTART", 1000, 1.05, "restart"),
        ("100,configure", 100, 1.1, "configure"),
        ("100,configure,activity", 100, 1.1, "configure"),
        ("100,activity,configure", 100, 1.1, "configure"),
        ("1.5K", 1500, 1.1, "start"),
        ("1.5k:restart", 1500, 1.1, "restart"),
        ("3U", 3, 1.1, "start"),
        ("3 unit", 3, 1.1, "start"),
        ("1kilo,1.2", 1000, 1.2, "start"),
        ("2M", 2_000_000, 1.1, "start"),
        ("2mega", 2_000_000, 1.1, "start"),
        ("1G", 10**9, 1.1, "start"),
        ("1B", 10**9, 1.1, "start"),
        ("1billion", 10**9, 1.1, "start"),
        ("1T", 10**12, 1.1, "start"),
        ("1P", 10**15, 1.1, "start"),
        ("1E", 10**18, 1.1, "start"),
        ("1e", 10**18, 1.1, "start"),
        ("1exa", 10**18, 1.1, "start"),
        ("1.0E10", 10**10, 1.1, "start"),
        ("1E3K", 10**6, 1.1, "start"),
        ("2^10", 1024, 1.1, "start"),
        ("2^3K", 8000, 1.1, "start"),
        (" 100 ,1.1", 100, 1.1, "start"),
        ("0.1", 0.1, 1.1, "start"),
        ("1000,1e1", 1000, 10.0, "start"),
        ("1000,+1.5", 1000, 1.5, "start"),
        ("1000, 2. ", 1000, 2.0, "start"),
        ("1000,1", 1000, 1.0, "start"),
    ],
)
def test_every_notation(text: str, rate: float, ratio: float, verb: str) -> None:
    """Suffixes, powers, any of three separators, ratio or verb left out."""
    assert RateSpec(rate, ratio, verb) == RateSpec.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "abc",
        "1e6",
        ".5",
        "5.",
        "-5",
        "inf",
        "nan",
        "1_000",
        "100/s",
        "1000,,start",
        "1000,1.1,bogus",
        "1000,1.1,start,stop",
        "1000,start,1.1",
        "100,thread",
        "1000,nan",
        "1000,inf",
        "0x10",
        "1 000",
        "1000,1.1,start ",
        "10^",
        "^10",
        "5KK",
    ],
)
def test_text_that_both_original_parsers_refuse_is_refused(text: str) -> None:
    """The message quotes the text, so that it can be found in a configuration."""
    with pytest.raises(ValueError, match=r"RateSpec\.parse"):
        RateSpec.parse(text)


@pytest.mark.parametrize(
    ("text", "hint"), [("1,000", "never thousands"), ("1000,0.99", "1 or more"), ("0", "greater than 0"), ("0.0K", "verb 'stop'")]
)
def test_traps_are_explained(text: str, hint: str) -> None:
    """1,000 is rate 1 and ratio 0 to the original; a rate of 0 means a stop."""
    with pytest.raises(ValueError, match=hint):
        RateSpec.parse(text)


@pytest.mark.parametrize("text", ["9" * 2000, "10^9999", "1E9999", "9999^999", "1,1e9999"])
def test_monstrous_numbers_are_refused_at_once(text: str) -> None:
    """A few characters must not cost minutes of arithmetic."""
    with pytest.raises(ValueError, match="RateSpec"):
        RateSpec.parse(text)


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        ((0,), ValueError, "greater than 0"),
        ((100, 0.5), ValueError, "1 or more"),
        ((100, float("nan")), ValueError, "finite"),
        ((100, True), TypeError, "burst_ratio"),
        ((100, "1.1"), TypeError, "burst_ratio"),
        ((100, 1.1, "begin"), ValueError, "configure, start, stop, restart"),
        ((100, 1.1, None), ValueError, "verb"),
        ((None,), TypeError, "permits"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[Any, ...], error: type[Exception], hint: str) -> None:
    """At construction, by an error that says what is allowed."""
    with pytest.raises(error, match=hint):
        RateSpec(*arguments)


def test_parse_takes_text_only() -> None:
    """A number is RateSpec(number)."""
    with pytest.raises(TypeError, match="takes text"):
        RateSpec.parse(12000)  # type: ignore[arg-type]


def test_a_spec_is_a_value() -> None:
    """Equal, hashable, frozen, copied and pickled."""
    spec = RateSpec.parse("12000,1.3,restart")

    for twin in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec)), eval(repr(spec))):
        assert twin == spec
        assert hash(twin) == hash(spec)
    assert spec != RateSpec.parse("12000,1.3,start")
    assert spec != "12000"
    assert spec.rate == Rate(12000)
    with pytest.raises(AttributeError, match="make a new one"):
        spec.verb = "stop"
    with pytest.raises(AttributeError):
        del spec.verb
