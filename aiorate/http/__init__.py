"""Limits for httpx2 and httpx: event hooks of the client, or a transport around another transport. Imports neither package.

>>> client = httpx2.AsyncClient(event_hooks=hooks(Limiter("100/s")))
>>> client = httpx2.Client(event_hooks=blocking_hooks(Limiter("100/s", scope="process")))  # synchronous, in any threads

Every request waits for its permits before it takes a connection. A redirect and an authentication challenge are requests too.
Hooks leave the client's own options (``limits=``, ``http2=``, proxies) in force. They count all attempts of a retry transport
as one request; there, use `limit_transport`, innermost.

* ``limiter`` is an `aiorate.Limiter`, an `aiorate.adaptive.AdaptiveRate`, or one of them for each key: an `aiorate.KeyedLimiter` or a
  dict (`Limiters`). An `aiorate.Budget` only observes the responses.
* ``key(request)`` names the key. The default is the origin, such as ``"https://api.example.com:443"``.
* ``cost(request)`` is the number of permits that a request takes, 1 by default. A request with a cost of 0 is not limited.
* ``max_wait`` is the longest wait (seconds or a timedelta). A request that would wait longer fails at once: `aiorate.WaitTooLong`.
* ``feedback`` has the limiter observe every response; False turns that off. A 429 then pauses everybody in that line.

A request may bring its own cost and wait: ``client.get(url, extensions={"aiorate": {"cost": 7, "max_wait": 2}})``.
No timeout of the client covers the wait. An error of the limiter reaches the caller as it is, and is not an ``httpx2.HTTPError``.

`read_feedback` reads what a server says of its limits: a pause in seconds, and its quotas. It takes the headers of any client.
"""

from __future__ import annotations

from aiorate._feedback import Feedback, Quota
from aiorate.http._feedback import read_feedback
from aiorate.http._hooks import blocking_hooks, hooks
from aiorate.http._requests import Limiters
from aiorate.http._transport import limit_transport

__all__ = ["Feedback", "Limiters", "Quota", "blocking_hooks", "hooks", "limit_transport", "read_feedback"]
