"""How much of a large table, and how many invented histories, one run of the tests goes through.

A sample by default, and everything with ``AIORATE_TEST_ALL=1``. Tests that make this difference are marked ``sampled``, so that
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
"""Whether this run goes through everything."""

sampled = pytest.mark.sampled
"""For tests that go through a sample by default."""


def histories(most: int) -> int:
    """How many of ``most`` histories to try: a tenth of them by default, and at least 3."""
    return most if ALL else min(most, max(3, most // 10))


def examples(most: int) -> settings:
    """Settings of hypothesis for at most that many examples, the same ones in each run, however slow the machine is."""
    return settings(max_examples=histories(most), deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


def sample(table: Sequence[T], size: int) -> list[T]:
    """Rows at equal distances, the first among them, or all of them."""
    if ALL or size >= len(table):
        return list(table)
    return [table[index * len(table) // size] for index in range(size)]
