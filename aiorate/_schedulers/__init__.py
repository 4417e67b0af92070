"""Schedulers: pure state machines in whole nanoseconds. `aiorate._schedulers.interface` has their interface and its laws."""
