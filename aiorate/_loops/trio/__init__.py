"""Trio runs: the view of a run, its port, and the driver. Only this folder imports trio and anyio, where a limiter is used under trio."""
