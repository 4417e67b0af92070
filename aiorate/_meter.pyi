"""The meter compiled from ``_meter.c``: for type checkers it is the one in Python, which it equals."""

from aiorate.meter import PureMeter as Meter

__all__ = ["Meter"]
