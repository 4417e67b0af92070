"""Windows of the calendar that are far ahead."""

from __future__ import annotations

from aiorate.schedulers.interface import NOBODY_KNOWS
from aiorate.schedulers.windows_ahead import WindowsAhead

SECOND = 1_000_000_000


def test_a_far_instant_is_found_without_counting_windows() -> None:
    """Another limit may be due at no known instant: an estimate went through all windows until then, and did not end."""
    ahead = WindowsAhead(10, SECOND, -25, [SECOND, 2 * SECOND])

    assert [3 * SECOND, 5 * SECOND // 2 + SECOND // 2] == [ahead.at(5, 0), ahead.at(5, 5 * SECOND // 2)]
    assert 100 * SECOND + 1 == ahead.at(10, 100 * SECOND + 1)
    assert NOBODY_KNOWS == ahead.at(10, NOBODY_KNOWS)
