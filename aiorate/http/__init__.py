"""Limits for httpx2 and httpx: event hooks of the client, or a transport around another transport. Imports neither package.

>>> client = httpx2.AsyncClient(event_hooks=hooks(Limiter("100/s")))
>>> client = httpx2.Client(event_hooks=blocking_hooks(Limiter("100/s", scope="process")))  # synchronous, in any threads

Hooks leave the client's own options (``limits=``, ``http2=``, proxies) in force. They count all attempts of a retry transport
as one request; there, use `limit_transport`, innermost. A redirect and an authentication challenge are requests too.

A request may bring its own cost and wait: ``client.get(url, extensions={"aiorate": {"cost": 7, "max_wait": 2}})``.
No timeout of the client covers the wait. An error of the limiter reaches the caller as it is, and is not an ``httpx2.HTTPError``.

`read_feedback` reads what a server says of its limits: a pause in seconds, and its quotas. It takes the headers of any client.
"""

from __future__ import annotations

from aiorate._feedback import Feedback, Quota
from aiorate.http._feedback import read_feedback
from aiorate.http._httpx import blocking_hooks, hooks, limit_transport
from aiorate.http._way import Limiters

__all__ = ["Feedback", "Limiters", "Quota", "blocking_hooks", "hooks", "limit_transport", "read_feedback"]
