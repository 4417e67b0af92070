"""Calling back where no caller could handle an error: it is logged, as asyncio does, and the program goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call_back"]


def call_back(callback: Callable[[], object], where: str) -> bool:
    """Call it. An error is logged with where it happened. Returns whether there was none."""
    try:
        callback()
    except Exception:
        import logging

        logging.getLogger("aiorate").exception("A limiter's callback failed %s.", where)
        return False
    return True
