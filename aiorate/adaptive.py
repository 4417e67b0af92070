"""A rate that is found by watching how a server answers, where nobody says what it is."""

from __future__ import annotations

from aiorate._limiters.adaptive import AdaptiveRate, adaptive_of

__all__ = ["AdaptiveRate", "adaptive_of"]
