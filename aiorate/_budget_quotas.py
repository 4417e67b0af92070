"""Which dimension of a budget a server's quota is about."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate._feedback import Left

__all__ = ["QuotaNames"]

_logger = logging.getLogger("aiorate")


class QuotaNames:
    """Finds the dimension of a quota, and logs once for each dimension that a quota has nearly its name, and is not heeded."""

    __slots__ = ("_logged",)

    def __init__(self) -> None:
        self._logged: tuple[str, ...] = ()

    def find(self, quota: Left, told: set[str], names: tuple[str, ...], budget: str | None) -> str | None:
        """The one of the dimensions ``names`` that has the quota's name or unit; None: it is not heeded.

        ``told`` has the names of all quotas of the response, and ``budget`` is the budget's name.
        """
        # One dimension of tokens is not lowered by those that go in or out alone, where the server tells of all tokens too.
        place = quota.name if quota.name in names or quota.unit in told else quota.unit
        if place in names:
            return place
        name = quota.name
        near = next((each for each in names if each not in told and name and (each in name or name in each)), None)
        if near is not None and near not in self._logged:
            self._logged += (near,)
            _logger.warning(
                "%s: the server reports a quota %r, but no dimension has that name. If dimension %r is that quota, name it %r.",
                *(f"budget {budget!r}" if budget else "budget", name, near, name),
            )
        return None
