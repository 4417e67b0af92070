"""Loops for tests."""

from __future__ import annotations

import asyncio

__all__ = ["LeapingLoop"]


class LeapingLoop(asyncio.SelectorEventLoop):
    """A loop whose time can leap ahead, so that a wait outlasts every timeout however slow the machine is, and takes no time."""

    leapt = 0.0

    def time(self) -> float:
        return super().time() + self.leapt

    async def leap(self, seconds: float) -> None:
        """Let that much time pass, and everything run that was due by then."""
        self.leapt += seconds
        for _ in range(20):
            await asyncio.sleep(0)
