"""observe() of a KeyedLimiter: feedback for one key, and for all of them."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.driving import one_loop
from helpers.feedback import remaining, said

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.http import Quota, read_feedback
from aiorate.testing import ManualClock

pytestmark = one_loop


def keyed_of(clock: ManualClock, **options: Any) -> KeyedLimiter[str]:
    return KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=10), clock=clock), **options)


def paused(keyed: KeyedLimiter[str], *keys: str) -> list[float | None]:
    return [keyed[key].statistics().paused_until for key in keys]


async def test_feedback_for_a_key_concerns_no_other_key() -> None:
    """F7: one flooded key must not stop all of them."""
    keyed = keyed_of(ManualClock())

    keyed.observe("a", said(Quota(remaining=1, reset=9), pause=5))
    keyed.observe("b", None)

    assert [5.0, None] == paused(keyed, "a", "b")
    assert [10, None] == [keyed["b"].statistics().available, keyed["c"].statistics().paused_until]


async def test_global_feedback_pauses_the_shared_limit() -> None:
    """Discord's global limit. The quota of the route in the same response concerns its key."""
    clock = ManualClock()
    shared = Limiter(TokenBucket("50/s", burst=50), clock=clock)
    keyed = keyed_of(clock, shared=shared)

    headers = {"X-RateLimit-Global": "true", "Retry-After": "3", "X-RateLimit-Remaining": "4", "X-RateLimit-Reset-After": "9"}
    keyed.observe("a", read_feedback(429, headers))

    assert [None, None, 3.0] == [*paused(keyed, "a", "b"), shared.statistics().paused_until]
    clock.advance(4)
    assert not keyed.try_acquire("a", 5)
    assert keyed.try_acquire("b", 2)


async def test_without_a_shared_limit_global_feedback_pauses_the_key() -> None:
    """A pause of one key is better than none."""
    keyed = keyed_of(ManualClock())

    keyed.observe("a", read_feedback(429, {"X-RateLimit-Global": "true", "Retry-After": "3"}))

    assert [3.0, None] == paused(keyed, "a", "b")


async def test_a_global_policy_with_permits_left_concerns_the_key() -> None:
    """Its name alone does not make the pause global."""
    clock = ManualClock()
    keyed = keyed_of(clock, shared=Limiter("50/s", clock=clock))

    keyed.observe("a", said(Quota("global", limit=100, remaining=7, reset=3), pause=2))

    assert keyed.shared is not None
    assert [2.0, None] == [*paused(keyed, "a"), keyed.shared.statistics().paused_until]


async def test_a_closed_keyed_limiter_ignores_feedback() -> None:
    """Responses may still arrive while a program ends."""
    keyed = keyed_of(ManualClock())
    await keyed.aclose()

    keyed.observe("a", said(pause=5))

    assert 0 == len(keyed)


async def test_observe_of_a_keyed_limiter_checks_its_arguments() -> None:
    """Bad keys, feedback and jitter are refused, and change nothing."""
    keyed: Any = keyed_of(ManualClock())

    with pytest.raises(TypeError, match="must be hashable"):
        keyed.observe([], said(pause=5))
    with pytest.raises(TypeError, match=r"read_feedback\(status, headers\)"):
        keyed.observe("a", 429)
    with pytest.raises(TypeError, match=r"observe\(jitter\)"):
        keyed.observe("a", said(pause=5), jitter="1")

    assert [None] == paused(keyed, "a")


async def test_a_key_with_a_quota_is_not_evicted() -> None:
    """A new limiter in its place would grant what the server has refused."""
    clock = ManualClock()
    keyed = keyed_of(clock)
    keyed.observe("a", remaining(1, 5))

    assert [0, 1] == [keyed.evict(), len(keyed)]
    clock.advance(5)
    assert [1, 0] == [keyed.evict(), len(keyed)]
