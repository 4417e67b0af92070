"""Schedulers: pure state machines in whole nanoseconds. `aiorate._schedulers.interface` has their interface and its laws.

``start`` of a strategy is the instant (ns) from which its schedule runs; None: the first instant that it is given.
"""
