"""Defects found by the second attack: numbers 4, 34, 35, 36, 43, and first mistakes with strategies."""

from __future__ import annotations

import pytest

from aiorate import TokenPool


def test_a_burst_given_to_a_pool_names_the_bucket() -> None:
    """First mistake: ``TokenPool("10/s", burst=20)`` meant as a bucket's granted 21 at once after 2 s, and 244 in any second."""
    with pytest.raises(TypeError, match=r"burst_ratio.*TokenBucket\('10/s', burst=20\)"):
        TokenPool("10/s", burst=20)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"no ratio; it takes rate, burst_ratio"):
        TokenPool("10/s", ratio=1.5)  # type: ignore[arg-type]


def test_a_pool_shows_its_burst_ratio() -> None:
    """The factor has one name, where it is given and where it is shown."""
    pool = TokenPool("10/s", burst_ratio=1.5)

    assert pool.burst_ratio == 1.5
    assert "burst_ratio=1.5" in repr(pool)
