"""How much of a large table, and how many random histories, one run of the tests covers.

A sample by default, and everything with ``AIORATE_TEST_ALL=1``. Tests that take a sample are marked ``sampled``, so that
``AIORATE_TEST_ALL=1 pytest -m sampled`` runs all of them and nothing else.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ALL", "examples", "histories", "sample", "sampled"]

T = TypeVar("T")

ALL = bool(os.environ.get("AIORATE_TEST_ALL"))
"""True if this run covers everything."""

sampled = pytest.mark.sampled
"""For tests that cover a sample by default."""


def histories(most: int) -> int:
    """The number of histories to try: a tenth of ``most`` by default, and at least 3."""
    return most if ALL else min(most, max(3, most // 10))


def examples(most: int) -> settings:
    """Settings of hypothesis for at most that many examples: the same ones in each run, and no deadline for slow machines."""
    return settings(max_examples=histories(most), deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


def sample(table: Sequence[T], size: int) -> list[T]:
    """Rows at equal distances, beginning with the first; or all rows."""
    if ALL or size >= len(table):
        return list(table)
    return [table[index * len(table) // size] for index in range(size)]
