"""`Outage` by itself: it is told the time, and says what decides from then on."""

from __future__ import annotations

from fractions import Fraction

import pytest

from aiorate import EngineUnavailable, Rate
from aiorate.redis.outage import Outage
from aiorate.schedulers.interface import NOBODY_KNOWS

SECOND = 1_000_000_000
ERROR = OSError("gone")


def outage(policy: str, burst: int = 1) -> Outage:
    made = Outage(policy, SECOND, [Rate.parse("10/s")], [burst], Fraction(1, 2))
    made.failed(5 * SECOND, ERROR)
    made.failed(6 * SECOND, ERROR)  # the first counts
    return made


@pytest.mark.parametrize("policy", ["raise", "wait", "local", "open"])
def test_nothing_changes_within_the_grace(policy: str) -> None:
    """And once when it is over."""
    made = outage(policy)

    assert 6 * SECOND == made.due
    assert made.over(6 * SECOND - 1, 0) is None
    assert made.over(6 * SECOND, 0) is not None
    assert made.over(7 * SECOND, 0) is None
    assert made.degraded
    assert (3 * SECOND, 0) == made.ended(8 * SECOND, 0)
    assert made.due is None
    assert not made.degraded


def test_an_outage_within_the_grace_had_no_length() -> None:
    """So nobody is told of its end."""
    assert (0, 0) == outage("raise").ended(6 * SECOND - 1, 0)


def test_the_error_has_one_full_stop_after_each_sentence() -> None:
    """The client's own errors end with one already."""
    made = outage("raise")
    made.failed(6 * SECOND, OSError("Connect call failed."))

    assert str(made.error()).startswith("acquire(): the store does not answer: Connect call failed. It is asked again;")


def test_the_decision_of_each_policy() -> None:
    """An error for everybody, nobody knows, at once."""
    refused, waiting, unlimited = (outage(policy).over(9 * SECOND, 0) for policy in ("raise", "wait", "open"))
    assert refused is not None
    assert waiting is not None
    assert unlimited is not None

    with pytest.raises(EngineUnavailable) as caught:
        refused.at(1, 0)
    assert ERROR is caught.value.__cause__
    assert NOBODY_KNOWS == waiting.at(1, 0)
    assert 7 == unlimited.at(1_000_000, 7)


@pytest.mark.parametrize(("spent", "unused", "owed"), [(3, 0, 3), (3, 1.9, 3), (3, 4, 1), (3, 1000, 0), (0, 0, 0), (3, -5, 3)])
def test_local_permits_are_charged_less_the_unused_share(spent: int, unused: float, owed: int) -> None:
    """What this process granted, less half of what nobody used meanwhile: half is its share."""
    made = outage("local", burst=3)
    now = 100 * SECOND
    local = made.over(9 * SECOND, now - 60 * SECOND)
    assert local is not None
    for _ in range(spent):
        assert now == local.at(1, now)
        local.spend(1, now)

    assert owed == made.ended(10 * SECOND, unused)[1]
